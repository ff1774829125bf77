"""What compiled code needs and Python has no words for: memory at an address, calls through one, bits of floats.

This module imports numba: import it late.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from rankwise.data.store.decode.bits import bfloat16_from_float, float_from_half, half_from_float, ir

__all__ = [
    "bfloat16_bits",
    "call_plane",
    "double_from_half",
    "elements",
    "entry",
    "external",
    "float_from_half_bits",
    "half_bits",
    "half_bits_of_double",
    "inlined",
    "numba",
    "peek",
    "peek32",
    "peek_double",
    "poke",
    "poke8",
    "poke32",
    "types",
]

numba: Any = importlib.import_module("numba")  # typed in some releases, and not in others
types: Any = numba.types

_Function = TypeVar("_Function", bound=Callable[..., int])
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))


def inlined(function: _Function) -> _Function:
    """Compile a helper of compiled functions when it is first called by one; not for calls from Python."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy", "boundscheck": False}
    compiled: _Function = numba.njit(_nrt=False, **options)(function)
    return compiled


def external(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a C function that is registered under a name, for use in compiled functions."""
    function: Callable[..., Any] = types.ExternalFunction(name, result(*arguments))
    return function


def _unary(result: Any, argument: Any, emit: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a function for compiled code whose instructions ``emit(builder, value)`` writes."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return emit(builder, values[0])

    def typed(_typing: Any, _value: Any) -> Any:
        return result(argument), generate

    made: Callable[..., Any] = numba.extending.intrinsic(typed)
    return made


def _loading(result: Any, stored: Any, align: int) -> Callable[[int], Any]:
    def emit(builder: Any, address: Any) -> Any:
        value = builder.load(builder.inttoptr(address, stored.as_pointer()), align=align)
        return builder.sext(value, _I64) if stored is _I32 else value

    return _unary(result, types.int64, emit)


def _storing(bits: int) -> Callable[[int, int], None]:
    """Return a function that stores the lower bits of an integer."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        stored = ir.IntType(bits)
        value = builder.trunc(values[1], stored) if bits < 64 else values[1]
        builder.store(value, builder.inttoptr(values[0], stored.as_pointer()), align=bits // 8)
        return context.get_dummy_value()

    def typed(_typing: Any, _address: Any, _value: Any) -> Any:
        return types.void(types.int64, types.int64), generate

    made: Callable[[int, int], None] = numba.extending.intrinsic(typed)
    return made


def _entry(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
    job, table, index = values
    slot = builder.inttoptr(builder.add(job, table), _I64.as_pointer())
    first = builder.inttoptr(builder.load(slot, align=8), _I64.as_pointer())
    return builder.load(builder.gep(first, [index]), align=8)


def _typed_entry(_typing: Any, _job: Any, _table: Any, _index: Any) -> Any:
    return types.int64(types.int64, types.int64, types.int64), _entry


def _typed_elements(_typing: Any, _address: Any, element: Any) -> Any:
    result = types.CPointer(element.dtype)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(result))

    return result(types.int64, element), generate


def _call(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
    real = ir.DoubleType()
    function = ir.FunctionType(_I64, [_I64] * 6 + [real, real])
    return builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])


def _call_plane(_typing: Any, _to: Any, _a: Any, _b: Any, _c: Any, _d: Any, _e: Any, _f: Any, _g: Any, _h: Any) -> Any:
    return types.int64(*[types.int64] * 7, types.float64, types.float64), _call


peek = _loading(types.int64, _I64, 8)
peek_double = _loading(types.float64, ir.DoubleType(), 8)
peek32 = _loading(types.int64, _I32, 1)
poke, poke32, poke8 = _storing(64), _storing(32), _storing(8)
entry: Callable[[int, int, int], int] = numba.extending.intrinsic(_typed_entry)
elements: Callable[[int, Any], Any] = numba.extending.intrinsic(_typed_elements)
call_plane: Callable[..., int] = numba.extending.intrinsic(_call_plane)

half_bits = _unary(types.uint16, types.float32, lambda builder, value: half_from_float(builder, value, 32))
half_bits_of_double = _unary(types.uint16, types.float64, lambda builder, value: half_from_float(builder, value, 64))
float_from_half_bits = _unary(types.float32, types.uint16, lambda builder, half: float_from_half(builder, half, 32))
double_from_half = _unary(types.float64, types.uint16, lambda builder, half: float_from_half(builder, half, 64))
bfloat16_bits = _unary(types.uint16, types.float32, bfloat16_from_float)
