"""Compiles Python functions to addresses; operations that Python lacks: memory at an address, 16-bit floats."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rankwise.data.store.decode.symbols import PREFIX
from rankwise.data.store.decode.tasks import IMPORTED_S, SLOTS

ir: Any = importlib.import_module("llvmlite.ir")

numba: Any = importlib.import_module("numba")  # typed only in some releases
types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Cast = Callable[[Any], Any]
_Emit = Callable[[Any, Any], Any]
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_LINE = ir.VectorType(_I8, 64)
_long = types.int64


def inlined(function: _Function) -> _Function:
    """Compile a helper for compiled functions on first use; not callable from Python."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy", "boundscheck": False}
    compiled: _Function = numba.njit(_nrt=False, **options)(function)
    return compiled


def external(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a C function that is registered under a name, for use in compiled functions."""
    function: Callable[..., Any] = types.ExternalFunction(name, result(*arguments))
    return function


# numba counts the parameters of functions that return call types
_WITH_PARAMETERS: dict[int, Callable[[Any], Any]] = {
    0: lambda answer: lambda _typing: answer,
    1: lambda answer: lambda _typing, _1: answer,
    2: lambda answer: lambda _typing, _1, _2: answer,
    9: lambda answer: lambda _typing, _1, _2, _3, _4, _5, _6, _7, _8, _9: answer,
}


def _emitted(result: Any, arguments: tuple[Any, ...], emit: _Emit) -> Callable[..., Any]:
    """Return a function for compiled code whose instructions ``emit(builder, values)`` writes."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        emitted = emit(builder, values)
        return context.get_dummy_value() if result is types.void else emitted

    answer = (result(*arguments), generate)
    made: Callable[..., Any] = numba.extending.intrinsic(_WITH_PARAMETERS[len(arguments)](answer))
    return made


def _call(builder: Any, values: Any) -> Any:
    real = ir.DoubleType()
    function = ir.FunctionType(_I64, [_I64] * 6 + [real, real])
    return builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])


def _load32(builder: Any, values: Any) -> Any:
    return builder.sext(builder.load(builder.inttoptr(values[0], _I32.as_pointer()), align=1), _I64)


def _stream(builder: Any, values: Any) -> None:
    line = builder.load(builder.inttoptr(values[1], _LINE.as_pointer()), align=1)
    stored = builder.store(line, builder.inttoptr(values[0], _LINE.as_pointer()), align=64)
    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _elements(_typing: Any, _address: Any, element: Any) -> Any:
    result = types.CPointer(element.dtype)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(result))

    return result(_long, element), generate


def falls_of(element: Any) -> Callable[[int], int]:
    """Return a function for compiled code that checks 64 bytes of integers at any address.

    It returns 0 if each of them, including the first, is larger than its predecessor in memory.
    """
    dtype = np.dtype(element)
    line = ir.VectorType(ir.IntType(8 * dtype.itemsize), 64 // dtype.itemsize)

    def emit(builder: Any, values: Any) -> Any:
        before = builder.sub(values[0], ir.Constant(_I64, dtype.itemsize))
        here, there = (builder.load(builder.inttoptr(at, line.as_pointer()), align=1) for at in (values[0], before))
        compare = builder.icmp_signed if dtype.kind == "i" else builder.icmp_unsigned
        return builder.zext(builder.bitcast(compare("<=", here, there), ir.IntType(line.count)), _I64)

    return _emitted(_long, (_long,), emit)


peek32: Callable[[int], int] = _emitted(_long, (_long,), _load32)
elements: Callable[[int, Any], Any] = numba.extending.intrinsic(_elements)
# Write 64 bytes to an aligned address past the caches: (to, from); `streamed` orders them before later writes
stream64: Callable[[int, int], None] = _emitted(types.void, (_long,) * 2, _stream)
streamed: Callable[[], None] = _emitted(types.void, (), lambda builder, _values: builder.fence("seq_cst"))
call_plane: Callable[..., int] = _emitted(_long, (_long,) * 7 + (types.float64,) * 2, _call)

memcpy = external(f"{PREFIX}memcpy", _long, _long, _long, _long)
_word, _status, _mark, _real = np.int64, np.int32, np.uint8, np.float64
_DETAIL = SLOTS["detail"]


@inlined
def get(job: int, slot: int) -> int:
    """Return the value in a slot of a job."""
    value: int = elements(job + slot, _word)[0]
    return value


@inlined
def put(job: int, slot: int, value: int) -> int:
    """Write the value of a slot; return 0."""
    elements(job + slot, _word)[0] = value
    return 0


@inlined
def entry(job: int, table: int, index: int) -> int:
    """Return an entry of the int64 table whose address is in a slot."""
    value: int = elements(get(job, table), _word)[index]
    return value


@inlined
def real_entry(job: int, table: int, index: int) -> Any:
    """Return an entry of a float64 table."""
    return elements(get(job, table), _real)[index]


@inlined
def put8(job: int, table: int, index: int, value: int) -> int:
    """Write an entry of a uint8 table; return 0."""
    elements(get(job, table), _mark)[index] = value
    return 0


@inlined
def put32(job: int, table: int, index: int, value: int) -> int:
    """Write an entry of an int32 table; return 0."""
    elements(get(job, table), _status)[index] = value
    return 0


@inlined
def ended(job: int, chunk: int, status: int, detail: int) -> int:
    """Set the detail of a chunk; return its status."""
    elements(get(job, _DETAIL), _word)[chunk] = detail
    return status


@inlined
def stream_bytes(target: int, source: int, num_bytes: int) -> int:
    """Copy bytes, whole lines of the target past the caches; return 0."""
    head = min(-target & 63, num_bytes)
    memcpy(target, source, head)
    target, source, rest = target + head, source + head, num_bytes - head
    lines = rest >> 6
    for line in range(lines):
        stream64(target + 64 * line, source + 64 * line)
    memcpy(target + 64 * lines, source + 64 * lines, rest & 63)
    return 0


def _half_casts(word: Any, real: Any, mantissa: int, bias: int) -> tuple[_Cast, _Cast]:
    """Return the casts to the 16 bits of half precision, rounded to nearest even, and back, for compiled code.

    All cases are computed and one is selected, so that loops vectorise; `word` truncates what numba widens to 64 bits.

    Args:
        word: unsigned type of the bits of a wider float, for example `numpy.uint32`.
        real: that float.
        mantissa: number of mantissa bits.
        bias: bias of the exponent.
    """
    bits = 8 * np.dtype(word).itemsize
    dropped, to_sign, sign, one = word(mantissa - 10), word(bits - 16), word(0x8000), word(1)
    unsigned, least, limit = word((1 << (bits - 1)) - 1), word((bias - 14) << mantissa), word((bias + 16) << mantissa)
    infinity, half_infinity, payload = word((2 * bias + 1) << mantissa), word(0x7C00), word(0x3FF)
    rebias, size_of_half, nothing = word((bias - 15) << mantissa), word(0x7FFF), word(0)
    rounding = word((1 << (mantissa - 11)) - 1)
    # adding a number whose last bit has the weight of a subnormal half rounds to it
    magic = word((bias + mantissa - 24) << mantissa)

    @inlined
    def to_half(value: Any) -> Any:
        own = real(value).view(word)
        size = word(own & unsigned)
        subnormal = word(real(word(size).view(real) + word(magic).view(real)).view(word) - magic)
        padded = word(word(size >> dropped) & one)
        result = word(word(word(size - rebias) + word(rounding + padded)) >> dropped)
        result = subnormal if size < least else result
        result = half_infinity if size >= limit else result
        kept = word(word(size >> dropped) & payload)  # of a NaN, which must not become infinite
        kept = one if kept == nothing else kept
        result = word(kept | half_infinity) if size > infinity else result
        return np.uint16(word(result | word(word(own >> to_sign) & sign)))

    @inlined
    def from_half(half: Any) -> Any:
        own = word(half)
        size, exponent = word(word(own & size_of_half) << dropped), word(own & half_infinity)
        # a subnormal half is a mantissa at the smallest exponent, minus the leading one that it lacks
        subnormal = real(word(size | least).view(real) - word(least).view(real)).view(word)
        result = subnormal if exponent == nothing else word(size + rebias)
        result = word(size | infinity) if exponent == half_infinity else result
        return word(result | word(word(own & sign) << to_sign)).view(real)

    return to_half, from_half


half_bits, float_from_half_bits = _half_casts(np.uint32, np.float32, mantissa=23, bias=127)
half_bits_of_double, double_from_half = _half_casts(np.uint64, np.float64, mantissa=52, bias=1023)
_bits = np.uint32
_SIZE, _INFINITY, _LOWER, _UPPER, _ONE = map(np.uint32, (0x7FFFFFFF, 0x7F800000, 0x7FFF, 16, 1))
_SIGN, _NAN = np.uint16(0x8000), np.uint16(0x7FC0)


@inlined
def bfloat16_bits(value: Any) -> Any:
    """Return the 16 bits of bfloat16 for a 32-bit float, rounded to nearest even; every NaN becomes the quiet one."""
    own = np.float32(value).view(_bits)
    size = np.uint32(own & _SIZE)
    padded = np.uint32(np.uint32(size >> _UPPER) & _ONE)
    rounded = np.uint16(np.uint32(np.uint32(size + np.uint32(_LOWER + padded)) >> _UPPER))
    rounded = _NAN if size > _INFINITY else rounded
    return np.uint16(rounded | np.uint16(np.uint16(own >> _UPPER) & _SIGN))


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
