"""Conversions to and from floats of 16 bits as LLVM instructions on integers, with the bits that NumPy gives.

Processors without instructions for them need a library that compiled code does not have, so these stay with integer
arithmetic. All of it is selection without branches: loops over it become vector instructions.

This module imports llvmlite: import it late.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

__all__ = ["bfloat16_from_float", "float_from_half", "half_from_float", "ir"]

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
