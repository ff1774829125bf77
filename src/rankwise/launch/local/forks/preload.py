"""Find from a target's source text what it certainly imports before anything else."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.launch.target import Target

_TORCH = "torch"
_BEFORE = frozenset({"numpy"})  # loaded in the script's order, because the order of its shared libraries matters
_IGNORED = frozenset({"rankwise", *sys.stdlib_module_names})
_ONLY_TREE = 0x400  # `ast.PyCF_ONLY_AST`; importing `ast` takes longer than parsing a script
_MOST_BYTES = 1 << 20


def source_of(target: Target) -> tuple[Path | None, str | None]:
    """Return the file that a rank executes first, None if that is unknown, and the folder of the program's own modules.

    For a module in a package it is unknown: the package's `__init__` runs first.
    """
    match target.kind:
        case "script":
            path = Path(target.name)
            known = path.is_file() and path.suffix not in {".pyc", ".pyz", ".zip"}
            return (path if known else None), str(path.resolve().parent)
        case "module" | "function":
            here, name = Path.cwd(), target.name.partition(":")[0]
            path = here / f"{name}.py"
            return (path if path.is_file() and not (here / name).exists() else None), str(here)
        case "call":
            main = Path(target.main) if target.main else None
            return main, None if main is None else str(main.parent)


def leading_imports(path: Path, function: str = "") -> tuple[str, ...]:
    """Return what can be imported early, in order and up to torch, without an effect on the script; else ().

    This requires that the script imports torch at its top, and before it only the standard library, numpy and
    rankwise. Anything else before it (an assignment to `os.environ`, a change of `sys.path`, a warnings filter, another
    library) may be meant to change how torch loads. Or the function that is called imports torch at its top, and its
    file only imports the same modules and defines plain functions and constants.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks compile the file again and show them
            tree: Any = compile(path.read_bytes(), os.fspath(path), "exec", _ONLY_TREE, dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return ()  # the rank will report the error
    bodies = [[each for each in tree.body if not (function and _is_inert(each))]]
    bodies += [each.body for each in tree.body if type(each).__name__ == "FunctionDef" and each.name == function][-1:]
    before: list[str] = []
    for statement, first in ((each, number == 0) for body in bodies for number, each in enumerate(body)):
        names = _imported(statement, first=first)
        if names is None:
            return ()
        for name in names:
            if name == _TORCH:
                return (*before, _TORCH)
            if name in _BEFORE:
                before.append(name)
            elif name not in _IGNORED:
                return ()
    return ()


def _is_inert(statement: Any) -> bool:
    """Whether a statement runs nothing on import: a plain function, a constant, `if __name__ == "__main__":`."""
    match type(statement).__name__:
        case "FunctionDef":
            defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
            return not statement.decorator_list and all(type(value).__name__ == "Constant" for value in defaults)
        case "Assign":
            plain = all(type(target).__name__ == "Name" for target in statement.targets)
            return plain and type(statement.value).__name__ == "Constant"
        case "If":
            test = statement.test
            parts = [test.left, *test.comparators] if type(test).__name__ == "Compare" else []
            names = {getattr(part, "id", None) or getattr(part, "value", None) for part in parts}
            return names == {"__name__", "__main__"} and type(test.ops[0]).__name__ == "Eq" and not statement.orelse
    return False


def _imported(statement: Any, *, first: bool) -> list[str] | None:
    """Return the packages that a statement imports; None if it does anything else."""
    match type(statement).__name__:
        case "Import":
            return [alias.name.partition(".")[0] for alias in statement.names]
        case "ImportFrom" if statement.level == 0:
            return [statement.module.partition(".")[0]]
        case "Expr" if first and type(statement.value).__name__ == "Constant":
            return []  # a docstring
    return None
