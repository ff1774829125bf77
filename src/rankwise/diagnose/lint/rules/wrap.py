"""RW202, RW204, RW208: the wrap itself: what is given to DDP."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.facts import wraps
from rankwise.diagnose.lint.module import Module, position
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


@rule(
    "RW202", "partial-move", "error", "medium",
    message="only parts of {name} are moved to the device before DDP wraps it: {parts}",
    why="DDP refuses a module whose parameters lie on different kinds of devices, and the parts left behind fail in forward.",
    wrong=_HEAD + """
def prepare(net, device):
    net.encoder.to(device)
    return DDP(net, device_ids=[device])
""",
    right=_HEAD + """
def prepare(net, device):
    net.to(device)
    return DDP(net, device_ids=[device])
""",
    ignore="the other parts are on their devices already.",
)  # fmt: skip
def partial_move(module: Module) -> Iterator[Hit]:
    """net.encoder.to(device), never net.to(device), DDP(net)."""
    for wrap in wraps(module):
        if not wrap.inner or wrap.inner == "self" or wrap.moves_before:
            continue
        made = module.binding(wrap.inner, wrap.place.scope, before=wrap.call.node)
        if made is not None and made.value is not None and re.search(r"\.(to|cuda)\(|device", module.text(made.value)):
            continue
        parts = [
            call
            for call in wrap.place.scope.calls
            if call.method in {"to", "cuda"}
            and re.fullmatch(re.escape(wrap.inner) + r"\.\w+", call.base)
            and call.base.rpartition(".")[2] not in {"module", "state_dict"}
            and position(call.node) < position(wrap.call.node)
        ]
        targets = {ast.unparse(call.node.args[0]) if call.node.args else "" for call in parts}
        if parts and len(targets) == 1 and "cpu" not in str(targets):
            yield Hit(wrap.call.node, {"name": wrap.inner, "parts": ", ".join(sorted({call.base for call in parts}))})


_KEYWORDS = frozenset(
    "module device_ids output_device dim broadcast_buffers init_sync process_group bucket_cap_mb find_unused_parameters "
    "check_reduction gradient_as_bucket_view static_graph delay_all_reduce_named_params param_to_hook_all_reduce "
    "mixed_precision device_mesh skip_all_reduce_unused_params bucket_cap_mb_list batched_grad_copy "
    "forward_sync_buffers".split()
)


@rule(
    "RW204", "bad-ddp-kwarg", "error", "high",
    message="DistributedDataParallel has no argument {name!r}{hint}",
    why="It raises TypeError. The time limit of collectives belongs to init_process_group or new_group.",
    wrong=_HEAD + """
def prepare(net, limit):
    return DDP(net, timeout=limit)
""",
    right=_HEAD + """
def prepare(net, limit):
    torch.distributed.init_process_group("nccl", timeout=limit)
    return DDP(net)
""",
    ignore="a version of PyTorch newer than 2.13 has it.",
)  # fmt: skip
def bad_ddp_kwarg(module: Module) -> Iterator[Hit]:
    """A keyword that no version knows."""
    for wrap in wraps(module):
        if not wrap.call.name.startswith("torch."):
            continue
        for word in wrap.call.node.keywords:
            if word.arg is not None and word.arg not in _KEYWORDS:
                hint = ": it belongs to init_process_group" if word.arg == "timeout" else ""
                yield Hit(word, {"name": word.arg, "hint": hint})


@rule(
    "RW208", "device-ids-mismatch", "warning", "high",
    message="device_ids={text}: {reason}",
    why="One process drives one device. Several ids raise ValueError; a fixed id puts all ranks on one GPU.",
    wrong=_HEAD + """
def prepare(net):
    return DDP(net.cuda(), device_ids=[0, 1])
""",
    right=_HEAD + """
def prepare(net, local_rank):
    return DDP(net.cuda(local_rank), device_ids=[local_rank])
""",
    ignore="each process sees one GPU only, and its index is 0.",
)  # fmt: skip
def device_ids_mismatch(module: Module) -> Iterator[Hit]:
    """More than one id, or a fixed one."""
    hidden = any(isinstance(node.value, str) and node.value == "CUDA_VISIBLE_DEVICES" for node, _ in module.strings)
    for wrap in wraps(module):
        word = wrap.call.keyword("device_ids")
        if word is None:
            continue
        ids, text = word.value, module.text(word.value)
        if isinstance(ids, ast.List | ast.Tuple) and len(ids.elts) > 1:
            yield Hit(word, {"text": text, "reason": "DDP takes one device per process"})
        elif isinstance(ids, ast.List | ast.Tuple) and len(ids.elts) == 1 and isinstance(ids.elts[0], ast.Constant):
            if isinstance(ids.elts[0].value, int) and not hidden:
                yield Hit(word, {"text": text, "reason": "every rank would use the same GPU"})
        elif re.fullmatch(r"(list\()?range\(.*(device_count|n_?gpu|num_gpus).*", text, re.DOTALL):
            yield Hit(word, {"text": text, "reason": "DDP takes one device per process"})
