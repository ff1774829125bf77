"""RW105, RW202, RW204, RW208, RW210, RW217, RW611, RW614, RW615, RW622: the wrap and its group: what they are given."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    GROUP,
    SAMPLER,
    environment_writes,
    has_framework,
    is_const,
    is_handed_over,
    sees_one_gpu,
    spawns,
    with_argument,
    without_keyword,
)
from rankwise.diagnose.lint.analysis.guards import is_local_rank
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Scope
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule

_BY_VARIABLES = "env://"


@Rule(
    "RW202", "partial-move", "error", "medium",
    message="only parts of {name} are moved to the device before DDP wraps it: {parts}",
    why="DDP refuses a module whose parameters lie on different kinds of devices, and the parts left behind fail in forward.",
    example=HEAD + """
 def prepare(net, device):
-    net.encoder.to(device)
+    net.to(device)
     return DDP(net, device_ids=[device])
""",
    ignore="the other parts are on their devices already.",
)  # fmt: skip
def partial_move(module: Module) -> Iterator[Hit]:
    """net.encoder.to(device), never net.to(device), DDP(net)."""
    for wrap in wraps(module):
        if not wrap.inner or wrap.inner == "self" or wrap.moves_before:
            continue
        made = module.binding(wrap.inner, wrap.place.scope, before=wrap.place.stmt)
        if made is not None and made.value is not None and re.search(r"\.(to|cuda)\(|device", module.text(made.value)):
            continue
        part = re.compile(re.escape(wrap.inner) + r"\.(?!(module|state_dict)$)\w+")
        moves = (call for call in wrap.place.scope.calls if call.method in {"to", "cuda"} and part.fullmatch(call.base))
        parts = [call for call in moves if position(call.node) < position(wrap.call.node)]
        targets = {ast.unparse(call.node.args[0]) if call.node.args else "" for call in parts}
        if parts and len(targets) == 1 and "cpu" not in str(targets):
            yield Hit(wrap.call.node, {"name": wrap.inner, "parts": ", ".join(sorted({call.base for call in parts}))})


_KEYWORDS = frozenset(
    "module device_ids output_device dim broadcast_buffers init_sync process_group bucket_cap_mb find_unused_parameters "
    "check_reduction gradient_as_bucket_view static_graph delay_all_reduce_named_params param_to_hook_all_reduce "
    "mixed_precision device_mesh skip_all_reduce_unused_params bucket_cap_mb_list batched_grad_copy "
    "forward_sync_buffers".split()
)


@Rule(
    "RW204", "bad-ddp-kwarg", "error", "high",
    message="DistributedDataParallel has no argument {name!r}{hint}",
    why="It raises TypeError. The time limit of collectives belongs to init_process_group or new_group.",
    example=HEAD + """
 def prepare(net, limit):
-    return DDP(net, timeout=limit)
+    torch.distributed.init_process_group("nccl", timeout=limit)
+    return DDP(net)
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


_ALL_GPUS = re.compile(
    r"(list\(|\[(int\()?\w+\)? for \w+ in |\[\*)?range\(.*(device_count|n_?gpu|num_gpus).*", re.DOTALL
)


@Rule(
    "RW208", "device-ids-mismatch", "warning", "high",
    message="device_ids={text}: {reason}",
    why="One process drives one device. Several ids raise ValueError; a fixed id puts all ranks on one GPU.",
    example=HEAD + """
-def prepare(net):
-    return DDP(net.cuda(), device_ids=[0, 1])
+def prepare(net, local_rank):
+    return DDP(net.cuda(local_rank), device_ids=[local_rank])
""",
    ignore="each process sees one GPU only, and its index is 0.",
)  # fmt: skip
def device_ids_mismatch(module: Module) -> Iterator[Hit]:
    """More than one id, or a fixed one."""
    hidden = "CUDA_VISIBLE_DEVICES" in module.texts or (bool(wraps(module)) and sees_one_gpu(module))
    for wrap in wraps(module):
        word = wrap.call.keyword("device_ids")
        if word is None:
            continue
        ids, text = module.value(word.value, wrap.place.scope), module.text(word.value)
        if ids is not word.value and len(list(module.bindings_of(text, wrap.place.scope))) != 1:
            continue
        if isinstance(ids, ast.List | ast.Tuple) and len(ids.elts) > 1:
            yield Hit(word, {"text": text, "reason": "DDP takes one device per process"})
        elif isinstance(ids, ast.List | ast.Tuple) and len(ids.elts) == 1 and isinstance(ids.elts[0], ast.Constant):
            if isinstance(ids.elts[0].value, int) and not hidden:
                yield Hit(word, {"text": text, "reason": "every rank would use the same GPU"})
        elif ids is not None and _ALL_GPUS.fullmatch(ast.unparse(ids)):
            yield Hit(word, {"text": text, "reason": "DDP takes one device per process"})


@Rule(
    "RW210", "dataparallel-module", "warning", "high",
    message="nn.DataParallel copies the model to every GPU in every step, from one process: use DistributedDataParallel",
    why="One Python process drives all GPUs, splits and gathers each batch through the first, and cannot leave one machine. "
    "PyTorch advises DDP even on one machine; nn.DataParallel itself gives no warning.",
    example="""
 import torch

-def prepare(net):
-    return torch.nn.DataParallel(net).cuda()
+def prepare(net, local_rank):
+    net = net.to(local_rank)
+    return torch.nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
""",
    ignore="it is a notebook for inference on one machine.",
)  # fmt: skip
def dataparallel_module(module: Module) -> Iterator[Hit]:
    """A call of DataParallel, or a class made of it, but not where the other side of a test wraps by DDP."""
    ranked = {wrap.call.node for wrap in wraps(module)}
    for call in module.named("torch.nn.DataParallel"):
        if not any(ranked & set(ast.walk(branch.node)) for branch in call.place.branches):
            yield Hit(call.node.func)
    for scope in module.scopes:
        for base in scope.bases:
            if module.name_of(base) == "torch.nn.DataParallel":
                yield Hit(base)


@Rule(
    "RW611", "missing-init", "error", "medium",
    message="no process group: nothing here calls init_process_group before the wrap",
    why="DDP raises ValueError without a group.",
    example=' import torch\n\n+torch.distributed.init_process_group("gloo")\n'
    " net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n",
    ignore="something that was imported starts it.",
)  # fmt: skip
def missing_init(module: Module) -> Iterator[Hit]:
    """A wrap in a program that imports nothing which could start a group."""
    if has_framework(module) or any("init" in call.method for call in module.calls if call.method != "__init__"):
        return
    roots = {name.partition(".")[0] for name in (*module.imports.modules, *(n for n, _, _ in module.imports.nodes))}
    if roots - _STARTS_NOTHING or "*" in module.imports.bound:
        return
    for wrap in wraps(module):
        if _is_run_here(module, wrap.place.scope) and not any(branch.taken is False for branch in wrap.place.branches):
            yield Hit(wrap.call.node.func)


# of others' packages, those that leave process groups alone
_STARTS_NOTHING = sys.stdlib_module_names | frozenset(
    "torch numpy torchvision torchaudio pandas PIL cv2 sklearn scipy matplotlib tqdm timm albumentations librosa h5py nibabel "
    "segmentation_models_pytorch wandb yaml einops skimage omegaconf torchmetrics".split()
)


def _is_run_here(module: Module, scope: Scope, depth: int = 4) -> bool:
    """Whether the program itself comes to a place: it stands at the top, or in a function that the top calls."""
    if scope.parent is None:
        return True
    calls = module.callers(scope.function) if scope.function is not None and depth else []
    return any(_is_run_here(module, call.place.scope, depth - 1) for call in calls)


@Rule(
    "RW614", "spawn-without-address", "error", "medium",
    message="ranks are spawned here, and nothing says where they meet: set MASTER_ADDR and MASTER_PORT, or give init_method",
    why="torchrun sets both variables; torch.multiprocessing does not. init_process_group then raises ValueError.",
    example="import torch.multiprocessing as mp\n" + HEAD + """
 def work(rank, world_size):
-    dist.init_process_group("gloo", rank=rank, world_size=world_size)
+    address = "tcp://127.0.0.1:29500"
+    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)

 if __name__ == "__main__":
     mp.spawn(work, args=(2,), nprocs=2)
""",
    ignore="the shell, or something that was imported, sets the variables.",
)  # fmt: skip
def spawn_without_address(module: Module) -> Iterator[Hit]:
    """A file that spawns its ranks, whose group is told rank and size and no address, and that names no variable."""
    if not spawns(module):
        return
    told = any("MASTER_" in text or ("://" in text and text != _BY_VARIABLES) for text in module.texts)
    if (
        told
        or has_framework(module)
        or any("environ" in call.text or "env" in call.method.lower() for call in module.calls)
    ):
        return
    for call in module.named(GROUP):
        given = {word.arg for word in call.node.keywords}
        method = call.argument("init_method", 1)
        by_variables = method is None or (isinstance(method, ast.Constant) and method.value == _BY_VARIABLES)
        numbered = {"rank", "world_size"} <= given
        numbered = numbered or (not module.environment and _is_spawned(module, call.place.scope))
        if numbered and not {"store", None} & given and by_variables and len(call.node.args) < 3:
            yield Hit(call.node.func)


def _is_spawned(module: Module, scope: Scope, depth: int = 3) -> bool:
    """Whether a function is what the spawned ranks run, or is called by it."""
    calls = module.callers(scope) if scope.is_function and depth else []
    return is_handed_over(module, scope) or any(_is_spawned(module, call.place.scope, depth - 1) for call in calls)


_FREE_PORTS = re.compile(r"(free|open|unused|available|random)\w*_port|find_port|pick_port|randint|randrange")


@Rule(
    "RW622", "port-per-rank", "error", "medium",
    message="each rank chooses a port of its own, so they do not meet: {text}",
    why="Every rank that is spawned runs this function. All wait for rank 0 at another port than it listens on, until the timeout. "
    "Choose the port before the ranks start, and hand it over.",
    example="import os\nimport torch.multiprocessing as mp\nfrom ports import find_free_port\n" + HEAD + """
-def work(rank, world_size):
-    os.environ["MASTER_PORT"] = str(find_free_port())
+def work(rank, world_size, port):
+    os.environ["MASTER_PORT"] = str(port)
     os.environ["MASTER_ADDR"] = "127.0.0.1"
     dist.init_process_group("gloo", rank=rank, world_size=world_size)

 if __name__ == "__main__":
-    mp.spawn(work, args=(2,), nprocs=2)
+    mp.spawn(work, args=(2, find_free_port()), nprocs=2)
""",
    ignore="one rank is spawned.",
)  # fmt: skip
def port_per_rank(module: Module) -> Iterator[Hit]:
    """MASTER_PORT, or the address of the group, is a free or random port in what spawned ranks run."""
    if not spawns(module):
        return
    ports = [(value, place.scope) for name, _, value, place in environment_writes(module) if name == "MASTER_PORT"]
    addresses = ((call.argument("init_method", 1), call.place.scope) for call in module.named(GROUP))
    for value, scope in [*ports, *((value, scope) for value, scope in addresses if value is not None)]:
        made = [each.made for name in names_in(value) for each in scope.bindings.get(name, ()) if each.made is not None]
        calls = [part for each in [value, *made] for part in ast.walk(each) if isinstance(part, ast.Call)]
        drawn = next((call for call in calls if _FREE_PORTS.search(text_of(call.func))), None)
        if drawn is not None and scope.is_function and _is_spawned(module, scope):
            yield Hit(drawn, {"text": module.text(drawn)})


@Rule(
    "RW105", "sampler-rank", "warning", "high",
    message="the sampler wants the global rank, and gets the rank on this node: {text}",
    why="On two nodes the ranks of the second one read the same samples as those of the first, and the other samples are never "
    "read. Without the arguments the sampler asks the process group.",
    example="-import os\n" + HEAD + """
 def make_sampler(dataset):
-    local_rank = int(os.environ["LOCAL_RANK"])
-    return torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=8, rank=local_rank)
+    return torch.utils.data.distributed.DistributedSampler(dataset)
""",
    ignore="there is one node, and will be.",
    fix="safe",
)  # fmt: skip
def sampler_rank(module: Module) -> Iterator[Hit]:
    """rank= is a local rank."""
    for call in module.named(SAMPLER):
        given = call.argument("rank", 2)
        if given is None or not _is_local(module, given, call.place.scope) or _is_of_group(module, given):
            continue
        edits = [edit for name in ("num_replicas", "rank") if (edit := without_keyword(module, call, name))]
        # the removals of neighbours would overlap in their comma
        fix = Fix("let it ask the process group", tuple(edits)) if call.keyword("rank") and edits else None
        yield Hit(given, {"text": module.text(given)}, fix)


def _is_of_group(module: Module, given: ast.expr) -> bool:
    """Whether the group of one machine counts by the same name."""
    for call in module.named(GROUP):
        rank, sized = call.argument("rank", 4), call.argument("world_size", 3)
        if rank is not None and sized is not None and ast.dump(rank) == ast.dump(given):
            return not _is_of_all(module, sized, call.place.scope)
    return False


def _is_local(module: Module, given: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether an argument is a rank on its node: by itself, or as a parameter for which every call here gives one."""
    lookup, name = module.lookup(scope), text_of(given)
    if is_local_rank(given, lookup):
        return True
    if isinstance(given, ast.Name) and scope.params[:1] == (name,) and _counts_from(scope, name):
        return True
    deeper = depth > 0 and not lookup(name)
    return deeper and module.always_given(scope, given, lambda part, at: _is_local(module, part, at, depth - 1))


def _counts_from(scope: Scope, name: str) -> bool:
    """Whether a function makes its rank out of a parameter: node * ranks_per_node + gpu."""
    values = (found.value for found in scope.bound if "rank" in found.text.lower())
    sums = (value for value in values if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add))
    return any(name in names_in(each) and "*" in ast.unparse(each) for each in sums)


@Rule(
    "RW615", "local-rank-as-rank", "warning", "medium",
    message="the rank on its node ({text}) is given as the rank: on a second node it is there again, and no group forms",
    why="Local ranks start from 0 on each node. torchrun sets RANK; init_process_group reads it where no rank is given.",
    example="-import os\n" + HEAD + """
-local_rank = int(os.environ["LOCAL_RANK"])
-dist.init_process_group("nccl", rank=local_rank)
+dist.init_process_group("nccl")
""",
    ignore="the job never leaves one machine.",
)  # fmt: skip
def local_rank_as_rank(module: Module) -> Iterator[Hit]:
    """init_process_group(rank=local_rank) where the number of ranks is that of all nodes."""
    if spawns(module):
        return
    for call in module.named(GROUP):
        rank, sized = call.argument("rank", 4), call.argument("world_size", 3)
        of_all = sized is None or _is_of_all(module, sized, call.place.scope)
        if rank is not None and of_all and _is_local(module, rank, call.place.scope):
            yield Hit(rank, {"text": module.text(rank)})


def _is_of_all(module: Module, sized: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether a number of ranks is WORLD_SIZE: by itself, or as a parameter for which every call here gives that."""
    found = module.value(sized, scope)
    if found is not None and re.search(r"\bWORLD_SIZE\b", ast.unparse(found)):
        return True
    return depth > 0 and module.always_given(scope, sized, lambda part, at: _is_of_all(module, part, at, depth - 1))


@Rule(
    "RW217", "checkpoint-reentrant", "error", "medium",
    message="re-entrant activation checkpointing with find_unused_parameters: backward raises 'marked as ready twice'",
    why="The re-entrant variant runs backward passes inside backward, which DDP's search for unused parameters does not survive. "
    "use_reentrant=False works.",
    example=HEAD + """
 from torch.utils.checkpoint import checkpoint

 def prepare(net, block, x):
     model = DDP(net, find_unused_parameters=True)
-    return model, checkpoint(block, x)
+    return model, checkpoint(block, x, use_reentrant=False)
""",
    ignore="static_graph=True is given as well.",
    fix="safe",
)  # fmt: skip
def checkpoint_reentrant(module: Module) -> Iterator[Hit]:
    """checkpoint() without use_reentrant=False beside DDP(find_unused_parameters=True)."""
    searches = any(is_const(wrap.call.argument("find_unused_parameters"), True) for wrap in wraps(module))
    if not searches or any(wrap.call.keyword("static_graph") for wrap in wraps(module)):
        return
    for call in module.named("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"):
        word = call.keyword("use_reentrant")
        if call.is_open and word is None:
            continue
        if word is None:
            edit = with_argument(module, call, "use_reentrant=False")
            yield Hit(call.node.func, {}, Fix("add use_reentrant=False", (edit,)))
        elif is_const(word.value, True):
            yield Hit(word, {}, Fix("use_reentrant=False", (Edit(*module.span(word.value), "False"),)))
