"""RW305 to RW310: where the tensors of a step lie, and what is measured of it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import is_distributed, training_loops, training_steps, uses_cuda
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, names_in, receiver, text_of
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.analysis.values import is_on_cpu
from rankwise.diagnose.lint.analysis.wrapped import known_wraps, wraps
from rankwise.diagnose.lint.record import HEAD, Hit, Rule


@Rule(
    "RW305", "target-not-moved", "warning", "medium",
    message="{name} stays on the CPU while {moved} of the same batch is moved",
    why="DDP moves the inputs of forward to its device, nothing else: the loss then meets tensors of two devices.",
    example=HEAD + """
 def train(model, loader, criterion, device):
     for x, y in loader:
-        x = x.to(device)
+        x, y = x.to(device), y.to(device)
         loss = criterion(model(x), y)
         loss.backward()
""",
    ignore="the loss moves it.",
)  # fmt: skip
def target_not_moved(module: Module) -> Iterator[Hit]:
    """For x, y in loader: x moves, y goes into the loss as it came."""
    for loop in training_loops(module):
        inside = [call for call in module.calls if loop in call.place.loops]
        bound = Counter(found.text for found in module.bindings if loop in found.place.loops)
        batch, parts = _parts(module, loop, inside)
        moves = (receiver(call.node) for call in inside if call.method in {"to", "cuda"})
        moved = {ast.unparse(node) for node in moves if node is not None}
        # a batch that is handed on may be moved as a whole
        whole = (text_of(arg) for call in inside if call.text != "len" for arg in call.node.args)
        if batch and (bound[batch] or batch in moved or batch in whole):
            continue
        moved = {text for text in moved if text in parts or (batch and text.startswith(f"{batch}["))}
        for part in sorted(parts - moved) if moved else ():
            losses = [call for call in inside if _takes_loss(module, call, part)]
            given = [call for call in inside if any(ast.unparse(arg) == part for arg in call.node.args)]
            kept = bound[part] <= bool(batch)  # what takes it out of the batch binds it once
            if losses and kept and all(call in losses for call in given):
                yield Hit(losses[0].node, {"name": part, "moved": min(moved)})


def _parts(module: Module, loop: ast.stmt, inside: list[Call]) -> tuple[str, set[str]]:
    """Return the name of a loop's batch, "" where only its parts have names, and how the parts are written."""
    target = loop.target if isinstance(loop, ast.For) else None
    if isinstance(target, ast.Tuple) and len(target.elts) == 2 and re.search(r"\benumerate\(", ast.unparse(loop.iter)):  # type: ignore[attr-defined]
        target = target.elts[1]  # for i, (x, y) in enumerate(loader)
    if not isinstance(target, ast.Name):
        return "", {part.id for part in getattr(target, "elts", ()) if isinstance(part, ast.Name)}
    batch = target.id
    taken = set()  # `x = batch["scan"]`, or `x, y = batch`, which binds each to no value that is seen
    for found in (found for found in module.bindings if loop in found.place.loops):
        stmt = found.place.stmt
        apart = found.value is None and isinstance(stmt, ast.Assign) and text_of(stmt.value) == batch
        taken |= {found.text} if apart or _is_item(found.value, batch) else set()
    given = (part for call in inside for arg in call.node.args for part in ast.walk(arg))
    return batch, taken | {ast.unparse(part) for part in given if _is_item(part, batch)}


def _is_item(node: ast.AST | None, batch: str) -> bool:
    """Whether it is ``batch["label"]`` or ``batch[1]``."""
    item = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return item and text_of(node.value) == batch  # type: ignore[union-attr]


_VIEWS = frozenset("view reshape flatten squeeze unsqueeze contiguous long float ravel".split())


def _takes_loss(module: Module, call: Call, name: str) -> bool:
    """Whether a loss takes a name as its target, or a part or a view of it."""
    made = module.value(call.node.func, call.place.scope) if isinstance(call.node.func, ast.Name) else None
    full = module.made_by(made)
    known = re.fullmatch(r"torch\.nn\.\w+Loss", full)
    if not known and not re.search(r"criterion|loss_f|_loss$|cross_entropy|loss_fn|^loss_func", call.method):
        return False
    # the lengths that CTC takes behind its target may stay on the CPU
    if any(isinstance(arg, ast.Call) and text_of(arg).endswith(".cpu()") for arg in call.node.args[:1]):
        return False
    given = call.node.args[1:2] if "ctc" in f"{call.method} {full}".lower() else call.node.args[1:]
    return any(_is_view(arg, name) for arg in given)


def _is_view(node: ast.expr, name: str) -> bool:
    while ast.unparse(node) != name:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            node = node.func.value
        else:
            return False
    return True


@Rule(
    "RW306", "loss-weight-device", "warning", "medium",
    message="{name}= of {loss} stays on the CPU: the loss meets tensors of two devices",
    why="A loss without tensors has no device; one with weights is a module that has to be moved, or given weights that are.",
    example=HEAD + """
 def make_loss(model, local_rank):
     model.cuda(local_rank)
-    return torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0]))
+    return torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0])).cuda(local_rank)
""",
    ignore="the loss is computed on the CPU.",
)  # fmt: skip
def loss_weight_device(module: Module) -> Iterator[Hit]:
    """A loss with a fresh CPU tensor that nothing moves."""
    if not uses_cuda(module) or module.has_call("set_default_device", "set_default_tensor_type"):
        return
    for call in module.calls:
        made = call.method.endswith("Loss") and call.method not in _UNWEIGHTED
        if not call.name.startswith("torch.nn.") or not (made or call.method in _LOSSES):
            continue
        for word, index in (("weight", 0 if made else 2), ("pos_weight", None)):
            given = call.argument(word, index)
            if given is not None and is_on_cpu(module, given, call.place.scope) and not _moved_later(module, call):
                yield Hit(given, {"name": word, "loss": call.method})


_LOSSES = frozenset("cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits".split())
# what takes another thing first
_UNWEIGHTED = frozenset("MSELoss L1Loss SmoothL1Loss HuberLoss KLDivLoss CTCLoss PoissonNLLLoss".split())


def _moved_later(module: Module, call: Call) -> bool:
    """Whether the loss is moved where it is made, or by its name."""
    names = {found.text for found in module.bindings if found.value is call.node}
    known = {last(text) for text in names}
    moves = module.methods("to", "cuda")
    moved = any(
        last(move.base) in known or move.base == "self" or call.node in ast.walk(move.node.func) for move in moves
    )
    return moved or any("self." in text for text in names)


@Rule(
    "RW307", "timing-without-sync", "warning", "medium",
    message="this time is taken while the GPU still works: call torch.cuda.synchronize() before reading the clock",
    why="CUDA calls return before they are done. The clock measures how fast work was queued.",
    example="import time\n" + HEAD + """
 def benchmark(model, x):
     x = x.cuda()
+    torch.cuda.synchronize()
     start = time.perf_counter()
     for _ in range(10):
         model(x)
+    torch.cuda.synchronize()
     return time.perf_counter() - start
""",
    ignore="the work runs on the CPU, or something between the two readings waits for the GPU.",
)  # fmt: skip
def timing_without_sync(module: Module) -> Iterator[Hit]:
    """Two readings of the clock in a function that is named like a measurement, and nothing in it that waits.

    Or one between the forward pass, the backward pass and the step of training.
    """
    if not uses_cuda(module):
        return
    wrapped = {wrap.text for wrap in known_wraps(module)}
    for calls in training_steps(module).values():
        yield from _between_phases(module, calls)
    for scope in module.scopes:
        clocks = [call for call in scope.calls if call.name in _CLOCKS]
        measures = scope.is_function and _MEASURES.search(scope.name)
        works = any(_runs(call) or call.text.removesuffix(".module") in wrapped for call in scope.calls)
        if measures and len(clocks) >= 2 and works and not any(map(_waits, scope.calls)):
            yield Hit(clocks[-1].node)


def _runs(call: Call) -> bool:
    """Whether a call queues work on the GPU: a pass, a step or a reduction."""
    sends = call.name.startswith("torch.distributed.all_") and "object" not in call.name
    model = _MODEL.fullmatch(call.text.removeprefix("self.")) is not None
    return sends or model or call.method in {"backward", "forward", "model", "step"}


_MEASURES = re.compile(r"bench|bandwidth|throughput|speed|latency|timing|measure_|time_")
_CLOCKS = {"time.time", "time.perf_counter", "time.monotonic", "timeit.default_timer"}
_WAITS = frozenset("synchronize item cpu tolist numpy elapsed_time wait barrier float isnan isfinite".split())
_CLOCK = re.compile(r"time\.(time|perf_counter|monotonic)(_ns)?|(.*\.)?current_(milli_?|micro_?)?time(_ms)?")
_MODEL = re.compile(r"(\w+_)?(model|net)")


def _waits(call: Call) -> bool:
    return call.method in _WAITS or "sync" in call.method or call.text.lower().endswith("scaler.step")


def _between_phases(module: Module, calls: list[Call]) -> Iterator[Hit]:
    """Readings of the clock in a step after work that was only queued; if all stand at its end, the mean is right."""
    models = {wrap.text for wrap in wraps(module)}
    found: list[Call] = []
    running, begun, phases = False, False, False
    bound = {call.place.stmt: call.place.targets for call in calls}
    texts = [text_of(target) for targets in bound.values() for target in targets]
    starts: list[str] = []
    # calls run in the order of their ends: the arguments first
    for call in sorted(calls, key=lambda call: (call.node.end_lineno or 0, call.node.end_col_offset or 0)):
        if _waits(call) or any(map(_waits, module.inside(call))):
            phases, running = phases or begun, False
        elif call.method in {"backward", "step"} or call.text in models or _MODEL.fullmatch(call.text):
            running, phases = True, bool(found)
        elif _CLOCK.fullmatch(call.name or call.text):
            if running:
                found.append(call)
                # what was started in this step, and is read before the step waits, leaves the waiting out
                begun = begun or bool(starts and texts.count(starts[-1]) == 1)
            elif call.targets:
                starts.append(text_of(call.targets[0]))
    if phases and found:
        # what is bound to a name that nothing reads measures nothing
        walked = (part for part in ast.walk(found[0].place.scope.node) if isinstance(part, ast.Name))
        read = {part.id for part in walked if isinstance(part.ctx, ast.Load)}
        for call in found:
            targets = [part.id for part in call.place.targets if isinstance(part, ast.Name)]
            if not targets or read & set(targets):
                yield Hit(call.node)


@Rule(
    "RW310", "local-metric", "info", "medium",
    message="a number of the main rank alone is reported as if it were that of all",
    why="Each rank has its own share of the data; its loss is the mean over that share. Reduce it first.",
    example=HEAD + """
 def report(loss):
+    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
     if dist.get_rank() == 0:
         print("loss", loss.item())
""",
    ignore="a rough number is enough.",
)  # fmt: skip
def local_metric(module: Module) -> Iterator[Hit]:
    """Print or log of loss.item() under a test of the rank in a file without any reduction."""
    if not is_distributed(module) or module.has_call(
        "all_reduce", "reduce", "all_gather", "reduce_dict", "reduce_tensor"
    ):
        return
    for call in module.methods("item"):
        if call.place.side == "main" and re.search("loss|acc", call.base) and names_in(call.node):
            yield Hit(call.node)
