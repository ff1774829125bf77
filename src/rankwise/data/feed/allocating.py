"""Memory for batches, aligned so that every consumer can take it over as it is."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import NDArray

__all__ = ["allocate_bytes"]

_ALIGNMENT = 64  # XLA copies what is aligned less


def allocate_bytes(num_bytes: int, *, pinned: bool) -> NDArray:
    """Return uint8[num_bytes] at an address that is a multiple of 64; the array keeps its memory alive.

    Args:
        num_bytes: how many.
        pinned: page-locked, for asynchronous copies to a CUDA device; taken from torch.
    """
    if pinned:
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    whole = np.empty(num_bytes + _ALIGNMENT, dtype=np.uint8)
    first = -whole.ctypes.data % _ALIGNMENT
    return whole[first : first + num_bytes]
