"""Facts about a module that several rules ask for: which libraries run it, which loops train, who comes where."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.guards import Side
from rankwise.diagnose.lint.analysis.module import Module, once
from rankwise.diagnose.lint.analysis.names import called, names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Branch, Call, Place, Scope
from rankwise.diagnose.lint.analysis.wrapped import WRAPPERS, wraps
from rankwise.diagnose.lint.record import Edit

GROUP = "torch.distributed.init_process_group"
SAMPLER = "torch.utils.data.distributed.DistributedSampler"
LOADER = "torch.utils.data.DataLoader"
FABRICS = ("lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric")
RANKS = {"main": "the main rank", "other": "ranks other than the main one"}
HELD_OUT = re.compile(r"val|test|eval|dev", re.IGNORECASE)
# names of functions that run a model and do not train it
NO_TRAINING = re.compile(r"eval|valid|test|infer|predict|sample|generate|bench|visuali|export", re.IGNORECASE)
_FRAMEWORKS = (
    "accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod", "ray", "composer", "colossalai",
    "ignite", "catalyst", "mmengine", "mmcv", "mmcv.runner", "torch_xla", "fastai", "megatron", "bagua",
    "smdistributed",
)  # fmt: skip
_TURNS = re.compile(r"first|rank_?zero|(main|master)_?(process|rank)?_|lock|one_at_a_time", re.IGNORECASE)


@once
def is_distributed(module: Module) -> bool:
    """Whether the file itself speaks of several ranks in torch's words: a wrap, a group or a collective."""
    return any(name.startswith("torch.distributed.") or name in {*WRAPPERS, SAMPLER} for name in module.by_name)


@once
def has_framework(module: Module) -> bool:
    """Whether a library that does parts of this by itself is imported, and the file does not do all of it."""
    if wraps(module) and GROUP in module.by_name:
        return False
    trainer = any(name.startswith("transformers.") and "Trainer" in name for name in module.imports.bound.values())
    return trainer or module.imports.uses(*_FRAMEWORKS)


def calls_framework(module: Module) -> bool:
    """Whether such a library is called here, too: an import that nothing uses chooses no device."""
    return has_framework(module) and any(
        "Trainer" in name or name.startswith(tuple(f"{each}." for each in _FRAMEWORKS)) for name in module.by_name
    )


def runs_alone(module: Module) -> bool:
    """Whether the group that a file starts is said to be of one process."""
    sizes = [call.argument("world_size", 3) for call in module.named(GROUP)]
    return bool(sizes) and all(is_const(size, 1) for size in sizes)


@once
def spawns(module: Module) -> list[Call]:
    """Return the calls that start ranks as processes of this one."""
    found = list(module.named("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"))
    for call in module.methods("Process"):
        target = module.top.functions.get(text_of(call.argument("target") or call.node.func))
        if target and any(each.name == GROUP for each in target.calls):
            found.append(call)
    return found


def is_handed_over(module: Module, scope: Scope) -> bool:
    """Whether a function is given by its name to what starts ranks with it."""
    starters = module.methods("spawn", "start_processes", "Process", "launch", "notebook_launcher", "elastic_launch")
    return any(scope.name in _handed_by(call) for call in starters)


def _handed_by(call: Call) -> set[str]:
    """Return the names that a call is given, by themselves or among the arguments of what it starts."""
    return {part.id for each in call.given for part in getattr(each, "elts", [each]) if isinstance(part, ast.Name)}


def is_in_turn(place: Place) -> bool:
    """Whether a place lies in a context that lets the main rank go first, or one rank at a time."""
    return any(_TURNS.search(text) for text in place.contexts)


def is_before_ranks(module: Module, scope: Scope) -> bool:
    """Whether only the process that spawns the ranks comes to a function, as it does to what calls spawn.

    Ranks that a notebook forks run the function that they are given, and not the cells around it.
    """
    if scope.parent is None:
        return any(call.place.scope is scope for call in module.methods("notebook_launcher"))
    return scope.function in _scopes_before_ranks(module)


@once
def _scopes_before_ranks(module: Module) -> set[Scope]:
    spawned = {call.place.scope for call in spawns(module)}
    starts = {call.place.scope for call in module.named(GROUP)}
    if not spawned or not starts or not all(scope.is_function for scope in starts):
        return set()
    # a function that is handed over by name may be what the ranks run
    handed = {name for call in module.calls for name in _handed_by(call)}
    callers = {scope: [call.place for call in module.callers(scope)] for scope in module.scopes if scope.is_function}
    found = {scope for scope in spawned if scope.is_function} - starts
    # only the main program comes to what asks for __name__; ranks import the rest of its file
    mains = {call.place for call in module.calls if any("__name__" in ast.unparse(b.test) for b in call.place.branches)}
    while True:
        more = {each.scope for scope in found for each in callers[scope] if each.scope.is_function}
        more |= {
            scope
            for scope, known in callers.items()
            if known and scope.name not in handed and all(each.scope in found or each in mains for each in known)
        }
        if more <= found:
            return found | _unreached(module, handed)
        found |= more


def _unreached(module: Module, handed: set[str]) -> set[Scope]:
    """Return the functions that are named by nothing that ranks run: what is handed over, and what that names."""
    tops = [stmt for stmt in module.tree.body if isinstance(stmt, ast.FunctionDef | ast.ClassDef)]
    others = (stmt for stmt in module.tree.body if stmt not in tops and "__name__" not in names_in(stmt))
    reached = handed.union(*map(names_in, others))
    while more := {name for stmt in tops if stmt.name in reached for name in names_in(stmt)} - reached:
        reached |= more
    outside = {stmt for stmt in tops if stmt.name not in reached and isinstance(stmt, ast.FunctionDef)}
    return {scope for scope in module.scopes if any(each.node in outside for each in scope.chain())}


def uses_cuda(module: Module) -> bool:
    """Whether the file puts anything on a GPU."""
    return (
        "cuda" in module.attributes
        or module.has_call("cuda")
        or any(wrap.call.keyword("device_ids") for wrap in wraps(module))
        or any("cuda" in text or text == "nccl" for text in module.texts)
    )


def sees_one_gpu(module: Module) -> bool:
    """Whether a script says that each process sees one GPU: in an assertion, or in the line that starts it."""
    said = r"device_count\(\)\s*==\s*1\b|gpus?-per-task[ =]1|--gpu-bind|virtual-local-rank"
    return re.search(said, module.source) is not None


def guarded_place(module: Module, place: Place, depth: int = 3) -> Place | None:
    """Return the place that a test of the rank keeps to one side: this, or a call of its function if all are so."""
    if place.side is not None or depth == 0:
        return place if place.side is not None else None
    scope = place.scope.function
    calls = module.callers(scope) if scope is not None else []
    found = [guarded_place(module, call.place, depth - 1) for call in calls if call.place.scope is not scope]
    sides = {each.side if each is not None else None for each in found}
    return found[0] if len(sides) == 1 else None


def effective_side(module: Module, place: Place) -> Side | None:
    """Return the side of a place; inside a function that is only called on one side, that side."""
    found = guarded_place(module, place)
    return None if found is None else found.side


@once
def backward_passes(module: Module) -> list[Call]:
    """Return the calls of backward, and of a scaler that is given the loss and the optimizer and does it."""
    scalers = (call for name in module.by_method if name.endswith("scaler") for call in module.by_method[name])
    return [
        *module.methods("backward"),
        *(call for call in scalers if len(call.node.args) > 1 and "loss" in ast.unparse(call.node.args[0])),
    ]


@once
def training_loops(module: Module) -> set[ast.stmt]:
    """Return the innermost loops that contain a backward pass outside functions that evaluate."""
    return {
        call.place.loops[-1]
        for call in backward_passes(module)
        if call.place.loops and not NO_TRAINING.search(call.place.scope.name)
    }


@once
def training_steps(module: Module) -> dict[ast.AST, list[Call]]:
    """Return the calls of each step: of the innermost loop around a backward pass, or of the function that is one."""
    found: dict[ast.AST, list[Call]] = {
        loop: [call for call in module.calls if loop in call.place.loops] for loop in training_loops(module)
    }
    scopes = {call.place.scope for call in backward_passes(module) if not call.place.loops}
    return found | {scope.node: scope.calls for scope in scopes if scope.is_function}


@once
def loops_that_train(module: Module) -> set[ast.stmt]:
    """Return the training loops, and the loops that call a function of this file which is one pass of training."""
    steps = {call.place.scope for call in module.methods("backward") if not call.place.loops}
    loops, done = set(training_loops(module)), set[Scope]()
    while steps:
        scope = steps.pop()
        done.add(scope)
        for call in () if NO_TRAINING.search(scope.name) else module.callers(scope):
            if not call.place.loops:
                steps |= {call.place.scope} - done
            elif not NO_TRAINING.search(call.place.scope.name):
                loops.add(call.place.loops[-1])
    return loops


_TRAINS = re.compile(r"(run_|do_|fit_)?train(_?(one|single))?(_?epoch|_?loop|_?step)?(_?ddp)?|(run|fit)_epoch")


@once
def loops_of_epochs(module: Module) -> set[ast.stmt]:
    """Return the loops with training in them, however deep: in loops inside, in functions of the file, or by a name."""
    around = loops_around(module)
    loops = {outer for loop in loops_that_train(module) for outer in (loop, *around[loop][1])}
    calls = [call for call in module.calls if call.place.loops and is_unseen_training(module, call)]
    scopes = {call.place.scope for call in module.methods("backward")}
    done = set[Scope]()
    while calls or scopes - done:
        inside = [call for call in calls if not NO_TRAINING.search(call.place.scope.name)]
        loops |= {loop for call in inside for loop in call.place.loops}
        scopes |= {call.place.scope for call in inside}
        new = {scope for scope in scopes - done if not NO_TRAINING.search(scope.name)}
        done |= scopes
        calls = [call for scope in new for call in module.callers(scope)]
    return loops


def is_unseen_training(module: Module, call: Call) -> bool:
    """Whether a function of another file is called that trains, by its name, and is given something to train with."""
    return (
        _TRAINS.fullmatch(call.method) is not None and len(call.node.args) > 1 and module.local_function(call) is None
    )


@once
def loops_around(module: Module) -> dict[ast.stmt, tuple[Scope, tuple[ast.stmt, ...]]]:
    """Return the loops with a call inside: each with its function and the loops around it, outermost first."""
    found: dict[ast.stmt, tuple[Scope, tuple[ast.stmt, ...]]] = {}
    for call in module.calls:
        for index, loop in enumerate(call.place.loops):
            found.setdefault(loop, (call.place.scope, call.place.loops[:index]))
    return found


def is_const(node: ast.expr | None, value: object) -> bool:
    """Whether an expression is this constant."""
    return isinstance(node, ast.Constant) and node.value is value


def is_fixed(module: Module, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a constant, or a variable of this scope that is bound once, to a constant."""
    if isinstance(node, ast.Name):
        found = list(module.bindings_of(node.id, scope))
        return len(found) == 1 and found[0].place.scope is scope and isinstance(found[0].value, ast.Constant)
    return isinstance(node, ast.Constant)


def environment_writes(module: Module) -> Iterator[tuple[str, ast.expr, ast.expr, Place]]:
    """Yield the variables that are set: name, the node of the name, the value, and the place."""
    found: list[tuple[ast.expr | None, ast.expr, Place]] = [
        (node.slice, place.stmt.value, place)
        for node, place in module.environment
        if isinstance(node.ctx, ast.Store) and isinstance(place.stmt, ast.Assign)
    ]
    calls = (call for call in module.methods("setdefault", "putenv") if len(call.node.args) == 2)
    calls = (call for call in calls if call.base.endswith("environ") or call.text.endswith("putenv"))
    found += [(call.node.args[0], call.node.args[1], call.place) for call in calls]
    for call in module.methods("update"):
        if call.base.endswith("environ"):
            tables = [table for table in call.node.args if isinstance(table, ast.Dict)]
            found += [(*pair, call.place) for table in tables for pair in zip(table.keys, table.values, strict=True)]
            yield from ((word.arg, word.value, word.value, call.place) for word in call.node.keywords if word.arg)
    yield from ((str(key.value), key, value, place) for key, value, place in found if isinstance(key, ast.Constant))


def without_keyword(module: Module, call: Call, name: str) -> Edit | None:
    """Return the edit that removes a keyword argument with its comma."""
    word = call.keyword(name)
    if word is None or word not in call.node.keywords:  # options that other calls may share
        return None
    start, end = module.span(word)
    source = module.source
    before = re.search(r",\s*$", source[:start])
    if before is not None:
        return Edit(before.start(), end, "")
    behind = re.match(r"\s*,\s*", source[end:])
    return Edit(start, end + (behind.end() if behind else 0), "")


def with_argument(module: Module, call: Call, text: str) -> Edit:
    """Return the edit that adds an argument at the end of a call."""
    end = module.span(call.node)[1] - 1
    comma = "" if module.source[:end].rstrip().endswith((",", "(")) else ", "
    return Edit(end, end, comma + text)


def on_both_sides(branch: Branch | None, method: str) -> bool:
    """Whether both branches of an `if` make a call of this name."""
    node = branch.node if branch is not None else None
    bodies = (node.body, node.orelse) if isinstance(node, ast.If) else ([],)
    return all(any(called(part) == method for stmt in body for part in ast.walk(stmt)) for body in bodies)


@once
def runs_on_several(module: Module) -> bool:
    """Whether a Trainer of Lightning is told to use several devices."""
    if not module.imports.uses("lightning", "pytorch_lightning"):
        return False
    for call in module.methods("Trainer"):
        plan, devices = call.argument("strategy"), call.argument("devices")
        many = devices is not None and not (isinstance(devices, ast.Constant) and devices.value in {1, "1", "auto"})
        if (plan is not None and re.search("ddp|fsdp|deepspeed", ast.unparse(plan), re.IGNORECASE)) or many:
            return True
    return False
