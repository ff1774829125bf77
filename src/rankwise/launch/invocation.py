"""Run a target in this process as Python itself would run it."""

from __future__ import annotations

import importlib
import io
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from rankwise.launch.target import Target

__all__ = ["invoke"]


def invoke(target: Target, rank: int) -> None:
    """Run `target`; every exception that it raises propagates, including SystemExit.

    Args:
        target: script, module, function, or pickled call.
        rank: global rank; it names the file for a call's value.
    """
    sys.argv[:] = [target.name, *target.args]
    match target.kind:
        case "script":
            _run_script(target.name)
        case "module":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109  (sys.path wants text)
            runpy.run_module(target.name, run_name="__main__", alter_sys=True)
        case "function":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
            _resolve(target.name)()
        case "call":
            from rankwise.launch.bound import run_call

            run_call(Path(target.name), rank)


def _run_script(name: str) -> None:
    path = Path(name)
    if path.is_dir() or path.suffix in {".pyc", ".pyz", ".zip"}:
        runpy.run_path(name, run_name="__main__")  # a folder or archive with a __main__.py, or a compiled file
        return
    full = str(path.absolute())
    sys.path.insert(0, str(path.resolve().parent))
    # unlike runpy's, this module stays: atexit handlers and pickles by reference need it at the end
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=full, __builtins__=__builtins__, __cached__=None)
    module.__loader__ = SourceFileLoader("__main__", full)
    sys.modules["__main__"] = module
    with io.open_code(full) as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102  (this is what a launcher is for)


def _resolve(name: str) -> Any:
    """Import `package.module:attribute.attribute`."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}, not something to call")
    return found
