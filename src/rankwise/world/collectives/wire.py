"""Send leaves as flat tensors, and encode them for a reduction, into few dtypes and without wrong results.

Every leaf is sent as a contiguous one-dimensional torch tensor. Backends do not reduce every dtype, and their minimum
and maximum may lose a NaN. So for a reduction small integers are sent in a wider type. For min and max, floats are sent
as integers of the same order, with NaN beyond both ends. For a sum, Python integers are sent in two halves, which makes
it exact. A collective reduces one buffer per (device, wire dtype).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError, WorldError
from rankwise.world.collectives.tree import Leaf

if TYPE_CHECKING:
    import torch

_ADD = {"bool": "int64", "int16": "int32", "uint16": "int32"}
_ADD_VIEW = {"uint32": "int32", "uint64": "int64", "complex64": "float32", "complex128": "float64"}
_ORDER = {"bool": "uint8", "int16": "int32", "uint16": "int32", "uint32": "int64"}
_FLOATS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
_PLAIN = ("int8", "uint8", "int32", "int64")
_LOW = 2**32
_INT64 = 2**63


def flat_of(leaf: Leaf) -> torch.Tensor:
    """Return the leaf's values, contiguous, without gradient, on its own device; may share memory with the leaf.

    Raises:
        ConfigError: a Python integer does not fit into 64 bits.
    """
    import torch

    if leaf.kind == "tensor":
        return _dense(leaf.value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1))
    check_range(leaf)
    if leaf.kind not in ("array", "scalar"):
        return torch.tensor([leaf.value], dtype=getattr(torch, leaf.dtype), device="cpu")
    array = np.asarray(leaf.value, dtype=leaf.dtype).reshape(-1)  # a dtype given by name has native byte order
    array = np.ascontiguousarray(array)
    if not array.flags.writeable or array.strides != (array.itemsize,):  # one element is contiguous at any stride
        array = array.copy()
    return torch.from_numpy(array)


def _dense(flat: torch.Tensor) -> torch.Tensor:
    """Return the tensor with stride 1: one element counts as contiguous at any stride, but bytes need stride 1."""
    import torch

    return flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)


def value_of(flat: torch.Tensor, leaf: Leaf, shape: tuple[int, ...] | None = None) -> Any:
    """Return the flat tensor's value in the leaf's kind and on its device.

    The dtype is that of the flat tensor, so a sum of booleans gives integers. May share memory with `flat`.

    Args:
        flat: the values.
        leaf: the leaf that the value replaces.
        shape: its shape, None = the leaf's.
    """
    shape = leaf.shape if shape is None else shape
    if leaf.kind == "tensor":
        return flat.reshape(shape).to(leaf.device)
    if leaf.kind in ("array", "scalar"):
        array = flat.reshape(shape).numpy()
        return array if leaf.kind == "array" else array[()]
    return flat.item()


def bytes_of(flat: torch.Tensor) -> torch.Tensor:
    """Return the flat tensor's bytes as uint8, sharing its memory."""
    import torch

    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8, device=flat.device)


def from_bytes(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of the bytes as values of `dtype`."""
    return raw.clone().view(dtype)


def check_range(leaf: Leaf) -> None:
    """Check that a Python integer can be sent.

    Raises:
        ConfigError: it does not fit into 64 bits.
    """
    if leaf.kind == "int" and not -_INT64 <= leaf.value < _INT64:
        raise ConfigError(
            f"{leaf.path} is {leaf.value}, which does not fit in 64 bits: send it as float or as an object"
        )


def check_leaf(leaf: Leaf, op: str) -> None:
    """Check that the leaf can be reduced by `op`.

    Raises:
        ConfigError: it cannot; the message names the leaf and a solution.
    """
    known = {*_ADD, *_ADD_VIEW, *_FLOATS, *_PLAIN}
    what = f"{leaf.path} ({leaf.kind} of {leaf.dtype})"
    if leaf.dtype not in known:
        raise ConfigError(f"{what} cannot be reduced: convert it to float32 first")
    if op in ("min", "max") and leaf.dtype.startswith("complex"):
        raise ConfigError(f"{what} has no {op}imum: complex numbers are not ordered")
    whole = leaf.dtype == "bool" or "int" in leaf.dtype
    if op == "mean" and whole and leaf.kind in ("tensor", "array", "scalar"):
        raise ConfigError(
            f"{what} has no mean in its own dtype: convert it to floating point first, or ask for the sum"
        )


def encode(leaf: Leaf, op: str) -> torch.Tensor:
    """Return the encoded leaf: a flat tensor of its wire dtype; `op` is "sum", "mean", "min" or "max"."""
    import torch

    flat, dtype = flat_of(leaf), leaf.dtype
    if op in ("min", "max"):
        return _encode_order(flat, dtype, op)
    if leaf.kind == "int":
        return torch.tensor(divmod(leaf.value, _LOW), device="cpu")
    if dtype in _ADD_VIEW:
        return flat.view(getattr(torch, _ADD_VIEW[dtype]))
    return flat.to(getattr(torch, _ADD[dtype])) if dtype in _ADD else flat


def _encode_order(flat: torch.Tensor, dtype: str, op: str) -> torch.Tensor:
    import torch

    if dtype == "uint64":
        return flat.view(torch.int64) ^ torch.iinfo(torch.int64).min
    if dtype not in _FLOATS:
        return flat.to(getattr(torch, _ORDER[dtype])) if dtype in _ORDER else flat
    wide = flat.to(getattr(torch, _FLOATS[dtype]))
    bits = wide.view(torch.int64 if wide.dtype == torch.float64 else torch.int32)
    ends = torch.iinfo(bits.dtype)
    return torch.where(wide.isnan(), ends.min if op == "min" else ends.max, _turn(bits))


def _turn(bits: torch.Tensor) -> torch.Tensor:
    """Flip all bits but the sign of negative floats, so that as integers they have the floats' order. Self-inverse."""
    import torch

    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def decode(flat: torch.Tensor, leaf: Leaf, op: str, world_size: int) -> Any:
    """Return the reduced value of a leaf from the reduced tensor.

    Raises:
        WorldError: a sum of Python integers does not fit into 64 bits.
    """
    if op in ("min", "max"):
        return value_of(_decode_order(flat, leaf.dtype, op), leaf)
    if leaf.kind == "int" or (leaf.kind == "bool" and op == "mean"):
        parts = flat.tolist()
        return whole(parts[0] if leaf.kind == "bool" else parts[0] * _LOW + parts[1], leaf, op, world_size)
    values = _decode_sum(flat, leaf.dtype)
    return value_of(values / world_size if op == "mean" else values, leaf)


def whole(total: int, leaf: Leaf, op: str, world_size: int) -> int | float:
    """Return the sum or the mean of Python integers from their exact sum.

    Raises:
        WorldError: the sum does not fit into 64 bits.
    """
    if op == "mean":
        return total / world_size
    if not -_INT64 <= total < _INT64:
        raise WorldError(
            f"the sum over ranks of {leaf.path} is {total}, which does not fit in 64 bits: send it as float"
        )
    return total


def _decode_sum(flat: torch.Tensor, dtype: str) -> torch.Tensor:
    import torch

    if dtype == "bool":
        return flat  # a count, as in NumPy and torch
    wanted: torch.dtype = getattr(torch, dtype)
    return flat.view(wanted) if dtype in _ADD_VIEW else flat.to(wanted)


def _decode_order(flat: torch.Tensor, dtype: str, op: str) -> torch.Tensor:
    import torch

    if dtype == "uint64":
        return (flat ^ torch.iinfo(torch.int64).min).view(torch.uint64)
    if dtype not in _FLOATS:
        return flat.to(getattr(torch, dtype))
    ends = torch.iinfo(flat.dtype)
    values = _turn(flat).view(getattr(torch, _FLOATS[dtype]))
    lost = flat == (ends.min if op == "min" else ends.max)
    return torch.where(lost, torch.nan, values).to(getattr(torch, dtype))


@dataclass(slots=True)
class Packed:
    """Leaves encoded into one flat buffer per (device, wire dtype), in a fixed order.

    Attributes:
        places: for each leaf: its buffer and slice.
        buffers: owned by the packed; collectives may write into them.
    """

    places: list[tuple[int, int, int]]
    buffers: list[torch.Tensor]

    @property
    def num_bytes(self) -> int:
        """Return the size of all buffers in bytes."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers)


def pack(flats: list[torch.Tensor]) -> Packed:
    """Return copies of the flat tensors, concatenated per device and dtype."""
    import torch

    groups: dict[tuple[str, str], list[torch.Tensor]] = {}
    spots = []
    for flat in flats:
        key = (flat.device.type, str(flat.dtype))
        group = groups.setdefault(key, [])
        start = sum(other.numel() for other in group)
        group.append(flat)
        spots.append((key, start, flat.numel()))
    order = {key: i for i, key in enumerate(sorted(groups))}
    return Packed(
        places=[(order[key], start, length) for key, start, length in spots],
        buffers=[torch.cat(groups[key]) if len(groups[key]) > 1 else groups[key][0].clone() for key in order],
    )


def unpack(packed: Packed, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return each leaf's slice of the given buffers, which have the packed's layout."""
    return [buffers[i][start : start + length] for i, start, length in packed.places]


def fold(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    """Reduce equal-sized tensors in the given order, in this process; half precision is summed in float32."""
    import torch

    dtype = parts[0].dtype
    if op in ("min", "max"):
        reduce = torch.minimum if op == "min" else torch.maximum
        total = parts[0]
        for part in parts[1:]:
            total = reduce(total, part)
        return total
    total = parts[0].to(torch.float32) if dtype in (torch.float16, torch.bfloat16) else parts[0].clone()
    for part in parts[1:]:
        total += part
    return total.to(dtype)
