"""RW314: numbers of an evaluation that each rank has made of its own share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import runs_on_several
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import called, last, names_in, text_of, texts_in
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.shares import evaluations, is_of_share, is_reduction, reduces
from rankwise.diagnose.lint.record import Hit, Rule

_METER = re.compile(r"(Avg|Average|Averager|RunningAverage|Running|Loss|Acc)_?(Meter|Averager)?s?", re.IGNORECASE)
_TIMES = re.compile(r"time|elapsed|duration|latenc|speed|fps|memory", re.IGNORECASE)
_COUNTS = re.compile(r"correct|right|good|hits?$|acc|num_|tot|err|loss|dice|iou|score|top1", re.IGNORECASE)


@Rule(
    "RW314", "evaluation-of-share", "warning", "medium",
    message="{what} is that of this rank's share of the data, and is taken for that of all",
    why="Each rank evaluates its own part. What one of them prints, or decides by, depends on the number of ranks and leaves most "
    "of the data out. Add up sums and counts over the ranks first; Lightning's log takes sync_dist=True.",
    example="""
 import torch
 import torch.distributed as dist
 from torch.utils.data import DataLoader
 from torch.utils.data.distributed import DistributedSampler

 def evaluate(model, held_out):
     loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
-    correct = seen = 0
+    counts = torch.zeros(2)
     with torch.no_grad():
         for x, y in loader:
-            correct += (model(x).argmax(1) == y).sum().item()
-            seen += len(y)
-    return correct / seen
+            counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
+    dist.all_reduce(counts)
+    return counts[0] / counts[1]
""",
    ignore="a rough number is enough, or what calls this adds the shares up.",
)  # fmt: skip
def evaluation_of_share(module: Module) -> Iterator[Hit]:
    """A number of a loader that is shared out, which nothing adds up on its way."""
    yield from _logged_by_lightning(module)
    for loop, scope in evaluations(module):
        numbers = sorted(_results(module, loop, scope), key=position)
        numbers.sort(key=lambda each: each.lineno <= (loop.end_lineno or 0))  # what is shown in the loop counts less
        if (
            numbers
            and not reduces(module, scope, summed=isinstance(numbers[0], ast.BinOp))
            and is_of_share(module, loop, scope)
            and not _reduced_by_callers(module, scope)
        ):
            yield Hit(numbers[0], {"what": ast.unparse(numbers[0])})


_MODELS = re.compile(r"loss|criterion|objective|model|net|forward|backbone|head|coder", re.IGNORECASE)
_EVALUATES = re.compile(r"(validation|test)_step|on_(validation|test)_epoch_end")


def _logged_by_lightning(module: Module) -> Iterator[Hit]:
    """Yield the first number of an evaluation that Lightning, on several devices, logs without sync_dist=True."""
    seen = set[Scope]()
    for call in module.methods("log", "log_dict") if runs_on_several(module) else ():
        scope, value = call.place.scope, call.argument("value", 1) if call.method == "log" else call.node
        if call.base != "self" or not _EVALUATES.fullmatch(scope.name) or scope in seen or call.is_open:
            continue
        # torchmetrics add up over the ranks by themselves; so does what a function here reduces
        made = module.value(value, scope)
        parts = [part for node in (value, made) if node is not None for part in ast.walk(node)]
        fields = [text_of(part) for part in parts if isinstance(part, ast.Attribute) and part is not call.node.func]
        held = any(text.startswith("self.") and not _MODELS.search(last(text)) for text in fields)
        if call.keyword("sync_dist") or held or reduces(module, scope):
            continue
        seen.add(scope)
        yield Hit(call.node.func, {"what": ast.unparse(value) if value is not None else call.text})


def _results(module: Module, loop: ast.For, scope: Scope) -> Iterator[ast.expr]:
    """Yield what is made of the sums, lists and meters of a loop behind it."""
    counted, listed = set(), set()
    for part in (part for stmt in loop.body for part in ast.walk(stmt)):
        if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add):
            counted.add(last(text_of(part.target)))
            if isinstance(part.value, ast.BinOp) and _is_read_as_mean(part.target, part.value, loop, scope):
                yield part.value
        elif isinstance(part, ast.Call) and called(part) in {"append", "extend", "update"}:
            listed.add(text_of(part.func).rpartition(".")[0])
    end = loop.end_lineno or loop.lineno
    for binding in scope.bound:
        source = binding.value.generators[0].iter if isinstance(binding.value, ast.ListComp) else None
        if source is not None and source.lineno > end and text_of(source) in listed:
            listed.add(binding.text)
    derived = _made_of(scope, listed, end)
    for part in ast.walk(scope.node):
        if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Div) and part.lineno > end:
            if _is_count(part.target, counted):  # `loss /= len(loader)`
                yield part.target
            continue
        if not isinstance(part, ast.expr) or part.lineno <= loop.lineno:
            continue
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div | ast.FloorDiv):
            if _is_count(part.left, counted) or (part.lineno > end and _is_sum(part.left, part.right, listed)):
                yield part
        elif part.lineno <= end:
            continue
        elif isinstance(part, ast.Call) and (_is_mean(part, derived) or _is_score(module, part, listed)):
            yield part
        elif isinstance(part, ast.Attribute) and part.attr in {"avg", "average", "global_avg"}:
            text = text_of(part.value)
            if text in listed and _is_meter(module, text, scope):
                yield part


def _is_read_as_mean(target: ast.expr, value: ast.BinOp, loop: ast.For, scope: Scope) -> bool:
    """Whether ``mean += loss / num_batches`` adds a mean up in a loop, and a call, or the result, takes it behind that."""
    name = text_of(target)
    counts = isinstance(value.op, ast.Div) and re.search(r"\blen\(|num|count|steps|total", ast.unparse(value.right))
    if not counts or not _COUNTS.search(name):
        return False
    shown = (part for part in ast.walk(scope.node) if isinstance(part, ast.Call | ast.Return))
    return any(part.lineno > (loop.end_lineno or 0) and last(name) in names_in(part) for part in shown)


def _is_count(node: ast.expr, counted: set[str]) -> bool:
    """Whether a dividend is one of the sums of a loop, by whatever factor."""
    names = names_in(node) & counted
    return any(_COUNTS.search(name) for name in names)


def _is_sum(node: ast.expr, by: ast.expr, listed: set[str]) -> bool:
    """Whether it is ``sum(losses)`` of a list that a loop fills, divided by its length or by a number of losses."""
    if not isinstance(node, ast.Call) or text_of(node.func) not in {"sum", "np.sum"} or not node.args:
        return False
    text, whole = text_of(node.args[0]), ast.unparse(node.args[0])
    return text in listed and (ast.unparse(by) == f"len({whole})" or _COUNTS.search(text) is not None)


def _made_of(scope: Scope, listed: set[str], end: int) -> set[str]:
    """Return the lists that a loop fills, and what is computed from them behind it."""
    found = set(listed)
    bound = [each for each in scope.bound if each.place.stmt.lineno > end]
    for binding in sorted(bound, key=lambda each: position(each.place.stmt)):
        if texts_in(binding.value) & found:
            found.add(binding.text)
    return found


def _is_mean(node: ast.Call, derived: set[str]) -> bool:
    """Whether it is one number, ``np.mean(losses)`` or ``torch.cat(hits).float().mean()``, of what a loop has put into lists."""
    if called(node) not in {"mean", "nanmean", "average", "fmean"} or node.keywords:
        return False
    inner = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None
    inner = inner or (node.args[0] if len(node.args) == 1 and not isinstance(node.args[0], ast.Constant) else None)
    # each rank may tell how long it took
    return inner is not None and any(not _TIMES.search(text) for text in texts_in(inner) & derived)


def _is_score(module: Module, node: ast.Call, listed: set[str]) -> bool:
    """Whether scikit-learn is given the labels and the answers that a loop has put into lists."""
    names = [names_in(part) & {last(text) for text in listed} for part in node.args[:2]]
    return module.made_by(node).startswith("sklearn.metrics.") and len(names) == 2 and all(names)


def _is_meter(module: Module, text: str, scope: Scope) -> bool:
    """Whether a name is a meter that adds up on one rank, as far as is seen."""
    bound = list(module.bindings_of(text, scope))
    made = [found.seen or found.made for found in bound]
    makers = [text_of(value.func) for value in made if isinstance(value, ast.Call)]
    if not made or len(makers) < len(made) or not all(_METER.fullmatch(last(text)) for text in makers):
        return False
    owners = (module.top.functions[text] for text in makers if text in module.top.functions)
    return not any(reduces(module, method) for owner in owners for method in owner.functions.values())


def _reduced_by_callers(module: Module, scope: Scope, depth: int = 2) -> bool:
    """Whether what calls an evaluation may add up what it returns; where it does not show, by any call of the file."""
    callers = module.callers(scope)
    if not callers:
        return any(is_reduction(module, call, 0) for call in module.calls if call.place.scope is not scope)
    return any(_reduced_behind(module, call, scope, depth) for call in callers)


def _reduced_behind(module: Module, call: Call, scope: Scope, depth: int = 2) -> bool:
    """Whether the function that calls an evaluation, or its own caller, may add up what it gets."""
    outer, stmt = call.place.scope, call.place.stmt
    targets: list[ast.expr | None] = [*call.place.targets, getattr(stmt, "target", None)]
    names = {name for target in targets for name in names_in(target)} - {"self"}
    names |= {last(text) for text in scope.bindings if text.startswith("self.")}
    for _ in range(3):
        names |= {
            last(found.text) for found in outer.bound if names_in(getattr(found.place.stmt, "value", None)) & names
        }
    handed_on = any(call.node in ast.walk(value) or names_in(value) & names for value in outer.returned)
    if depth and handed_on and module.callers(outer) and _reduced_by_callers(module, outer, depth - 1):
        return True
    behind = [found for found in outer.calls if position(found.node) > position(call.node)]
    inside = [found for found in outer.calls if found.place.stmt is stmt and found is not call]
    inside += [found for found in behind if names_in(found.node) & names]
    return any(is_reduction(module, found) for found in inside)
