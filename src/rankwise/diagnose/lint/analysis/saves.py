"""Which files all ranks write: no test of the rank around what writes, and no name of its own for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    FABRICS,
    effective_side,
    has_framework,
    has_rank,
    is_before_ranks,
    is_handed_over,
    is_in_turn,
    names_in,
    runs_alone,
    runs_on_several,
    spawns,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.wrapped import wraps

__all__ = [
    "files_of_all",
    "is_apart",
    "is_on_all",
    "is_optional",
    "is_own_file",
    "is_told_elsewhere",
    "runs_ranks",
    "starts_ranks",
    "written_files",
]

_STARTS = ("torch.distributed.init_process_group",)
OF_ITS_OWN = re.compile(r"rank|shard|worker|proc|local|device|gpu", re.IGNORECASE)


def starts_ranks(module: Module) -> bool:
    """Whether the file starts a process group or wraps a model."""
    started = bool(wraps(module)) or any(name in module.by_name for name in _STARTS)
    return started and not runs_alone(module)


def is_told_elsewhere(module: Module, call: Call) -> bool:
    """Whether a test of the rank may stand where this file does not show it: around the calls of its function."""
    scope = next((found for found in call.place.scope.chain() if found.is_function), None)
    if scope is None:
        return False
    if re.search("master|main_|rank|zero", scope.name, re.IGNORECASE):
        return True
    if scope.owner is not None and scope.name.startswith("on_"):  # a hook that Lightning calls on every rank
        return False
    # an object that wraps the model, or starts the group, is made on every rank
    if (
        scope.owner is not None
        and scope.name == "__init__"
        and any(_is_in(scope.owner, call) for call in _made_by_all(module))
    ):
        return False
    callers = module.callers(scope)
    if scope.owner is not None and scope.name != "__init__":
        callers = callers or [found for found in module.methods(scope.name) if found.base]
    known = scope.name in {"main", "train", "run", "worker", "main_worker", "fit"} or is_handed_over(module, scope)
    return not callers and not known


def _made_by_all(module: Module) -> list[Call]:
    """Return the calls that wrap a model or start the group, which every rank makes."""
    return [*(wrap.call for wrap in wraps(module)), *module.named("torch.distributed.init_process_group")]


def _is_in(owner: Scope, call: Call) -> bool:
    return any(scope.owner is owner for scope in call.place.scope.chain() if scope.is_function)


def is_own_file(module: Module, call: Call, target: ast.expr | None) -> bool:
    """Whether a file is the process's own: in memory, or a temporary one."""
    made = module.value(target, call.place.scope)
    withs = [
        item
        for found in call.place.withs
        for item in found.items
        if target is not None and item.optional_vars is not None
    ]
    opened = [item.context_expr for item in withs if text_of(item.optional_vars) == text_of(target)]  # type: ignore[arg-type]
    return any(
        isinstance(found, ast.Call) and text_of(found.func).endswith(("BytesIO", "TemporaryFile"))
        for found in (made, *opened)
    )


def runs_ranks(module: Module) -> bool:
    """Whether what a file does without a test of the rank is done by several ranks, as far as is seen."""
    if is_accelerated(module) or runs_on_several(module) or "deepspeed.initialize" in module.by_name:
        return True
    return starts_ranks(module) and not (has_framework(module) and not wraps(module))


def is_on_all(module: Module, call: Call, target: ast.expr | None) -> bool:
    """Whether every rank makes a call that writes, and to the same place."""
    place = call.place
    if place.side or is_in_turn(place) or effective_side(module, place) or is_told_elsewhere(module, call):
        return False
    scope = next((found for found in place.scope.chain() if found.is_function), None)
    guarded = scope is not None and any(found.place.side == "main" for found in module.callers(scope))
    if guarded or is_own_file(module, call, target) or is_before_ranks(module, place.scope):
        return False
    path = module.value(target, place.scope)
    if any(OF_ITS_OWN.search(name) for name in names_in(target) | names_in(path)):
        return False
    # one whose test is hidden behind a flag: `if args.save`, `if verbose`, `if self.is_saver`
    flagged = any(
        re.search(r"main|master|rank|save|log|verbose|write|primary|chief", ast.unparse(branch.test), re.IGNORECASE)
        for branch in place.branches
    )
    return not (flagged and has_hidden_test(module, call))


def is_accelerated(module: Module) -> bool:
    """Whether Accelerate or Fabric runs the script on several ranks: all that is not guarded runs on each of them."""
    return any(name in module.by_name for name in ("accelerate.Accelerator", *FABRICS))


def has_hidden_test(module: Module, call: Call) -> bool:
    """Whether a branch around a call tests a name whose value this file does not show."""
    given = (found.node.args[0] for found in module.methods("add_argument") if found.node.args)
    options = {str(part.value).lstrip("-").replace("-", "_") for part in given if isinstance(part, ast.Constant)}
    for branch in call.place.branches:
        parts = [part for part in ast.walk(branch.test) if isinstance(part, ast.Name | ast.Attribute)]
        parts = [part for part in parts if text_of(part) != "__name__"]
        shown = {part for part in parts if isinstance(part, ast.Attribute) and part.attr in options}
        shown |= {part.value for part in shown if isinstance(part, ast.Attribute)}  # type: ignore[misc]
        if any(module.binding(text_of(part), call.place.scope) is None for part in parts if part not in shown):
            return True
    return False


def is_optional(module: Module, test: ast.expr) -> bool:
    """Whether a test asks for an option of the command line, equal on all ranks, that nothing changes; or __name__."""
    test = test.operand if isinstance(test, ast.UnaryOp) else test
    if not isinstance(test, ast.Attribute) or re.search("main|master|rank", test.attr):
        return "__name__" in ast.unparse(test)
    given = (ast.unparse(call.node).replace("-", "_") for call in module.methods("add_argument"))
    return text_of(test) not in module.fields and any(f"'__{test.attr}'" in text for text in given)


_TABLES = (
    "to_csv",
    "to_json",
    "to_parquet",
    "to_pickle",
    "to_excel",
    "to_feather",
    "savefig",
    "write_text",
    "write_bytes",
)
_ARRAYS = ("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt")
# names of files that each process has for itself
_APART = re.compile(r"te?mp|pid|procid|nodeid|localid|uuid|null|stdout|stderr|rand|hostname|trial", re.IGNORECASE)
_STARTERS = ("Process", "notebook_launcher", "elastic_launch", "launch_agent", "Popen", "PContext", "run_function")


def written_files(module: Module) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the calls that write a file anew, beside those of torch, and its path."""
    for call in module.methods("open"):
        path, mode = (call.argument("file", 0), call.argument("mode", 1)) if call.text == "open" else (None, None)
        if path is not None and isinstance(mode, ast.Constant) and str(mode.value)[:1] == "w":
            yield call, path
    for call in (*module.named(*_ARRAYS), *module.methods(*_TABLES)):
        path = _base(call) if call.method.startswith("write_") else call.node.args[0] if call.node.args else None
        if path is not None and not (isinstance(path, ast.Constant) and path.value is None):
            yield call, path


def _base(call: Call) -> ast.expr | None:
    return call.node.func.value if isinstance(call.node.func, ast.Attribute) else None


def files_of_all(module: Module) -> Iterator[Call]:
    """Yield what writes the same file on every rank, once for each function."""
    if not runs_ranks(module) or module.has_call(*_STARTERS):
        return
    seen: set[Scope] = set()
    for call, path in sorted(written_files(module), key=lambda found: found[0].node.lineno):
        if call.place.scope not in seen and is_apart(module, call, path) and is_on_all(module, call, path):
            seen.add(call.place.scope)
            yield call
    for call in module.named("torchvision.utils.save_image", "cv2.imwrite", "soundfile.write"):
        name, index = {"save_image": ("fp", 1), "imwrite": ("filename", 0)}.get(call.method, ("file", 0))
        target = call.argument(name, index)
        alike = target is not None and _is_counted(module, target, call.place.scope)
        if alike and is_apart(module, call, target) and is_on_all(module, call, target):  # type: ignore[arg-type]
            yield call


def _is_counted(module: Module, path: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether a path is made of constants, options and numbers of epochs or steps, of nothing that a rank reads."""
    names = {part.id for part in ast.walk(path) if isinstance(part, ast.Name)} - set(module.imports.bound)
    for name in (each for each in names if not re.fullmatch("args?|cfg|config|opts?|hparams|str|int|self", each)):
        found = module.binding(name, scope)
        loop = found.place.stmt if found is not None and found.value is None else None
        head = f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}" if isinstance(loop, ast.For) else ""
        if not re.match(rf"{name} in t?range\(|\({name}, .* in enumerate\(", head) and (
            found is None or found.value is None or not depth or not _is_counted(module, found.value, scope, depth - 1)
        ):
            return False
    return True


def is_apart(module: Module, call: Call, path: ast.expr) -> bool:
    """Whether nothing in a path, as far as is seen, tells ranks apart, and ranks come to a call at all."""
    scope = call.place.scope
    # ranks that are spawned import the file again, and run all of it that does not ask for its __name__
    asked = any("__name__" in ast.unparse(branch.test) for branch in call.place.branches)
    if (scope.parent is None and asked and spawns(module)) or _is_ranked(module, path, scope):
        return False
    params = names_in(path) & set(scope.params) if scope.is_function else set()
    for name in params - {"self", "cls", "args", "cfg", "config"}:
        if any(
            part is not None and _is_ranked(module, part, one.place.scope) for one, part in module.given(scope, name)
        ):
            return False
    return True


def _is_ranked(module: Module, node: ast.expr, scope: Scope) -> bool:
    shown = [node, module.value(node, scope)]
    return has_rank(module, node, scope) or any(each is not None and _APART.search(ast.unparse(each)) for each in shown)
