"""From a Python function to the address of a compiled one, and the decoders of the numcodecs wheel as its symbols."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankwise.data.store.decode.machine import numba
from rankwise.data.store.decode.tasks import IMPORTED_S
from rankwise.errors import DataError

__all__ = ["compiled_address"]

_caching: Any = importlib.import_module("numba.core.caching")
_cpu: Any = importlib.import_module("numba.core.registry").cpu_target

_SOURCES = (
    "bits", "machine", "job", "layout", "tasks", "status", "symbols", "streaming", "planes", "spreading", "weaving",
    "fetching", "dense_placing", "placing",
)  # fmt: skip

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


__all__ = ["PREFIX", "SymbolsMissingError", "free_zstd_context", "known_compressors", "make_zstd_context", "register"]

PREFIX = "rankwise_"

# Which extension module of numcodecs exports what.
_EXPORTED = {
    "zstd": ("ZSTD_decompressDCtx",),
    "blosc": ("blosc_decompress_ctx", "blosc_getitem", "blosc_cbuffer_validate"),
    "lz4": ("LZ4_decompress_safe",),
}
_CONTEXT = ("ZSTD_createDCtx", "ZSTD_freeDCtx")
_FORMATS = {"blosclz": 0, "lz4": 1, "lz4hc": 1, "snappy": 2, "zlib": 3, "zstd": 4}


class SymbolsMissingError(DataError):
    """This build of numcodecs (or of the C library) does not export what compiled code calls."""


def register() -> None:
    """Make every symbol known to compiled code, under its name with `PREFIX`.

    Raises:
        SymbolsMissingError: something is not exported; nothing is registered then.
    """
    binding = importlib.import_module("llvmlite.binding")
    for name, address in _addresses().items():
        binding.add_symbol(PREFIX + name, address)


def known_compressors() -> int:
    """Return which compressors inside Blosc frames this build knows: bit i for format i."""
    from numcodecs import blosc

    return functools.reduce(lambda bits, name: bits | 1 << _FORMATS.get(name, 31), blosc.list_compressors(), 0)


def make_zstd_context() -> int:
    """Return the address of a new context for decoding zstd, 0 if there is no memory for it."""
    make = ctypes.CFUNCTYPE(ctypes.c_void_p)(_address("zstd", _CONTEXT[0]))
    return int(make() or 0)


def free_zstd_context(context: int) -> None:
    """Free a context of `make_zstd_context`."""
    ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(_address("zstd", _CONTEXT[1]))(context)


def _addresses() -> dict[str, int]:
    found = {name: _address(module, name) for module, names in _EXPORTED.items() for name in names}
    for name in _CONTEXT:
        _address("zstd", name)
    errno = "__error" if sys.platform == "darwin" else "__errno_location"
    return (
        found | {name: _libc_address(name) for name in ("pread", "memcpy", "memset")} | {"errno": _libc_address(errno)}
    )


@functools.cache
def _address(module: str, name: str) -> int:
    """Return the address of an exported function of an extension module of numcodecs."""
    try:
        path = importlib.import_module(f"numcodecs.{module}").__file__
        # The module is loaded: this finds the same copy again and hides none of its dependencies
        return _address_in(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL), name)
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise SymbolsMissingError(f"numcodecs.{module} does not export {name} ({error})") from error


def _libc_address(name: str) -> int:
    try:
        return _address_in(ctypes.CDLL(None), name)
    except (OSError, AttributeError) as error:
        raise SymbolsMissingError(f"the C library does not export {name} ({error})") from error


def _address_in(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    if not address:
        raise ValueError(f"{name} lies at address 0")
    return address
