"""Low-level operations for compiled code that Python lacks: memory at an address, indirect calls, 16-bit floats."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from rankwise.data.store.decode.tasks import SLOTS

__all__ = [
    "bfloat16_bits",
    "call_plane",
    "double_from_half",
    "elements",
    "ended",
    "entry",
    "external",
    "falls_of",
    "float_from_half_bits",
    "get",
    "half_bits",
    "half_bits_of_double",
    "inlined",
    "ir",
    "numba",
    "peek32",
    "put",
    "put8",
    "put32",
    "real_entry",
    "stream64",
    "streamed",
    "types",
]

ir: Any = importlib.import_module("llvmlite.ir")

numba: Any = importlib.import_module("numba")  # typed only in some releases
types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., int])
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
    3: lambda answer: lambda _typing, _1, _2, _3: answer,
    4: lambda answer: lambda _typing, _1, _2, _3, _4: answer,
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


def _slot(builder: Any, job: Any, slot: Any) -> Any:
    return builder.inttoptr(builder.add(job, slot), _I64.as_pointer())


def _place(builder: Any, values: Any, stored: Any = _I64) -> Any:
    """Emit: pointer to an entry of a table, from the job, the table's slot and the entry's index."""
    job, table, index = values[:3]
    first = builder.load(_slot(builder, job, table), align=8)
    return builder.gep(builder.inttoptr(first, stored.as_pointer()), [index])


def _put_entry(bits: int) -> Callable[[int, int, int, int], None]:
    stored = ir.IntType(bits)

    def emit(builder: Any, values: Any) -> None:
        builder.store(builder.trunc(values[3], stored), _place(builder, values, stored), align=bits // 8)

    return _emitted(types.void, (_long,) * 4, emit)


def _end(builder: Any, values: Any) -> Any:
    job, chunk, status, detail = values
    place = _place(builder, (job, ir.Constant(_I64, SLOTS["detail"]), chunk))
    builder.store(detail, place, align=8)
    return status


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


def _cast(result: Any, argument: Any, emit: _Emit) -> Callable[[Any], Any]:
    return _emitted(result, (argument,), lambda builder, values: emit(builder, values[0]))


def falls_of(element: Any) -> Callable[[int], int]:
    """Return a function for compiled code that checks 64 bytes of integers at any address.

    It returns 0 if each of them, including the first, is larger than its predecessor in memory.

    Args:
        element: a type, for example `numpy.uint16`.
    """
    dtype = np.dtype(element)
    line = ir.VectorType(ir.IntType(8 * dtype.itemsize), 64 // dtype.itemsize)

    def emit(builder: Any, values: Any) -> Any:
        before = builder.sub(values[0], ir.Constant(_I64, dtype.itemsize))
        here, there = (builder.load(builder.inttoptr(at, line.as_pointer()), align=1) for at in (values[0], before))
        compare = builder.icmp_signed if dtype.kind == "i" else builder.icmp_unsigned
        return builder.zext(builder.bitcast(compare("<=", here, there), ir.IntType(line.count)), _I64)

    return _emitted(_long, (_long,), emit)


# Slots of the job, and the tables whose addresses they contain
get: Callable[[int, int], int] = _emitted(
    _long, (_long,) * 2, lambda builder, values: builder.load(_slot(builder, *values), align=8)
)
put: Callable[[int, int, int], None] = _emitted(
    types.void, (_long,) * 3, lambda builder, values: builder.store(values[2], _slot(builder, *values[:2]), align=8)
)
entry: Callable[[int, int, int], int] = _emitted(
    _long, (_long,) * 3, lambda builder, values: builder.load(_place(builder, values), align=8)
)
real_entry: Callable[[int, int, int], float] = _emitted(
    types.float64,
    (_long,) * 3,
    lambda builder, values: builder.load(_place(builder, values, ir.DoubleType()), align=8),
)
put8, put32 = _put_entry(8), _put_entry(32)
# Set the detail of a chunk and return its status
ended: Callable[[int, int, int, int], int] = _emitted(_long, (_long,) * 4, _end)

# Loads from addresses
peek32: Callable[[int], int] = _emitted(_long, (_long,), _load32)
elements: Callable[[int, Any], Any] = numba.extending.intrinsic(_elements)
# Write 64 bytes to an aligned address past the caches: (to, from); `streamed` orders them before later writes
stream64: Callable[[int, int], None] = _emitted(types.void, (_long,) * 2, _stream)
streamed: Callable[[], None] = _emitted(types.void, (), lambda builder, _values: builder.fence("seq_cst"))
call_plane: Callable[..., int] = _emitted(_long, (_long,) * 7 + (types.float64,) * 2, _call)

# 16-bit floats, via the bits of wider ones
_word32 = _cast(types.uint32, types.float32, lambda builder, value: builder.bitcast(value, _I32))
_real32 = _cast(types.float32, types.uint32, lambda builder, bits: builder.bitcast(bits, ir.FloatType()))
_word64 = _cast(types.uint64, types.float64, lambda builder, value: builder.bitcast(value, _I64))
_real64 = _cast(types.float64, types.uint64, lambda builder, bits: builder.bitcast(bits, ir.DoubleType()))
_Cast = Callable[[Any], Any]


def _half_casts(word: Any, word_of: _Cast, real_of: _Cast, mantissa: int, bias: int) -> tuple[_Cast, _Cast]:
    """Return the casts to the 16 bits of half precision, rounded to nearest even, and back, for compiled code.

    All cases are computed and one is selected, so that loops vectorise; `word` truncates what numba widens to 64 bits.

    Args:
        word: unsigned type of the bits of a wider float, for example `numpy.uint32`.
        word_of: returns its bits.
        real_of: returns the float for given bits.
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
        own = word_of(value)
        size = word(own & unsigned)
        subnormal = word(word_of(real_of(size) + real_of(magic)) - magic)
        odd = word(word(size >> dropped) & one)
        result = word(word(word(size - rebias) + word(rounding + odd)) >> dropped)
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
        subnormal = word_of(real_of(word(size | least)) - real_of(least))
        result = subnormal if exponent == nothing else word(size + rebias)
        result = word(size | infinity) if exponent == half_infinity else result
        return real_of(word(result | word(word(own & sign) << to_sign)))

    return to_half, from_half


half_bits, float_from_half_bits = _half_casts(np.uint32, _word32, _real32, mantissa=23, bias=127)
half_bits_of_double, double_from_half = _half_casts(np.uint64, _word64, _real64, mantissa=52, bias=1023)
_SIZE, _INFINITY, _LOWER, _UPPER, _ONE = map(np.uint32, (0x7FFFFFFF, 0x7F800000, 0x7FFF, 16, 1))
_SIGN, _NAN = np.uint16(0x8000), np.uint16(0x7FC0)


@inlined
def bfloat16_bits(value: Any) -> Any:
    """Return the 16 bits of bfloat16 for a 32-bit float, rounded to nearest even; every NaN becomes the quiet one."""
    own = _word32(value)
    size = np.uint32(own & _SIZE)
    odd = np.uint32(np.uint32(size >> _UPPER) & _ONE)
    rounded = np.uint16(np.uint32(np.uint32(size + np.uint32(_LOWER + odd)) >> _UPPER))
    rounded = _NAN if size > _INFINITY else rounded
    return np.uint16(rounded | np.uint16(np.uint16(own >> _UPPER) & _SIGN))
