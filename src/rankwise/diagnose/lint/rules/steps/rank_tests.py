"""RW402, RW403: tests of the rank: who leaves by them, and whether they are asked at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.collective_calls import collective_after, collectives
from rankwise.diagnose.lint.analysis.effects import runs_ranks
from rankwise.diagnose.lint.analysis.facts import (
    RANKS,
    effective_side,
    has_framework,
    is_const,
    loops_around,
    loops_of_epochs,
    loops_that_train,
    runs_on_several,
)
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, names_in, nodes_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place, Scope
from rankwise.diagnose.lint.analysis.shares import is_own_at
from rankwise.diagnose.lint.analysis.wrapped import WRAPPERS, wraps
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule


@Rule(
    "RW402", "rank-dependent-exit", "error", "medium",
    message="{what} leaves the {of} on {ranks} only; the others wait for it in the next collective",
    why="Each backward pass of DDP is a collective. A rank that leaves the loop by itself leaves the others waiting. Decide on "
    "one rank, broadcast the decision, leave together.",
    example=HEAD + """
 def train(model, loader, optimizer, stopper):
     model = DDP(model)
     for x in loader:
         loss = model(x).sum()
         loss.backward()
         optimizer.step()
-        if dist.get_rank() == 0 and stopper.should_stop(loss):
+        stop = torch.tensor(stopper.should_stop(loss))
+        dist.broadcast(stop, src=0)
+        if stop:
             break
""",
    ignore="the other ranks leave at the same step by another way.",
)  # fmt: skip
def rank_dependent_exit(module: Module) -> Iterator[Hit]:
    """Break or return under a test of the rank, inside a loop that trains or before a collective further on."""
    loops = loops_that_train(module) | {
        call.place.loops[-1] for call in collectives(module) if call.place.loops and call.place.side is None
    }
    yield from _left_programs(module, loops)
    for place in (place for scope in module.scopes for place in scope.exits):
        node, branch = place.stmt, place.guard
        word = type(node).__name__.lower()
        if _after_own_error(module, place):
            what = f"{word} after an error of this rank alone"
            yield Hit(node, {"what": what, "of": "step", "ranks": "some ranks"})
        elif not isinstance(node, ast.Break | ast.Return):
            continue
        elif branch is None:
            name = _own_number(module, place, loops, place.loops[-1:])
            by = "a number of this rank's own batches" if name else "which only the main rank sets"
            if name := name or _decided_by_one(module, place, loops):
                yield Hit(node, {"what": f"{word} on {name}, {by},", "of": "training loop", "ranks": "some ranks"})
        # what follows a plain `if rank == 0: return` runs on one side only: RW401 looks at that
        elif not place.loops and place.branches[-1] is not branch and collective_after(module, place):
            yield Hit(node, {"what": "return", "of": "function", "ranks": RANKS[branch.side or "main"]})
        else:
            left = place.loops[-1:] if isinstance(node, ast.Break) else place.loops
            if (loops | loops_of_epochs(module)) & {loop for loop in left if _within(branch.node, loop)}:
                yield Hit(node, {"what": word, "of": "training loop", "ranks": RANKS[branch.side or "main"]})


def _left_programs(module: Module, loops: set[ast.stmt]) -> Iterator[Hit]:
    """Yield the exits of the program on one rank, or on a number of this rank's own."""
    for call in module.methods("exit", "_exit"):
        guard = call.place.guard
        test = None if guard is None else guard.test
        alone = call.place.side == "main" and (isinstance(test, ast.BoolOp) or call.place.branches[-1] is not guard)
        if alone and call.text in {"exit", "sys.exit", "os._exit"} and _goes_on(module, call.place):
            yield Hit(call.node, {"what": call.text, "of": "program", "ranks": RANKS["main"]})
        # the launcher ends the others where one fails, not where one ends well
        well = call.text in {"exit", "quit", "sys.exit"} and all(is_const(part, 0) for part in call.node.args)
        if well and call.place.side is None and (name := _own_number(module, call.place, loops, call.place.loops)):
            what = f"{call.text} on {name}, a number of this rank's own batch,"
            yield Hit(call.node, {"what": what, "of": "program", "ranks": "some ranks"})


def _after_own_error(module: Module, place: Place) -> bool:
    """Whether a loop with collectives is left, or a step of it left out, after an error that other ranks need not have."""
    node = place.stmt
    if not place.tries or not place.loops or isinstance(node, ast.Raise) or has_framework(module) or not wraps(module):
        return False
    for block in place.tries:
        handlers = block.handlers if isinstance(block, ast.Try) else []
        own = [each for each in handlers if any(part is node for stmt in each.body for part in ast.walk(stmt))]
        returns = isinstance(node, ast.Return)
        memory = [each for each in own if _OF_MEMORY.search(ast.unparse(each)) or (_catches_all(each) and not returns)]
        if memory:
            inside = [call for call in module.calls if block in call.place.tries]
            backward = any(call.method == "backward" or _calls_backward(module, call) for call in inside)
            shared = any(_SHARED.search(call.method) for call in inside if position(call.node) > position(memory[0]))
            if backward and not shared:
                return True
    return False


def _catches_all(handler: ast.ExceptHandler) -> bool:
    """Whether any error ends here, and none is raised again."""
    kept = not any(isinstance(part, ast.Raise) for part in ast.walk(handler))
    all_of_it = handler.type is None or re.search(r"\b(Exception|RuntimeError)\b", ast.unparse(handler.type))
    return kept and bool(all_of_it)


# an error of one rank alone
_OF_MEMORY = re.compile(r"^except [^\n]*(OutOfMemory|RuntimeError.*out of memory)", re.DOTALL)


def _calls_backward(module: Module, call: Call, depth: int = 2) -> bool:
    inner = module.inside(call) if depth else ()
    return any(each.method == "backward" or _calls_backward(module, each, depth - 1) for each in inner)


def _goes_on(module: Module, place: Place) -> bool:
    """Whether what stands further down in a function trains: the ranks that get there wait for the others."""
    others = (call for call in place.scope.calls if not call.place.side)
    again = place.loops[:1]  # what stands above comes again
    later = [
        call for call in others if position(call.node) > position(place.stmt) or call.place.loops[:1] == again != ()
    ]
    inside = [inner for call in later for inner in module.inside(call)]
    return any(call.method in {"backward", "prepare", "barrier"} or call.name in WRAPPERS for call in [*later, *inside])


def _own_number(module: Module, place: Place, loops: set[ast.stmt], left: tuple[ast.stmt, ...]) -> str:
    """Return what decides to leave a loop of training, if it follows from this rank's own batches; else ""."""
    if not left or not place.branches or not runs_ranks(module) or runs_on_several(module):
        return ""
    around = next((loop for loop in reversed(left) if loop in loops | loops_of_epochs(module)), None)
    branch = place.branches[-1]
    if around is None or not _within(branch.node, around):
        return ""
    own = [part for part in ast.walk(branch.test) if isinstance(part, ast.Name | ast.Attribute | ast.Call)]
    return next((ast.unparse(part) for part in own if is_own_at(module, part, place)), "")


def _decided_by_one(module: Module, place: Place, loops: set[ast.stmt]) -> str:
    """Return the name by which all ranks leave a loop of training, where only the main rank changes it in the loop."""
    left = _trained_loop(module, place, loops)
    for part in ast.walk(place.branches[-1].test) if left is not None else ():
        if not isinstance(part, ast.Name | ast.Attribute):
            continue
        text = text_of(part)
        # `stopper(loss)` and `stopper.step(loss)` change stopper.early_stop
        owner = text.rpartition(".")[0] if isinstance(part, ast.Attribute) else text
        changes = [found.place for found in module.bindings if found.text == text]
        asked = (call for call in module.calls if owner not in {"", "self"} and owner in {call.text, call.base})
        changes += [call.place for call in asked if call.node.args]
        here = {place.stmt, place.branches[-1].node}
        inside = [at for at in changes if left in at.loops and at.scope is place.scope and at.stmt not in here]
        looped = [call for call in module.calls if left in call.place.loops]
        told = (call for call in looped if any(_SHARED.search(each.method) for each in (call, *module.inside(call))))
        words = {last(text), owner} - {"", "self"}
        named = (names_in(call.node) | names_in(getattr(module.local_function(call), "node", None)) for call in told)
        shared = any(words & names for names in named)
        inside += _set_from_outside(module, text, place)
        if inside and not shared and all(effective_side(module, each) == "main" for each in inside):
            return text
    return ""


def _set_from_outside(module: Module, text: str, place: Place) -> list[Place]:
    """Return where objects of other classes set a field of this one: ``trainer.should_stop = True`` in a callback."""
    mine = module.class_of("self", place.scope) if text.startswith("self.") else None
    name = text.removeprefix("self.")
    others = (each for each in module.bindings if mine is not None and each.text.endswith(f".{name}"))
    apart = ((each.text.removesuffix(f".{name}"), each.place) for each in others)
    lineage = module.lineage(mine) if mine is not None else []
    return [at for base, at in apart if base not in {"self", "cls"} and module.class_of(base, at.scope) in lineage]


def _trained_loop(module: Module, place: Place, loops: set[ast.stmt]) -> ast.stmt | None:
    """Return the loop that a place leaves by a test in it, if that loop, or one inside it, trains."""
    if not place.branches or not place.loops or has_framework(module):
        return None
    left, around = place.loops[-1], loops_around(module)
    trained = left in loops_of_epochs(module)
    trained |= any(left is loop or left in around[loop][1] for loop in loops)
    return left if trained and place.branches[-1].node in ast.walk(left) else None


_SHARED = re.compile(r"broadcast|reduce|gather|sync|share|bcast|object_list", re.IGNORECASE)


def _within(inner: ast.stmt, outer: ast.stmt) -> bool:
    assert outer.end_lineno is not None
    return position(outer) < position(inner) and inner.lineno <= outer.end_lineno


_PREDICATES = {
    "torch.distributed.is_initialized",
    "torch.distributed.is_available",
    "torch.distributed.is_torchelastic_launched",
    "torch.distributed.is_nccl_available",
    "torch.cuda.is_available",
    "torch.cuda.is_bf16_supported",
}
_NUMBERS = {"torch.distributed.get_rank", "torch.distributed.get_world_size", "torch.distributed.get_node_local_rank"}


@Rule(
    "RW403", "uncalled-rank-guard", "error", "high",
    message="{name} is a function and is not called here: the test is always {result}",
    why="A function object is true, and equal to no number, on every rank: all of them run what was meant for one, or none.",
    example=HEAD + """
 def is_main_process():
     return dist.get_rank() == 0

 def save(model, path):
-    if is_main_process:
+    if is_main_process():
         torch.save(model.state_dict(), path)
""",
    fix="safe",
)  # fmt: skip
def uncalled_rankguard_of(module: Module) -> Iterator[Hit]:
    """A function that answers yes or no, used as the answer itself."""
    for branch in module.branches:
        for part in _operands(branch.test):
            text = text_of(part)
            name = module.imports.resolve(text) or ""
            function = _function(module, text)
            tested = re.search(r"^(is|on|am)_|main|master|rank|chief", last(text))
            if name in _PREDICATES or (function is not None and tested) or _called_elsewhere(module, text, name):
                yield Hit(part, {"name": text, "result": "true"}, _called(module, part))
        for found in nodes_in(branch.test):
            # `get_rank == 0` compares the function itself with a number
            if isinstance(found, ast.Compare) and isinstance(found.ops[0], ast.Eq | ast.NotEq):
                text, number = text_of(found.left), found.comparators[0]
                asked = module.imports.resolve(text) in _NUMBERS or _function(module, text) is not None
                if asked and isinstance(number, ast.Constant) and isinstance(number.value, int):
                    result = "true" if isinstance(found.ops[0], ast.NotEq) else "false"
                    yield Hit(found.left, {"name": text, "result": result}, _called(module, found.left))


def _called(module: Module, node: ast.expr) -> Fix | None:
    """Return the edit that calls a function without arguments; None if it takes some."""
    text = text_of(node)
    function = _function(module, text)
    end = module.span(node)[1]
    return Fix(f"call {text}()", (Edit(end, end, "()"),)) if function is None or not function.params else None


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the names of a test, behind `not`, `and` and `or`."""
    if isinstance(test, ast.Name | ast.Attribute):
        yield test
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value)


def _function(module: Module, text: str) -> Scope | None:
    """Return the function at the top of the file that a name means and nothing else is bound to."""
    scope = module.top.functions.get(text)
    if (
        scope is None
        or not scope.is_function
        or any(text in found.bindings or text in found.params for found in module.scopes)
    ):
        return None
    return scope


_COPIED = ("is_main_process", "is_master_process", "is_rank_zero")


def _called_elsewhere(module: Module, text: str, name: str) -> bool:
    """Whether an imported test of the rank is called in other places of the file."""
    tested = re.search(r"^is_.*(main|master|rank|chief)", last(text))
    if not tested or not name or name.startswith("?"):
        return False
    # the helper of that name that many projects have copied from each other is a function
    return text in _COPIED or any(call.text == text for call in module.methods(last(text)))
