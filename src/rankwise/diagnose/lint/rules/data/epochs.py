"""RW103: samplers that nobody tells the epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    HELD_OUT,
    LOADER,
    SAMPLER,
    has_framework,
    is_const,
    is_fixed,
    loops_around,
    loops_that_train,
)
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import called, last, names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Binding, Call, Scope
from rankwise.diagnose.lint.analysis.shares import gone_through
from rankwise.diagnose.lint.analysis.values import READERS, names_of
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule

# what has an epoch of its own, and tells no sampler
_OF_DATA = re.compile(
    r"(data_?set|_set|_ds|collat\w*|transform\w*|criterion|loss\w*|scheduler|model)$|^ds$", re.IGNORECASE
)


def _epoch_name(module: Module, loop: ast.stmt) -> str | None:
    """Return the name that counts epochs, "" where a `while` counts them; None where a loop counts something else."""
    if isinstance(loop, ast.While):
        return "" if "epoch" in ast.unparse(loop.test).lower() else None
    if not isinstance(loop, ast.For):
        return None
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
    if not isinstance(target, ast.Name):
        return None
    bound = [found.value for found in module.bindings if isinstance(loop.iter, ast.Name) and found.text == loop.iter.id]
    counts = bound[-1] if bound and bound[-1] is not None else loop.iter
    counts = counts.body if isinstance(counts, ast.IfExp) else counts
    counted = called(counts) in {"range", "trange", "count", "tqdm"}
    epochs = "epoch" in target.id.lower() or (counted and "epoch" in ast.unparse(counts).lower())
    return target.id if epochs else None


def _shuffles(module: Module, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a sampler shuffles: by default, as told, for the part that trains, or as one of its callers tells."""
    if node is None or isinstance(node, ast.Constant):
        return node is None or node.value is True
    if isinstance(node, ast.Name) and scope.is_function and node.id in scope.params and node.id not in scope.bindings:
        given = [part for _, part in module.given(scope, node.id)]
        return any(is_const(part or scope.default(node.id), True) for part in given)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return any(HELD_OUT.search(name) for name in names_in(node.operand))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        told = node.comparators[0].value if isinstance(node.comparators[0], ast.Constant) else None
        return isinstance(node.ops[0], ast.Eq) and told in {"train", "training"}
    return isinstance(node, ast.Name | ast.Attribute) and re.search(r"(^|_)train", last(text_of(node))) is not None


@Rule(
    "RW103", "missing-set-epoch", "warning", "high",
    message="the sampler is never told the epoch: every epoch has the same order",
    why="DistributedSampler shuffles by (seed, epoch); without set_epoch(epoch) the epoch stays 0, and so does the order.",
    example="from torch.utils.data.distributed import DistributedSampler\n" + HEAD + """
 def train(dataset, model, criterion, optimizer):
     sampler = DistributedSampler(dataset)
     loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
     for epoch in range(10):
+        sampler.set_epoch(epoch)
         for x, y in loader:
             criterion(model(x), y).backward()
             optimizer.step()
""",
    ignore="there is one epoch only, or the same order is wanted.",
    fix="safe",
)  # fmt: skip
def missing_set_epoch(module: Module) -> Iterator[Hit]:
    """A shuffling sampler, a loop over epochs in the same file, and nothing that could tell it the epoch."""
    calls = [call for call in module.methods("set_epoch") if not _OF_DATA.search(last(call.base))]
    for call in calls:
        counted = any(isinstance(loop, ast.For) and "range" in names_in(loop.iter) for loop in call.place.loops)
        given, scope = call.argument("epoch", 0), call.place.scope
        fixed = given is not None and is_fixed(module, given, scope)
        same = fixed or _is_total(module, given, scope)
        if (fixed and counted) or (same and _is_above(module, call, calls)) or _tells_the_start(module, call):
            yield Hit(call.node)
    told = "set_epoch" in module.attributes and not module.has_call("set_epoch")
    told = told or any(found.text.endswith("sampler.epoch") for found in module.bindings)
    if told or SAMPLER not in module.by_name or _sets_epochs(module):
        return
    loops = [loop for loop in _epoch_loops(module) if not _runs_once(loop)]
    here = bool(loops) or _goes_on_for_ever(module)
    for call in module.named(SAMPLER):
        shuffles = not call.is_open and _shuffles(module, call.argument("shuffle", 3), call.place.scope)
        told = bool(calls) and not _is_passed_over(module, call)
        if not shuffles or told or not (here or _is_trained_outside(module, call)):
            continue
        found = (found for found in module.bindings if found.value is not None and call.node in ast.walk(found.value))
        bound = next(found, None)
        name = "" if bound is None else last(bound.text)
        data = call.argument("dataset", 0)
        if HELD_OUT.search(name) or (data is not None and HELD_OUT.search(ast.unparse(data))):
            continue
        yield Hit(call.node.func, {}, _set_epoch_fix(module, bound, loops))


def _is_passed_over(module: Module, sampler: Call) -> bool:
    """Whether a function makes a sampler and trains on it, and only others, which do not get it, tell theirs the epoch."""
    scope, around = sampler.place.scope, loops_around(module)
    names = {text_of(part) for part in sampler.place.targets if isinstance(part, ast.Name)}
    made = [call for call in module.named(LOADER) if call.place.scope is scope and names & names_in(call.node)]
    names |= {text_of(part) for call in made for part in call.place.targets}
    trained = (loop for loop in loops_that_train(module) if around[loop][0] is scope)
    if not scope.is_function or not any(names & gone_through(module, loop) for loop in trained):
        return False
    given = [call for call in scope.calls if names & set(map(text_of, call.given))]
    plain = {LOADER, "len", *READERS, "next"}
    others = [call for call in given if module.local_function(call) or not {call.name, call.method} & plain]
    inside = (call for each in others for call in module.inside(each))
    told = any(call.method == "set_epoch" for call in inside) or any(names & names_in(each) for each in scope.returned)
    told = told or any(scope in call.place.scope.chain() for call in module.methods("set_epoch"))
    return not told and all(map(module.local_function, others))


def _is_trained_outside(module: Module, call: Call) -> bool:
    """Whether a function with a sampler is called by a given file that has a loop over epochs, and tells no epoch."""
    users = module.outside_callers(call.place.scope)
    if any(user.has_call("set_epoch") or _sets_epochs(user) for user, _ in users):
        return False
    return any(not _runs_once(loop) for user, _ in users for loop in _epoch_loops(user))


def _is_total(module: Module, given: ast.expr | None, scope: Scope) -> bool:
    """Whether what a sampler is told is how many epochs there are."""
    loops = [loop.iter for loop in _epoch_loops(module) if isinstance(loop, ast.For) and called(loop.iter) == "range"]
    ends = (module.value(each.args[-1], scope) for each in loops if isinstance(each, ast.Call) and each.args)
    told = module.value(given, scope)
    return told is not None and ast.unparse(told) in {ast.unparse(each) for each in ends if each is not None}


def _is_above(module: Module, call: Call, calls: list[Call]) -> bool:
    """Whether the one call for a sampler stands above the loop over epochs."""
    if len(calls) > 1 or call.place.loops or HELD_OUT.search(call.base):
        return False
    around = loops_around(module)
    loops = (loop for loop in _epoch_loops(module) if not _runs_once(loop))
    return any(around[loop][0] is call.place.scope and position(loop) > position(call.node) for loop in loops)


def _tells_the_start(module: Module, call: Call) -> bool:
    """Whether a loop ``for epoch in range(start, ...)`` tells the sampler its start."""
    given, scope = call.argument("epoch", 0), call.place.scope
    text = text_of(given) if isinstance(given, ast.Name | ast.Attribute) else ""
    # a field means the same in the function that the loop calls
    outer = module.callers(scope) if text.startswith("self.") and scope.is_function else []
    loops = [loop for each in (call, *outer) for loop in each.place.loops if isinstance(loop, ast.For)]
    if not any(ast.unparse(loop.iter).startswith(f"range({text}, ") and text_of(loop.target) != text for loop in loops):
        return False
    changed = (found.place for found in module.bindings if found.text == text)
    return not any(place.loops or isinstance(place.stmt, ast.AugAssign) for place in changed)


def _sets_epochs(module: Module) -> bool:
    """Whether a library that tells samplers the epoch, or may, is imported; these do not."""
    others = ("deepspeed", "horovod", "ray", "smdistributed", "torch_xla")
    return has_framework(module) and not module.imports.uses(*others)


def _epoch_loops(module: Module) -> list[ast.stmt]:
    """Return loops over epochs that train: a backward pass inside, or a call of what has one or is named like it."""
    found: set[ast.stmt] = set()
    around = loops_around(module)
    for loop in loops_that_train(module):
        scope, outer = around[loop]
        found |= {each for each in outer if _epoch_name(module, each) is not None or _repeats(module, loop, each)}
        calls = module.callers(scope) if scope.is_function else []
        found |= {each for call in calls for each in call.place.loops if _epoch_name(module, each) is not None}
    for call in module.calls:
        if call.place.loops and re.search(r"(^|_)(train|fit)|run_epoch|one_epoch", call.method):
            counted = _epoch_name(module, call.place.loops[-1]) is not None
            if counted and (call.method != "train" or call.given or call.base in {wrap.text for wrap in wraps(module)}):
                found.add(call.place.loops[-1])
    return sorted(found, key=position)


_ENDLESS = re.compile(r"(^|_)(inf|infinite|endless|forever|cycle)(_|$)|^(Infinite|Endless|Cycl)")


def _goes_on_for_ever(module: Module) -> bool:
    """Whether a loader for training is given to what begins it again at its end: `next(batches)` has no epoch."""
    loaders = {last(found.text) for found in module.bindings if module.made_by(found.value) == LOADER}
    loaders = {name for name in loaders if not HELD_OUT.search(name)}
    endless = (call for call in module.calls if _ENDLESS.search(call.method))
    given = {name for call in endless for part in call.node.args[:1] for name in names_in(part)}
    return bool(loaders & given) and module.has_call("backward")


def _repeats(module: Module, loop: ast.stmt, outer: ast.stmt) -> bool:
    """Whether a `while`, or a loop over plain numbers, whatever they are called, goes through a loader again and again."""
    counts = outer.iter if isinstance(outer, ast.For) else None
    repeats = isinstance(outer, ast.While) or called(counts) in {"range", "trange"}
    if not repeats or not isinstance(loop, ast.For):
        return False
    return any(names_of(module, call) & gone_through(module, loop) for call in module.named(LOADER))


def _runs_once(loop: ast.stmt) -> bool:
    counts = loop.iter if isinstance(loop, ast.For) else None
    return isinstance(counts, ast.Call) and len(counts.args) == 1 and is_const(counts.args[0], 1)


def _set_epoch_fix(module: Module, bound: Binding | None, loops: list[ast.stmt]) -> Fix | None:
    """Return the insertion of set_epoch at the head of the loop over epochs, where sampler and loop share a function."""
    if bound is None or bound.value is None or not isinstance(bound.value, ast.Call) or bound.place.branches:
        return None
    for loop in loops:
        epoch = _epoch_name(module, loop)
        inside = any(loop in found.place.loops and found.place.scope is bound.place.scope for found in module.calls)
        if inside and epoch and isinstance(loop, ast.For) and position(loop) > position(bound.value):
            first = loop.body[0]
            at = module.offset(first.lineno, 0)
            indent = module.source[at : module.span(first)[0]]
            if indent.strip():
                return None
            text = f"{indent}{bound.text}.set_epoch({epoch})\n"
            return Fix(f"call {bound.text}.set_epoch({epoch})", (Edit(at, at, text),))
    return None
