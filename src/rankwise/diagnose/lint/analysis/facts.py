"""Facts about a module that several rules ask for: what is wrapped, what is a collective, which loop trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.guards import Side
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Branch, Call, Place, Scope
from rankwise.diagnose.lint.analysis.wrapped import WRAPPERS, wraps
from rankwise.diagnose.lint.record import Edit

__all__ = [
    "FABRICS",
    "LOADER",
    "RANKS",
    "SAMPLER",
    "backward_passes",
    "calls_framework",
    "effective_side",
    "environment_reads",
    "environment_writes",
    "guard_of",
    "guarded_place",
    "has_framework",
    "is_before_ranks",
    "is_const",
    "is_distributed",
    "is_fixed",
    "is_handed_over",
    "is_in_turn",
    "is_unseen_training",
    "loops_around",
    "loops_of_epochs",
    "loops_that_train",
    "names_in",
    "runs_alone",
    "runs_on_several",
    "sees_one_gpu",
    "spawns",
    "training_loops",
    "uses_cuda",
    "without_keyword",
]

SAMPLER = "torch.utils.data.distributed.DistributedSampler"
LOADER = "torch.utils.data.DataLoader"
FABRICS = ("lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric")
RANKS = {"main": "the main rank", "other": "ranks other than the main one"}
_FRAMEWORKS = (
    "accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod", "ray", "composer", "colossalai",
    "ignite", "catalyst", "mmengine", "mmcv", "mmcv.runner", "torch_xla", "fastai", "megatron", "bagua",
    "smdistributed",
)  # fmt: skip
_TURNS = re.compile(r"first|rank_?zero|(main|master)_?(process|rank)?_|lock|one_at_a_time", re.IGNORECASE)
_NO_TRAINING = re.compile(r"eval|valid|test|infer|predict|sample|generate|bench|visuali", re.IGNORECASE)


def is_distributed(module: Module) -> bool:
    """Whether the file itself speaks of several ranks in torch's words: a wrap, a group or a collective."""
    found = module.cache.get("distributed")
    if found is None:
        found = module.cache["distributed"] = any(
            name.startswith("torch.distributed.") or name in WRAPPERS or name == SAMPLER for name in module.by_name
        )
    return bool(found)


def has_framework(module: Module) -> bool:
    """Whether a library that does parts of this by itself is imported."""
    found = module.cache.get("framework")
    if found is None:
        trainer = any(name.startswith("transformers.") and "Trainer" in name for name in module.imports.bound.values())
        found = module.cache["framework"] = trainer or any(module.imports.uses(name) for name in _FRAMEWORKS)
        if wraps(module) and "torch.distributed.init_process_group" in module.by_name:
            found = module.cache["framework"] = False
    return bool(found)


def calls_framework(module: Module) -> bool:
    """Whether such a library is called here, too: an import that nothing uses chooses no device."""
    return has_framework(module) and any(
        "Trainer" in name or name.startswith(tuple(f"{each}." for each in _FRAMEWORKS)) for name in module.by_name
    )


def runs_alone(module: Module) -> bool:
    """Whether the group that a file starts is said to be of one process."""
    groups = module.named("torch.distributed.init_process_group")
    sizes = [call.argument("world_size", 3) for call in groups]
    return bool(sizes) and all(is_const(size, 1) for size in sizes)


def spawns(module: Module) -> list[Call]:
    """Return the calls that start ranks as processes of this one."""
    found = list(module.named("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"))
    for call in module.methods("Process"):
        target = module.top.functions.get(text_of(call.argument("target") or call.node.func))
        if target and any(each.name == "torch.distributed.init_process_group" for each in target.calls):
            found.append(call)
    return found


def is_handed_over(module: Module, scope: Scope) -> bool:
    """Whether a function is given by its name to what starts ranks with it."""
    starters = module.methods("spawn", "start_processes", "Process", "launch", "notebook_launcher", "elastic_launch")
    return any(scope.name in _handed_by(call) for call in starters)


def _handed_by(call: Call) -> set[str]:
    """Return the names that a call is given, by themselves or among the arguments of what it starts."""
    given = [*call.node.args, *(word.value for word in call.node.keywords)]
    inside = [each for part in given for each in (part.elts if isinstance(part, ast.Tuple | ast.List) else [part])]
    return {part.id for part in inside if isinstance(part, ast.Name)}


def is_in_turn(place: Place) -> bool:
    """Whether a place lies in a context that lets the main rank go first, or one rank at a time."""
    texts = (ast.unparse(item.context_expr) for with_ in place.withs for item in with_.items)
    return any(_TURNS.search(text) for text in texts)


def is_before_ranks(module: Module, scope: Scope) -> bool:
    """Whether only the process that spawns the ranks comes to a function, as it does to what calls spawn.

    Ranks that a notebook forks run the function that they are given, and not the cells around it.
    """
    if scope.parent is None:
        return any(call.place.scope is scope for call in module.methods("notebook_launcher"))
    found = module.cache.get("before ranks")
    if found is None:
        found = module.cache["before ranks"] = _scopes_before_ranks(module)
    return next((each for each in scope.chain() if each.is_function), None) in found  # type: ignore[operator]


def _is_main(place: Place) -> bool:
    """Whether only the main program comes here; ranks import the rest of its file."""
    return any("__name__" in ast.unparse(branch.test) for branch in place.branches)


def _scopes_before_ranks(module: Module) -> set[Scope]:
    spawned = {call.place.scope for call in spawns(module)}
    starts = {call.place.scope for call in module.named("torch.distributed.init_process_group")}
    if not spawned or not starts or not all(scope.is_function for scope in starts):
        return set()
    # a function that is handed over by name may be what the ranks run
    handed = {name for call in module.calls for name in _handed_by(call)}
    callers = {scope: [call.place for call in module.callers(scope)] for scope in module.scopes if scope.is_function}
    found = {scope for scope in spawned if scope.is_function} - starts
    while True:
        more = {each.scope for scope in found for each in callers[scope] if each.scope.is_function}
        more |= {
            scope
            for scope, known in callers.items()
            if known and scope.name not in handed and all(each.scope in found or _is_main(each) for each in known)
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
        or any(
            isinstance(node.value, str) and ("cuda" in node.value or node.value == "nccl") for node, _ in module.strings
        )
    )


def sees_one_gpu(module: Module) -> bool:
    """Whether a script says that each process sees one GPU: in an assertion, or in the line that starts it."""
    return (
        re.search(r"device_count\(\)\s*==\s*1\b|gpus?-per-task[ =]1|--gpu-bind|virtual-local-rank", module.source)
        is not None
    )


def guard_of(place: Place) -> Branch | None:
    """Return the innermost test of the rank around a place."""
    return next((branch for branch in reversed(place.branches) if branch.side), None)


def guarded_place(module: Module, place: Place, depth: int = 3) -> Place | None:
    """Return the place that a test of the rank keeps to one side: this, or a call of its function if all are so."""
    if place.side is not None or depth == 0:
        return place if place.side is not None else None
    scope = next((found for found in place.scope.chain() if found.is_function), None)
    calls = module.callers(scope) if scope is not None else []
    found = [guarded_place(module, call.place, depth - 1) for call in calls if call.place.scope is not scope]
    sides = {each.side if each is not None else None for each in found}
    return found[0] if len(sides) == 1 else None


def effective_side(module: Module, place: Place, depth: int = 3) -> Side | None:
    """Return the side of a place; inside a function that is only called on one side, that side."""
    found = guarded_place(module, place, depth)
    return None if found is None else found.side


def backward_passes(module: Module) -> list[Call]:
    """Return the calls of backward, and of a scaler that is given the loss and the optimizer and does it."""
    scalers = (call for name in module.by_method if name.endswith("scaler") for call in module.by_method[name])
    return [
        *module.methods("backward"),
        *(call for call in scalers if len(call.node.args) > 1 and "loss" in ast.unparse(call.node.args[0])),
    ]


def training_loops(module: Module) -> set[ast.stmt]:
    """Return the innermost loops that contain a backward pass outside functions that evaluate."""
    return {
        call.place.loops[-1]
        for call in backward_passes(module)
        if call.place.loops and not _NO_TRAINING.search(call.place.scope.name)
    }


def loops_that_train(module: Module) -> set[ast.stmt]:
    """Return the training loops, and the loops that call a function of this file which is one pass of training."""
    found = module.cache.get("loops that train")
    if found is None:
        steps = {call.place.scope for call in module.methods("backward") if not call.place.loops}
        loops, done = set(training_loops(module)), set[Scope]()
        while steps:
            scope = steps.pop()
            done.add(scope)
            for call in () if _NO_TRAINING.search(scope.name) else module.callers(scope):
                if not call.place.loops:
                    steps |= {call.place.scope} - done
                elif not _NO_TRAINING.search(call.place.scope.name):
                    loops.add(call.place.loops[-1])
        found = module.cache["loops that train"] = loops
    return found  # type: ignore[return-value]


_TRAINS = re.compile(r"(run_|do_|fit_)?train(_?(one|single))?(_?epoch|_?loop|_?step)?(_?ddp)?|(run|fit)_epoch")


def loops_of_epochs(module: Module) -> set[ast.stmt]:
    """Return the loops with training in them, however deep: in loops inside, in functions of the file, or by a name."""
    found = module.cache.get("loops of epochs")
    if found is None:
        around = loops_around(module)
        loops = {outer for loop in loops_that_train(module) for outer in (loop, *around.get(loop, (None, ()))[1])}
        scopes, done = {call.place.scope for call in module.methods("backward")}, set[Scope]()
        calls = [call for call in module.calls if call.place.loops and is_unseen_training(module, call)]
        while scopes or calls:
            scope = scopes.pop() if scopes else None
            if scope is not None and not _NO_TRAINING.search(scope.name):
                calls += module.callers(scope)
                done.add(scope)
            for call in calls:
                if not _NO_TRAINING.search(call.place.scope.name):
                    loops |= set(call.place.loops)
                    scopes |= {call.place.scope} - done
            calls = []
        found = module.cache["loops of epochs"] = loops
    return found  # type: ignore[return-value]


def is_unseen_training(module: Module, call: Call) -> bool:
    """Whether a function of another file is called that trains, by its name, and is given something to train with."""
    return (
        _TRAINS.fullmatch(call.method) is not None and len(call.node.args) > 1 and module.local_function(call) is None
    )


def loops_around(module: Module) -> dict[ast.stmt, tuple[Scope, tuple[ast.stmt, ...]]]:
    """Return the loops with a call inside: each with its function and the loops around it, outermost first."""
    found: dict[ast.stmt, tuple[Scope, tuple[ast.stmt, ...]]] = module.cache.setdefault("loops around", {})  # type: ignore[assignment]
    for call in () if found else module.calls:
        for index, loop in enumerate(call.place.loops):
            found.setdefault(loop, (call.place.scope, call.place.loops[:index]))
    return found


def names_in(node: ast.AST | None) -> set[str]:
    """Return every name, and every attribute's last part, that occurs in an expression."""
    if node is None:
        return set()
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def is_const(node: ast.expr | None, value: object) -> bool:
    """Whether an expression is this constant."""
    return isinstance(node, ast.Constant) and node.value is value


def is_fixed(module: Module, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a constant, or a variable of this scope that is bound once, to a constant."""
    if isinstance(node, ast.Name):
        found = list(module.bindings_of(node.id, scope))
        return len(found) == 1 and found[0].place.scope is scope and isinstance(found[0].value, ast.Constant)
    return isinstance(node, ast.Constant)


def environment_reads(module: Module) -> Iterator[tuple[str, ast.expr, Place, bool]]:
    """Yield the variables that are read: name, node, place, and whether a missing one has a default."""
    for node, place in module.environment:
        if (
            isinstance(node.ctx, ast.Load)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            yield node.slice.value, node, place, False
    for call in module.methods("get", "getenv"):
        if not (call.base.endswith("environ") or call.text.endswith("getenv")) or not call.node.args:
            continue
        name = call.node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield name.value, call.node, call.place, True


def environment_writes(module: Module) -> Iterator[tuple[str, ast.expr, ast.expr, Place]]:
    """Yield the variables that are set: name, the node of the name, the value, and the place."""
    for node, place in module.environment:
        if (
            isinstance(node.ctx, ast.Store)
            and isinstance(place.stmt, ast.Assign)
            and isinstance(node.slice, ast.Constant)
        ):
            yield str(node.slice.value), node.slice, place.stmt.value, place
    for call in module.methods("setdefault", "putenv"):
        if (call.base.endswith("environ") or call.text.endswith("putenv")) and len(call.node.args) == 2:
            name, value = call.node.args
            if isinstance(name, ast.Constant):
                yield str(name.value), name, value, call.place
    for call in module.methods("update"):
        words = call.node.keywords if call.base.endswith("environ") else []
        yield from ((word.arg, word.value, word.value, call.place) for word in words if word.arg)
        if call.base.endswith("environ") and call.node.args and isinstance(call.node.args[0], ast.Dict):
            table = call.node.args[0]
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), key, value, call.place


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


def runs_on_several(module: Module) -> bool:
    """Whether a Trainer of Lightning is told to use several devices."""
    if not any(module.imports.uses(name) for name in ("lightning", "pytorch_lightning")):
        return False
    for call in module.methods("Trainer"):
        plan, devices = call.argument("strategy"), call.argument("devices")
        many = devices is not None and not (isinstance(devices, ast.Constant) and devices.value in {1, "1", "auto"})
        if (plan is not None and re.search("ddp|fsdp|deepspeed", ast.unparse(plan), re.IGNORECASE)) or many:
            return True
    return False
