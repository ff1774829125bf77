"""Convert between leaves and flat tensors: every leaf is sent as a contiguous one-dimensional torch tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError
from rankwise.world.tree import Leaf

if TYPE_CHECKING:
    import torch

__all__ = ["bytes_of", "flat_of", "from_bytes", "value_of"]

_INT64 = (-(2**63), 2**63 - 1)


def flat_of(leaf: Leaf) -> torch.Tensor:
    """Return the leaf's values, contiguous, without gradient, on its own device; may share memory with the leaf.

    Raises:
        ConfigError: a Python integer does not fit into 64 bits.
    """
    import torch

    if leaf.kind == "tensor":
        return _dense(leaf.value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1))
    if leaf.kind == "int" and not _INT64[0] <= leaf.value <= _INT64[1]:
        raise ConfigError(f"{leaf.path} is {leaf.value}, which does not fit 64 bits: send it as float or as an object")
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
