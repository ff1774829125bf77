"""What all ranks of a script do: whether it has several, which places each reaches, which files all of them write.

Who runs several ranks does everything on each of them, unless something shows otherwise: a test of the rank around a
place or around the calls of its function, or a path that is not the same on all ranks.
"""

from __future__ import annotations

import ast
import re

from rankwise.diagnose.lint.analysis.facts import (
    FABRICS,
    GROUP,
    has_framework,
    is_before_ranks,
    is_const,
    is_handed_over,
    is_in_turn,
    runs_alone,
    runs_on_several,
    spawns,
)
from rankwise.diagnose.lint.analysis.guards import RANK_NAMES
from rankwise.diagnose.lint.analysis.module import OPTIONS, Module, position
from rankwise.diagnose.lint.analysis.names import called, last, names_in, receiver, text_of
from rankwise.diagnose.lint.analysis.scopes import Branch, Call, Place, Scope, excludes
from rankwise.diagnose.lint.analysis.wrapped import wraps

_LIBRARIES = ("accelerate.Accelerator", *FABRICS, "deepspeed.initialize", "deepspeed.init_distributed")


def starts_ranks(module: Module) -> bool:
    """Whether the file starts a process group or wraps a model."""
    return (bool(wraps(module)) or GROUP in module.by_name) and not runs_alone(module)


def runs_ranks(module: Module) -> bool:
    """Whether what a file does without a test of the rank is done by several ranks, as far as is seen."""
    if runs_on_several(module) or module.has_named(*_LIBRARIES):
        return True
    return starts_ranks(module) and not (has_framework(module) and not wraps(module))


# Places.

_ENTRIES = frozenset({"main", "train", "run", "worker", "main_worker", "fit", "load"})
_OF_ONE = re.compile("master|main_|rank|zero", re.IGNORECASE)
_EXISTS = frozenset("exists isfile is_file isdir is_dir".split())
_FLAGS = re.compile(r"main|master|rank|save|log|verbose|write|primary|chief|\btb\b|board|summary|print", re.IGNORECASE)


def is_on_all(module: Module, place: Place) -> bool:
    """Whether every rank comes to a place, as far as is seen."""
    return not _is_kept(module, place) and not _is_told_elsewhere(module, place.scope)


def _is_kept(module: Module, place: Place, depth: int = 4) -> bool:
    """Whether a test of the rank, or one that may hide it, or a lock stands around a place or a call of it."""
    scope = place.scope.function
    found = wraps(module)
    if found and all(excludes(wrap.made.place, place) for wrap in found):  # `else:` of `if distributed:`
        return True
    if place.side or is_in_turn(place) or any(_may_ask(module, branch, place.scope) for branch in place.branches):
        return True
    # `if rank != 0: barrier()` before, and `if rank == 0: barrier()` behind, let the main rank go first
    barriers = [call for call in place.scope.calls if call.method in {"barrier", "wait_for_everyone"}]
    if any(call.place.side == "other" and position(call.node) < position(place.stmt) for call in barriers):
        return True
    if scope is None:
        # ranks that are spawned import the file again, and run all of it that does not ask for its __name__
        return bool(spawns(module)) and any("__name__" in ast.unparse(each.test) for each in place.branches)
    if is_before_ranks(module, scope):
        return True
    places = [call.place for call in module.callers(scope) if call.place.scope.function is not scope] if depth else []
    # the process that spawns ranks may call what they run, where there is one of them
    ranks = [each for each in places if not is_before_ranks(module, each.scope)]
    if is_handed_over(module, scope):
        ranks = [each for each in ranks if each.scope.is_function]
    return any(_is_kept(module, each, depth - 1) for each in ranks)


def _is_told_elsewhere(module: Module, scope: Scope) -> bool:
    """Whether a test of the rank may stand where this file does not show it: around the calls of a function."""
    found = scope.function
    if found is None or found.name in _ENTRIES or is_handed_over(module, found):
        return False
    if _OF_ONE.search(found.name):
        return True
    if found.owner is not None:
        if found.name.startswith("on_"):  # a hook that Lightning calls on every rank
            return False
        # an object that wraps the model, or starts the group, is made on every rank
        made = [*(wrap.call for wrap in wraps(module)), *module.named(GROUP)]
        scopes = (each for call in made for each in call.place.scope.chain() if each.is_function)
        if found.name == "__init__" and any(each.owner is found.owner for each in scopes):
            return False
    callers = module.callers(found)
    if found.owner is not None and found.name != "__init__":
        callers = callers or [call for call in module.methods(found.name) if call.base]
    return not callers


def _may_ask(module: Module, branch: Branch, scope: Scope) -> bool:
    """Whether a test may be one of the rank: a flag, by its name, whose value this file does not show."""
    test = branch.test
    if not _FLAGS.search(ast.unparse(test)) or "__name__" in ast.unparse(test):
        return False
    for part in ast.walk(test):
        if isinstance(part, ast.Call) and names_in(part) & RANK_NAMES and not names_in(part.func) & RANK_NAMES:
            return True  # `is_writer(args, rank)`
        flag = isinstance(part, ast.Name | ast.Attribute) and _FLAGS.search(last(text_of(part)))
        if flag and not _is_shown(module, text_of(part), scope):  # type: ignore[arg-type]
            return True
    return False


def _is_shown(module: Module, text: str, scope: Scope) -> bool:
    """Whether a file shows what a variable is: bound, imported, an option, or a parameter that is given constants."""
    if text in module.imports.bound or next(module.bindings_of(text, scope), None) is not None:
        return True
    root, _, name = text.partition(".")
    if OPTIONS.fullmatch(root) and name and not _OF_ONE.search(name):
        asked = [ast.unparse(call.node).replace("-", "_") for call in module.methods("add_argument")]
        return not asked or any(f"'__{name}'" in each for each in asked)
    given = module.given(scope.function, text) if scope.function and text in scope.function.params[1:] else []
    return bool(given) and all(isinstance(part, ast.Constant) for _, part in given)


def missing_file(branch: Branch) -> ast.Call | None:
    """Return what a branch asks to find that a file is not there."""
    for part in ast.walk(branch.test) if isinstance(branch.node, ast.If) and branch.taken else ():
        asked = part.operand if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) else None
        if isinstance(asked, ast.Call) and called(asked) in _EXISTS:
            return asked
    return None


# Paths.

# words of names that are another thing for each process, and those of files that each has for itself
_APART = re.compile(
    r"rank|shard|local|device|uuid|procid|nodeid|hostname|stdout|stderr|trial|(?<![a-z])(proc(ess)?|pid|te?mp(file|dir)?)(?![a-z])|"
    r"process_?i|worker(?!s)|(?<!n)(?<!num_)gpu(?!s)|rand(?!om_s)",
    re.IGNORECASE,
)
_OF_SAMPLES = re.compile("load|batch|data|sample|image|file|output|result", re.IGNORECASE)


def is_own_file(module: Module, call: Call, target: ast.expr | None) -> bool:
    """Whether a file is the process's own: in memory, or a temporary one."""
    items = [item for found in call.place.withs for item in found.items if item.optional_vars is not None]
    opened = [item.context_expr for item in items if target and text_of(item.optional_vars) == text_of(target)]  # type: ignore[arg-type]
    return any(
        isinstance(found, ast.Call) and text_of(found.func).endswith(("BytesIO", "StringIO", "TemporaryFile"))
        for found in (module.value(target, call.place.scope), *opened)
    )


def is_alike(module: Module, call: Call, path: ast.expr) -> bool:
    """Whether a path is the same on all ranks: nothing in it, as far as is seen, tells them apart."""
    scope = call.place.scope
    if is_own_file(module, call, path) or _differs(module, path, scope):
        return False
    for name in names_in(path) & set(scope.params) if scope.is_function else ():
        if not OPTIONS.fullmatch(name) and name not in {"self", "cls"}:
            given = [(part, one.place.scope) for one, part in module.given(scope, name) if part is not None]
            if any(_differs(module, part, at) for part, at in given):
                return False
    return True


def _differs(module: Module, path: ast.expr, scope: Scope) -> bool:
    shown = [part for part in (path, module.value(path, scope)) if part is not None]
    if any(_APART.search(name) for part in shown for name in names_in(part)) or has_rank(module, path, scope):
        return True
    if any(isinstance(part, ast.Constant) and str(part.value).startswith("/dev/") for part in shown):
        return True
    for name in (part.id for each in shown for part in ast.walk(each) if isinstance(part, ast.Name)):
        found = module.binding(name, scope)
        loop = found.place.stmt if found is not None and found.value is None else None
        if isinstance(loop, ast.For) and _OF_SAMPLES.search(ast.unparse(loop.iter)) and not _is_number(loop, name):
            return True  # `for name, image in loader:` names what this rank alone has
    return False


def _is_number(loop: ast.For, name: str) -> bool:
    head = f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
    return re.match(rf"{name} in t?range\(|\(?{name}, .* in (enumerate\(|.*\benumerate\()", head) is not None


# What holds the rank.


def seeds(module: Module) -> list[Call]:
    """Return the calls that seed a generator of this process."""
    known = {"manual_seed", "seed", "set_seed", "seed_everything", "seed_all", "fix_seed", "manual_seed_all"}
    return [call for call in module.calls if call.method in known and call.given]


def same_on_all(module: Module, call: Call) -> bool:
    """Whether a seed, as far as is seen, holds no rank: by its name, or by what its parts were bound to."""
    return not any(has_rank(module, part, call.place.scope) for part in call.given)


_RANKED = re.compile(r"rank|process_|worker|device_specific|(?<!n)(?<!num_)gpu(?!s)|seed_offset", re.IGNORECASE)
_RANK_KEY = re.compile(r"(\w+_)?(rank|procid|localid|nodeid)", re.IGNORECASE)


def has_rank(module: Module, node: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether an expression holds something that differs between ranks, by its names and by what they were bound to."""
    parts = list(ast.walk(node))
    if any(_RANKED.search(name) for name in names_in(node)):
        return True
    keys = (part.value for part in parts if isinstance(part, ast.Constant))  # environ["RANK"]
    items = (getattr(part.slice, "value", None) for part in parts if isinstance(part, ast.Subscript))  # config["gpu"]
    if any(_RANK_KEY.fullmatch(str(key)) for key in keys) or any(_RANKED.search(str(item)) for item in items):
        return True
    # of an object that is asked for a field, that field counts, and not what else it was made of
    asked = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
    for part in (part for part in parts if depth and isinstance(part, ast.Name | ast.Attribute)):
        for found in module.bindings_of(text_of(part), scope):
            value = found.made
            if value is None or value is node or (id(part) in asked and not _is_text(value)):
                continue
            if has_rank(module, value, found.place.scope, depth - 1):
                return True
    return False


def _is_text(node: ast.expr) -> bool:
    """Whether a value is a text or a path, which holds what it was made of."""
    made = isinstance(node, ast.Call) and re.search(r"(Path|join|format|str)$", text_of(node.func))
    return bool(made) or isinstance(node, ast.JoinedStr | ast.BinOp)


# Files.

_TABLES = "to_csv to_json to_parquet to_pickle to_excel to_feather savefig write_text write_bytes".split()
_ARRAYS = ("numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt")
# where the path stands: by keyword, by position
_STATES = {
    "torch.save": ("f", 1),
    "safetensors.torch.save_file": ("filename", 1),
    "safetensors.torch.save_model": ("filename", 1),
}
_IMAGES = {"torchvision.utils.save_image": ("fp", 1), "cv2.imwrite": ("filename", 0), "soundfile.write": ("file", 0)}
_MODELS = re.compile(r"model|net\b|unet|adapter|unwrapped|engine", re.IGNORECASE)


def writes(module: Module) -> list[tuple[Call, ast.expr]]:
    """Return the calls that write a file, each with its path."""
    found = [(call, call.argument(*at)) for name, at in _STATES.items() for call in module.named(name)]
    for call in module.methods("save_pretrained"):
        told = call.keyword("is_main_process") or call.keyword("save_function") or call.is_open
        if _MODELS.search(call.base) and not told:
            found.append((call, call.argument("save_directory", 0)))
    for call in module.methods("open"):
        mode = call.argument("mode", 1) if call.text == "open" else None
        # what is opened to add to it, and not for this block, may be written to by one rank
        added = isinstance(call.place.stmt, ast.With) and "a"
        if isinstance(mode, ast.Constant) and str(mode.value)[:1] in {"w", "x", added}:
            found.append((call, call.argument("file", 0)))
    for call in (*module.named(*_ARRAYS), *module.methods(*_TABLES)):
        of_path = call.method.startswith("write_")
        found.append((call, receiver(call.node) if of_path else call.node.args[0] if call.node.args else None))
    images = [(call, call.argument(*at)) for name, at in _IMAGES.items() for call in module.named(name)]
    found += [(call, path) for call, path in images if path and _is_counted(module, path, call.place.scope)]
    return [(call, path) for call, path in found if path is not None and not is_const(path, None)]


def _is_counted(module: Module, path: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether a path is made of constants, options and numbers of epochs or steps, not of the names of samples."""
    names = {part.id for part in ast.walk(path) if isinstance(part, ast.Name)} - set(module.imports.bound)
    for name in (each for each in names if not OPTIONS.fullmatch(each) and each not in {"str", "int", "self"}):
        found = module.binding(name, scope)
        loop = found.place.stmt if found is not None and found.value is None else None
        if not (isinstance(loop, ast.For) and _is_number(loop, name)) and (
            found is None or found.value is None or not depth or not _is_counted(module, found.value, scope, depth - 1)
        ):
            return False
    return True
