"""RW211, RW219: devices that are the same on all ranks, or chosen too late."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    GROUP,
    environment_writes,
    has_framework,
    is_before_ranks,
    sees_one_gpu,
    uses_cuda,
)
from rankwise.diagnose.lint.analysis.guards import is_mode_test
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import HEAD, Hit, Rule

_AVAILABLE = re.compile(r" if (torch\.)?cuda\.is_available\(\) else")


def _single_process(module: Module, place: Place) -> bool:
    """Whether a place lies under a test of how the script runs: the branch of one process may do what ranks must not."""
    simple = not isinstance(place.stmt, ast.If | ast.For | ast.While | ast.With | ast.FunctionDef | ast.ClassDef)
    choice = simple and " if " in _AVAILABLE.sub("", module.text(place.stmt))  # cuda:0 if ... else ...
    return choice or any(is_mode_test(branch.test) for branch in place.branches)


@Rule(
    "RW211", "hardcoded-device", "error", "medium",
    message="{text} is the same GPU on every rank",
    why="All ranks of a node compute on, and fill, one GPU; NCCL refuses two ranks on one device. (Under torchrun "
    "--virtual-local-rank each process sees one GPU, and index 0 is right.)",
    example=HEAD + """
-def main(net):
+def main(net, local_rank):
     dist.init_process_group("nccl")
-    device = torch.device("cuda:0")
+    device = torch.device("cuda", local_rank)
     return DDP(net.to(device))
""",
    ignore="each process sees one GPU only.",
)  # fmt: skip
def hardcoded_device(module: Module) -> Iterator[Hit]:
    """A fixed index in .to, .cuda, torch.device or set_device of a file that starts or wraps."""
    started = bool(wraps(module)) or GROUP in module.by_name
    if not started or has_framework(module):
        return
    if any(name == "CUDA_VISIBLE_DEVICES" for name, *_ in environment_writes(module)) or sees_one_gpu(module):
        return
    for call in module.methods("to", "cuda", "device", "set_device"):
        torch_call = call.name in {"torch.device", "torch.cuda.set_device", "torch.cuda.device"}
        if not (torch_call or call.method in {"to", "cuda"}) or not call.node.args:
            continue
        place, node, given = call.place, call.node, call.node.args[0]
        if call.method != "cuda" and isinstance(given, ast.Name | ast.Attribute):  # device = "cuda:0"
            bound = list(module.bindings_of(text_of(given), place.scope))
            if len(bound) == 1 and (value := bound[0].value) is not None and not isinstance(value, ast.Call):
                place, node, given = bound[0].place, value, value  # type: ignore[assignment]
        text = _fixed_index(module, call, given)
        if not text or (isinstance(given, ast.IfExp) and torch_call and not _is_taken(module, call)):
            continue
        if call.place.side or any(_single_process(module, each) for each in (call.place, place)):
            continue
        if is_before_ranks(module, call.place.scope) or _ASIDE.search(call.place.scope.name):
            continue
        yield Hit(node, {"text": text})


_ASIDE = re.compile(r"bench|test|demo|infer|eval|predict", re.IGNORECASE)


def _is_taken(module: Module, call: Call) -> bool:
    """Whether the name of a device has this value only, and something is moved by it."""
    texts = [text_of(target) for target in call.place.targets]
    once = all(sum(found.text == text for found in module.bindings) == 1 for text in texts)
    moved = {text_of(part) for move in module.methods("to") for part in move.node.args[:1]}
    return once and bool(moved & set(texts))


def _fixed_index(module: Module, call: Call, first: ast.expr) -> str:
    if isinstance(first, ast.Attribute) and text_of(first) not in module.fields:  # an option that is cuda:0 by default
        asked = (found for found in module.methods("add_argument") if f"'--{first.attr}'" in ast.unparse(found.node))
        defaults = (found.argument("default") for found in asked)
        first = next((word for word in defaults if isinstance(getattr(word, "value", None), str)), None) or first
    if isinstance(first, ast.IfExp) and _AVAILABLE.search(ast.unparse(first)):
        first = first.body
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and re.fullmatch(r"cuda:\d+", first.value):
        return repr(first.value)
    number = isinstance(first, ast.Constant) and type(first.value) is int
    if number and (call.method == "cuda" or call.name in {"torch.cuda.set_device", "torch.cuda.device"}):
        return f"{call.method}({first.value})"  # type: ignore[attr-defined]
    return ""


_OF_TENSORS = "barrier all_reduce broadcast all_gather reduce all_gather_into_tensor"
_OF_OBJECTS = "broadcast_object_list all_gather_object gather_object scatter_object_list"
_ON_THE_DEVICE = {f"torch.distributed.{name}" for name in f"{_OF_TENSORS} {_OF_OBJECTS}".split()}


def _uses_device(module: Module, call: Call) -> bool:
    """Whether a call uses the current GPU, or a function of this file that always does and chooses none before."""
    if call.method == "cuda" and not call.name and not call.given:
        return True
    if call.name in _ON_THE_DEVICE and not call.keyword("device_ids"):
        return True
    inside = [each for each in module.inside(call) if not each.place.branches]
    chooses = any(each.keyword("device_id") or each.method == "set_device" for each in inside)
    return not chooses and any(each.name in _ON_THE_DEVICE for each in inside)


@Rule(
    "RW219", "set-device-after-collective", "warning", "medium",
    message="the device is chosen after {name} has used one: NCCL has taken GPU 0 on every rank by then",
    why="A collective, and the wrap, run on the current device. Choose it first: set_device(local_rank), or device_id= of "
    "init_process_group.",
    example=HEAD + """
 def main(local_rank):
+    torch.cuda.set_device(local_rank)
     dist.init_process_group("nccl")
     dist.barrier()
-    torch.cuda.set_device(local_rank)
""",
    ignore="the group runs on gloo.",
)  # fmt: skip
def set_device_after_collective(module: Module) -> Iterator[Hit]:
    """Barrier or the wrap stands before set_device in one function."""
    for call in module.named("torch.cuda.set_device"):
        if call.place.loops or call.place.side or any(is_mode_test(branch.test) for branch in call.place.branches):
            continue
        scope = call.place.scope
        before = [found for found in scope.calls if found.node.lineno < call.node.lineno and not found.place.branches]
        chosen = any(found.keyword("device_id") or found.name == "torch.cuda.set_device" for found in before)
        first = next((found for found in before if _uses_device(module, found)), None)
        if first is not None and not chosen and uses_cuda(module):
            yield Hit(call.node, {"name": last(first.text)})
