"""Whether batches can come on a CUDA device."""

from __future__ import annotations

from typing import Any

from rankwise.errors import ConfigError

__all__ = ["check_gpu"]


def check_gpu(to: Any, *, wanted: bool) -> None:
    """Refuse `preload_to_gpu` where it cannot work.

    Raises:
        ConfigError: batches are not torch's, or torch has no CUDA device.
    """
    if not wanted:
        return
    mend = "leave preload_to_gpu out: rows are put into their shuffled order while they are decoded, not on a GPU"
    if to != "torch":
        raise ConfigError(f"preload_to_gpu=True wants to='torch', got to={to!r}; {mend}")
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"preload_to_gpu=True wants a CUDA device, and torch finds none; {mend}")
