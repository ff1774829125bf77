"""From a Python function to the address of a compiled one, by way of numba's cache on disk.

This module imports numba: import it late.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwise.data.store.decode.machine import numba
from rankwise.data.store.decode.tasks import IMPORTED_S

__all__ = ["compiled_address"]

_caching: Any = importlib.import_module("numba.core.caching")
_cpu: Any = importlib.import_module("numba.core.registry").cpu_target

_SOURCES = ("machine", "tasks", "symbols", "planes", "spread", "fetching", "placing")

_kept: list[Any] = []  # compiled code lives as long as the process: addresses of it are handed out


def compiled_address(function: Callable[..., Any], name: str, signature: Any) -> tuple[int, bool]:
    """Return the address of a function compiled for a signature, as C calls it, and whether it was on disk already.

    It comes from numba's cache on disk where it is there, else it is compiled and put there. A folder for the cache
    is looked for where numba looks: ``NUMBA_CACHE_DIR``, beside the package, the user's cache folder. Where none can
    be written, every process compiles; so does one whose sources were replaced while it ran: its code is the old one,
    and others would take it for that of the new sources.

    Args:
        function: a function of numbers; what it closes over are constants.
        name: tells it apart from all others of its module.
        signature: its types.
    """
    # Files of the cache then hold one function each, for one version of everything that shapes it: several processes,
    # also on different processors, write the same bytes to one file, or different bytes to different files.
    function.__qualname__ = f"{name}_{_versions()}"
    is_current = not _were_replaced(function)
    address = _loaded(function, signature) if is_current else None
    return (_compiled(function, signature, cached=is_current), False) if address is None else (address, True)


def _were_replaced(function: Callable[..., Any]) -> bool:
    """Whether files were written that this process has read before, or whether that cannot be told."""
    try:
        return max(path.stat().st_ctime for path in (*_sources(), Path(function.__code__.co_filename))) > IMPORTED_S
    except OSError:
        return True


def _loaded(function: Callable[..., Any], signature: Any) -> int | None:
    """Return the address of what lies on disk.

    numba's own way loads all that compiling needs first, which takes longer than everything else here.
    """
    try:
        found = _caching.FunctionCache(function)._load_overload(signature, _cpu.target_context)  # noqa: SLF001
        if found is None:
            return None
        address = int(found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name))
    except Exception:  # noqa: BLE001  (no folder, a damaged file, another numba: compiling always works)
        return None
    _kept.append(found)
    return address


def _compiled(function: Callable[..., Any], signature: Any, *, cached: bool) -> int:
    compile_it = functools.partial(numba.cfunc, signature, error_model="numpy", boundscheck=False, _nrt=False)
    made = None
    if cached:
        with contextlib.suppress(Exception):  # the cache, or the code: without the cache we see which
            made = compile_it(cache=True)(function)
    if made is None and cached:
        with contextlib.suppress(Exception):  # damaged files are forgotten, and written anew
            _caching.FunctionCache(function).flush()
            made = compile_it(cache=True)(function)
    if made is None:
        made = compile_it()(function)
    _kept.append(made)
    return int(made.address)


def _sources() -> list[Path]:
    return [Path(__file__).with_name(f"{name}.py") for name in _SOURCES]


@functools.cache
def _versions() -> str:
    """Return a short hash of our sources, of the compilers, and of the processor compiled for."""
    digest = hashlib.sha256()
    for path in _sources():
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    target = _cpu.target_context.codegen().magic_tuple()
    digest.update(repr((numba.__version__, importlib.import_module("llvmlite").__version__, target)).encode())
    return digest.hexdigest()[:16]
