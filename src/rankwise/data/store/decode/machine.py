"""What compiled code needs and Python has no words for: memory at an address, calls through one, 16-bit floats."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rankwise.data.store.decode.tasks import SLOTS

__all__ = [
    "bfloat16_bits",
    "bfloat16_from_float",
    "blank64",
    "call_plane",
    "double_from_half",
    "elements",
    "ended",
    "entry",
    "external",
    "falls_of",
    "float_from_half",
    "float_from_half_bits",
    "get",
    "half_bits",
    "half_bits_of_double",
    "half_from_float",
    "inlined",
    "ir",
    "numba",
    "peek32",
    "peek64",
    "prefetch",
    "put",
    "put8",
    "put32",
    "real_entry",
    "stream64",
    "streamed",
    "types",
]

ir: Any = importlib.import_module("llvmlite.ir")

_HALF_MANTISSA, _HALF_BIAS, _HALF_INFINITY = 10, 15, 0x7C00


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wide:
    """A float format wider than half precision: bits in all, bits of the mantissa, bias of the exponent."""

    bits: int
    mantissa: int
    bias: int

    @property
    def word(self) -> Any:
        return ir.IntType(self.bits)

    @property
    def real(self) -> Any:
        return ir.FloatType() if self.bits == 32 else ir.DoubleType()

    @property
    def dropped(self) -> int:
        """Bits of the mantissa that half precision does not have."""
        return self.mantissa - _HALF_MANTISSA

    @property
    def infinity(self) -> int:
        return ((1 << (self.bits - 1 - self.mantissa)) - 1) << self.mantissa

    def at_exponent(self, exponent: int) -> int:
        """Return the bits of two to the power of `exponent`."""
        return (self.bias + exponent) << self.mantissa


_WIDE = {32: _Wide(bits=32, mantissa=23, bias=127), 64: _Wide(bits=64, mantissa=52, bias=1023)}


def half_from_float(builder: Any, value: Any, bits: int) -> Any:
    """Emit: the 16 bits of a float of `bits` bits, rounded to nearest even."""
    wide = _WIDE[bits]
    word = builder.bitcast(value, wide.word)
    size = builder.and_(word, _constant(wide, (1 << (bits - 1)) - 1))
    # Adding a number whose last bit weighs as much as that of a subnormal half rounds to it
    magic = wide.at_exponent(wide.mantissa - 24)
    real = builder.fadd(builder.bitcast(size, wide.real), builder.bitcast(_constant(wide, magic), wide.real))
    subnormal = builder.sub(builder.bitcast(real, wide.word), _constant(wide, magic))
    odd = builder.and_(builder.lshr(size, _constant(wide, wide.dropped)), _constant(wide, 1))
    shift = ((wide.bias - _HALF_BIAS) << wide.mantissa) - ((1 << (wide.dropped - 1)) - 1)
    normal = builder.lshr(builder.add(builder.sub(size, _constant(wide, shift)), odd), _constant(wide, wide.dropped))
    result = builder.select(_below(builder, wide, size, wide.at_exponent(-14)), subnormal, normal)
    result = builder.select(_below(builder, wide, size, wide.at_exponent(16)), result, _constant(wide, _HALF_INFINITY))
    result = builder.select(_below(builder, wide, size, wide.infinity + 1), result, _half_nan(builder, wide, size))
    sign = builder.and_(builder.lshr(word, _constant(wide, bits - 16)), _constant(wide, 0x8000))
    return builder.trunc(builder.or_(result, sign), ir.IntType(16))


def float_from_half(builder: Any, half: Any, bits: int) -> Any:
    """Emit: the float of `bits` bits that 16 bits stand for; exact."""
    wide = _WIDE[bits]
    word = builder.zext(half, wide.word)
    size = builder.shl(builder.and_(word, _constant(wide, 0x7FFF)), _constant(wide, wide.dropped))
    exponent = builder.and_(word, _constant(wide, _HALF_INFINITY))
    rebias = (wide.bias - _HALF_BIAS) << wide.mantissa
    normal = builder.add(size, _constant(wide, rebias))
    special = builder.or_(size, _constant(wide, wide.infinity))
    # A subnormal half is a mantissa at the smallest exponent, less the leading one that it does not have
    least = wide.at_exponent(-14)
    real = builder.fsub(
        builder.bitcast(builder.or_(size, _constant(wide, least)), wide.real),
        builder.bitcast(_constant(wide, least), wide.real),
    )
    is_small = builder.icmp_unsigned("==", exponent, _constant(wide, 0))
    result = builder.select(is_small, builder.bitcast(real, wide.word), normal)
    is_special = builder.icmp_unsigned("==", exponent, _constant(wide, _HALF_INFINITY))
    result = builder.select(is_special, special, result)
    sign = builder.shl(builder.and_(word, _constant(wide, 0x8000)), _constant(wide, bits - 16))
    return builder.bitcast(builder.or_(result, sign), wide.real)


def bfloat16_from_float(builder: Any, value: Any) -> Any:
    """Emit: the 16 bits of bfloat16 of a float of 32 bits, rounded to nearest even; every NaN is the quiet one."""
    wide = _WIDE[32]
    word = builder.bitcast(value, wide.word)
    size = builder.and_(word, _constant(wide, 0x7FFFFFFF))
    odd = builder.and_(builder.lshr(word, _constant(wide, 16)), _constant(wide, 1))
    rounded = builder.lshr(builder.add(builder.add(word, _constant(wide, 0x7FFF)), odd), _constant(wide, 16))
    sign = builder.and_(builder.lshr(word, _constant(wide, 16)), _constant(wide, 0x8000))
    nan = builder.or_(sign, _constant(wide, 0x7FC0))
    result = builder.select(_below(builder, wide, size, wide.infinity + 1), rounded, nan)
    return builder.trunc(result, ir.IntType(16))


def _half_nan(builder: Any, wide: _Wide, size: Any) -> Any:
    """Emit: the upper bits of a NaN's payload, or its lowest bit where that would make it infinite."""
    payload = builder.and_(builder.lshr(size, _constant(wide, wide.dropped)), _constant(wide, 0x3FF))
    is_lost = builder.icmp_unsigned("==", payload, _constant(wide, 0))
    return builder.or_(builder.select(is_lost, _constant(wide, 1), payload), _constant(wide, _HALF_INFINITY))


def _below(builder: Any, wide: _Wide, size: Any, limit: int) -> Any:
    return builder.icmp_unsigned("<", size, _constant(wide, limit))


def _constant(wide: _Wide, number: int) -> Any:
    return ir.Constant(wide.word, number)


numba: Any = importlib.import_module("numba")  # typed in some releases, and not in others
types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., int])
_Emit = Callable[[Any, Any], Any]
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_LINE = ir.VectorType(_I8, 64)
_long = types.int64


def inlined(function: _Function) -> _Function:
    """Compile a helper of compiled functions when it is first called by one; not for calls from Python."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy", "boundscheck": False}
    compiled: _Function = numba.njit(_nrt=False, **options)(function)
    return compiled


def external(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a C function that is registered under a name, for use in compiled functions."""
    function: Callable[..., Any] = types.ExternalFunction(name, result(*arguments))
    return function


# numba counts the parameters of what it asks for the types of a call
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


def _load64(builder: Any, values: Any) -> Any:
    return builder.load(builder.inttoptr(values[0], _I64.as_pointer()), align=1)


def _prefetch(builder: Any, values: Any) -> None:
    pointer = builder.inttoptr(values[0], _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    builder.call(function, [pointer, *(ir.Constant(_I32, setting) for setting in (0, 0, 1))])


def _stream(builder: Any, values: Any) -> None:
    line = builder.load(builder.inttoptr(values[1], _LINE.as_pointer()), align=1)
    stored = builder.store(line, builder.inttoptr(values[0], _LINE.as_pointer()), align=64)
    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_I32, 1)]))


def _blank(builder: Any, values: Any) -> None:
    builder.store(ir.Constant(_LINE, None), builder.inttoptr(values[0], _LINE.as_pointer()), align=1)


def _elements(_typing: Any, _address: Any, element: Any) -> Any:
    result = types.CPointer(element.dtype)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(result))

    return result(_long, element), generate


def _cast(result: Any, argument: Any, emit: _Emit) -> Callable[[Any], Any]:
    return _emitted(result, (argument,), lambda builder, values: emit(builder, values[0]))


def falls_of(element: Any) -> Callable[[int], int]:
    """Return a function for compiled code that looks at 64 bytes of whole numbers at any address.

    It returns 0 where each of them is larger than the one before it, that before the first one included.

    Args:
        element: type such as `numpy.uint16`.
    """
    dtype = np.dtype(element)
    line = ir.VectorType(ir.IntType(8 * dtype.itemsize), 64 // dtype.itemsize)

    def emit(builder: Any, values: Any) -> Any:
        before = builder.sub(values[0], ir.Constant(_I64, dtype.itemsize))
        here, there = (builder.load(builder.inttoptr(at, line.as_pointer()), align=1) for at in (values[0], before))
        compare = builder.icmp_signed if dtype.kind == "i" else builder.icmp_unsigned
        return builder.zext(builder.bitcast(compare("<=", here, there), ir.IntType(line.count)), _I64)

    return _emitted(_long, (_long,), emit)


# The job's slots and the tables whose addresses they hold
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
# Notes the detail of a chunk and returns its status
ended: Callable[[int, int, int, int], int] = _emitted(_long, (_long,) * 4, _end)

# Memory at addresses
peek32: Callable[[int], int] = _emitted(_long, (_long,), _load32)
peek64: Callable[[int], int] = _emitted(_long, (_long,), _load64)
# Looks an address up that is written soon; nothing happens where there is no memory
prefetch: Callable[[int], None] = _emitted(types.void, (_long,), _prefetch)
elements: Callable[[int, Any], Any] = numba.extending.intrinsic(_elements)
# Zeroes 64 bytes at any address
blank64: Callable[[int], None] = _emitted(types.void, (_long,), _blank)
# Writes 64 bytes to an aligned address past the caches: (to, from); `streamed` makes them seen before what follows
stream64: Callable[[int, int], None] = _emitted(types.void, (_long,) * 2, _stream)
streamed: Callable[[], None] = _emitted(types.void, (), lambda builder, _values: builder.fence("seq_cst"))
call_plane: Callable[..., int] = _emitted(_long, (_long,) * 7 + (types.float64,) * 2, _call)

# Floats of 16 bits
half_bits = _cast(types.uint16, types.float32, lambda builder, value: half_from_float(builder, value, 32))
half_bits_of_double = _cast(types.uint16, types.float64, lambda builder, value: half_from_float(builder, value, 64))
float_from_half_bits = _cast(types.float32, types.uint16, lambda builder, half: float_from_half(builder, half, 32))
double_from_half = _cast(types.float64, types.uint16, lambda builder, half: float_from_half(builder, half, 64))
bfloat16_bits = _cast(types.uint16, types.float32, bfloat16_from_float)
