"""The rank's side of `rankwise.run`: unpack the call, execute it, write its value to a file for the caller."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwise.errors import LaunchError

_loading_main = False


def find_function(module: str, qualname: str, depth: int = 0) -> Any:
    """Import `module` and return what is there under a dotted name.

    `depth` decorators are unwrapped (`__wrapped__`): the name alone leads to the decorated function.
    """
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    for _ in range(depth):
        found = found.__wrapped__
    return found


def is_loading_main() -> bool:
    """Whether this rank is importing the caller's main program right now; a launch from there is an error."""
    return _loading_main


def value_path(folder: Path, rank: int) -> Path:
    """Return the file to which a rank writes its value."""
    return folder / f"value-{rank}"


def run_call(path: Path, rank: int) -> None:
    """Execute the call that `pack_call` packed into `path` and write its value to a file in the same folder.

    Raises:
        LaunchError: the call cannot be read here, or its value cannot be sent back.
    """
    import pickle  # imported late, as below: the supervisor loads this module too, and must start fast

    packed = pickle.loads(path.read_bytes())  # noqa: S301  (written by the caller, in a folder of this user)
    sys.path[:] = packed["sys_path"]
    if packed["main"] is not None:
        _load_main(packed["main"])
    try:
        fn, args, kwargs = pickle.loads(packed["call"])  # noqa: S301
    except Exception as error:
        raise LaunchError(
            f"rank {rank} cannot read its call of {packed['name']}: {type(error).__name__}: {error}; what is sent must "
            "be importable here under the same name"
        ) from error
    if packed["reference"] is not None:
        fn = find_function(*packed["reference"])
    if packed["platform"] is None:
        value = fn(*args, **kwargs)
    else:
        from rankwise.launch.functions.platforms import run_task

        value = run_task(fn, args, kwargs, packed["platform"])
    _leave(value, value_path(path.parent, rank), rank, packed["name"])


def _load_main(main: Mapping[str, str]) -> None:
    """Import the caller's main program as `__mp_main__`, as multiprocessing does: its guarded part does not run."""
    global _loading_main  # noqa: PLW0603
    _loading_main = True
    import runpy

    try:
        module = types.ModuleType("__mp_main__")
        if "name" in main:
            content = runpy.run_module(main["name"], run_name="__mp_main__", alter_sys=True)
        else:
            sys.argv[0] = main["path"]
            content = runpy.run_path(main["path"], run_name="__mp_main__")
        module.__dict__.update(content)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    finally:
        _loading_main = False


def _leave(value: Any, path: Path, rank: int, name: str) -> None:
    try:
        data = _dumps(value)
    except Exception as error:
        from rankwise.launch.functions.pickled_call import find_unsendable

        place, guilty = find_unsendable(value, "", _dumps)
        where = f"{place.removeprefix('.')} of " if place else ""
        raise LaunchError(
            f"{where}the value of {name} on rank {rank}, a {type(guilty).__name__}, cannot be sent back: {error}; "
            "return numbers, arrays, tensors or containers of them"
        ) from error
    part = path.with_suffix(".part")
    part.write_bytes(data)
    os.replace(part, path)  # noqa: PTH105


def _dumps(value: Any) -> bytes:
    import pickle

    try:
        return pickle.dumps(value)
    except Exception:
        try:
            import cloudpickle
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        return bytes(cloudpickle.dumps(value))
