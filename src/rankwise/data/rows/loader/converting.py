"""From rows to what users asked for: tensors, arrays, on their device."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from rankwise.data.feed.csr import torch_csr
from rankwise.data.feed.place_jax import narrowed
from rankwise.errors import ConfigError, MissingExtraError

__all__ = ["Library", "check_library", "convert"]

Library: TypeAlias = Literal["torch", "jax"]

_EXTRAS = {"torch": "train", "jax": "jax"}


def check_library(to: Any) -> None:
    """Refuse a library that is not known, or not installed; loads nothing.

    Raises:
        ConfigError: it is not known.
        MissingExtraError: it is not installed.
    """
    if to is None:
        return
    if to not in get_args(Library):
        raise ConfigError(f"to wants None, 'torch' or 'jax', got {to!r}")
    if find_spec(to) is None:
        raise MissingExtraError(f"to={to!r} needs {to}: pip install 'rankwise[{_EXTRAS[to]}]'")


def convert(rows: Any, to: Library | None, *, gpu: bool = False) -> Any:
    """Return rows as tensors or arrays of a library; those of torch share the memory.

    Args:
        rows: numpy.ndarray or scipy.sparse.csr_matrix.
        to: which library; None = as they are.
        gpu: move torch's tensors to the current CUDA device.
    """
    if to is None:
        return rows
    if to == "jax":
        return _jax(rows)
    tensor = _torch(rows)
    return tensor.to("cuda", non_blocking=True) if gpu else tensor


def _torch(rows: Any) -> Any:
    import torch

    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows)
    parts = tuple(torch.from_numpy(part) for part in (rows.data, rows.indices, rows.indptr))
    return torch_csr(parts, rows.shape[1])  # rows and columns were checked when they were read


def _jax(rows: Any) -> Any:
    import jax.numpy as jnp
    from jax.experimental.sparse import CSR

    if isinstance(rows, np.ndarray):
        return jnp.asarray(narrowed("X", rows))
    parts = (jnp.asarray(narrowed("X", rows.data)), jnp.asarray(rows.indices), jnp.asarray(rows.indptr))
    return CSR(parts, shape=rows.shape)  # type: ignore[no-untyped-call]


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
