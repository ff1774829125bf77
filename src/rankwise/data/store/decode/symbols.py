"""The decoders in the numcodecs wheel, as symbols that compiled code can call.

Compiled code on disk refers to them by name, and calling an unregistered name ends the process. So either all of
them are found and registered, or none.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys

from rankwise.errors import DataError

PREFIX = "rankwise_"

# Exported functions by extension module of numcodecs.
_EXPORTED = {
    "zstd": ("ZSTD_decompressDCtx",),
    "blosc": ("blosc_decompress_ctx", "blosc_getitem", "blosc_cbuffer_validate"),
    "lz4": ("LZ4_decompress_safe",),
}
_CONTEXT = ("ZSTD_createDCtx", "ZSTD_freeDCtx")
_FORMATS = {"blosclz": 0, "lz4": 1, "lz4hc": 1, "snappy": 2, "zlib": 3, "zstd": 4}


class SymbolsMissingError(DataError):
    """This build of numcodecs (or of the C library) does not export a function that compiled code calls."""


def register() -> None:
    """Register every symbol for compiled code, under its name with `PREFIX`.

    Raises:
        SymbolsMissingError: a symbol is not exported; then none is registered.
    """
    binding = importlib.import_module("llvmlite.binding")
    for name in _CONTEXT:  # called by Python only, but needed all the same
        _address("zstd", name)
    errno = "__error" if sys.platform == "darwin" else "__errno_location"
    found = {name: _address(module, name) for module, names in _EXPORTED.items() for name in names}
    found |= {name: _address(None, name) for name in ("pread", "memcpy", "memset")}
    for name, address in (found | {"errno": _address(None, errno)}).items():
        binding.add_symbol(PREFIX + name, address)


@functools.cache
def known_compressors() -> int:
    """Return which compressors inside Blosc frames this build supports: bit i for format i."""
    from numcodecs import blosc

    return functools.reduce(lambda bits, name: bits | 1 << _FORMATS.get(name, 31), blosc.list_compressors(), 0)


def make_zstd_context() -> int:
    """Return the address of a new zstd decoding context, 0 if there is no memory for it."""
    make = ctypes.CFUNCTYPE(ctypes.c_void_p)(_address("zstd", _CONTEXT[0]))
    return int(make() or 0)


def free_zstd_context(context: int) -> None:
    """Free a context from `make_zstd_context`."""
    ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)(_address("zstd", _CONTEXT[1]))(context)


@functools.cache
def _address(module: str | None, name: str) -> int:
    """Return the address of an exported function of an extension module of numcodecs, or (None) of the C library."""
    where = "the C library" if module is None else f"numcodecs.{module}"
    try:
        path = None if module is None else importlib.import_module(where).__file__
        # The module is loaded: this returns the same copy, with its dependencies
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except (ImportError, OSError, AttributeError) as error:
        raise SymbolsMissingError(f"{where} does not export {name} ({error})") from error
    if not address:
        raise SymbolsMissingError(f"{where} does not export {name} (it lies at address 0)")
    return address
