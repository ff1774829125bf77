"""Compiles a Python function, or loads it from numba's disk cache, and returns its address.

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

_caching: Any = importlib.import_module("numba.core.caching")
_cpu: Any = importlib.import_module("numba.core.registry").cpu_target

_SOURCES = ("machine", "tasks", "symbols", "planes", "chunk_loop")

_kept: list[Any] = []  # compiled code must live as long as the process: its address is handed out


def compiled_address(function: Callable[..., Any], name: str, signature: Any) -> tuple[int, bool]:
    """Return the address of a function compiled for a signature, for calls from C, and whether it was on disk.

    It is loaded from numba's disk cache, else compiled and stored there. The cache folder is the one that numba would
    use: ``NUMBA_CACHE_DIR``, beside the package, or the user's cache folder. If none is writable, every process
    compiles. So does a process whose sources were replaced while it ran: its code is the old one, and must not be
    stored as that of the new sources.

    Args:
        function: a function of numbers; its closure has constants only.
        name: distinguishes it from all others of its module.
        signature: its types.
    """
    # Each cache file then has one function, for one version of all inputs of compilation: several processes, even on
    # different processors, write the same bytes to one file, or different bytes to different files.
    function.__qualname__ = f"{name}_{_versions()}"
    is_current = not _were_replaced(function)
    address = _loaded(function, signature) if is_current else None
    return (_compiled(function, signature, cached=is_current), False) if address is None else (address, True)


def _were_replaced(function: Callable[..., Any]) -> bool:
    """Whether source files were written after this process read them, or whether this is unknown."""
    try:
        return max(path.stat().st_ctime for path in (*_sources(), Path(function.__code__.co_filename))) > IMPORTED_S
    except OSError:
        return True


def _loaded(function: Callable[..., Any], signature: Any) -> int | None:
    """Return the address of the function in the disk cache.

    numba's own method first imports everything for compiling, which takes longer than all the rest here.
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
        with contextlib.suppress(Exception):  # damaged files are ignored, and rewritten
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
    """Return a short hash of our sources, the compilers, and the target processor."""
    digest = hashlib.sha256()
    for path in _sources():
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    target = _cpu.target_context.codegen().magic_tuple()
    digest.update(repr((numba.__version__, importlib.import_module("llvmlite").__version__, target)).encode())
    return digest.hexdigest()[:16]
