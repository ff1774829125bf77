"""Loaders that a torch `DataLoader` takes as an `IterableDataset`."""

from __future__ import annotations

import functools
import sys
import types
from importlib.util import find_spec
from typing import Any

__all__ = ["iterable_class", "rebuild"]


def iterable_class(cls: type, to: str | None) -> type:
    """Return the class itself, or one that is also torch's `IterableDataset`, where torch is there.

    A DataLoader asks for that class. Inheriting from it in the source would load torch with every import of it.

    Args:
        cls: class of a loader.
        to: library that it was made for: with JAX, torch is not loaded for this.
    """
    if find_spec("torch") is None or (to == "jax" and "torch" not in sys.modules):
        return cls
    return _with_torch(cls)


@functools.cache
def _with_torch(cls: type) -> type:
    try:
        from torch.utils.data import IterableDataset
    except ImportError:  # a broken torch: everything but a DataLoader works without
        return cls
    if issubclass(cls, IterableDataset):
        return cls
    body = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__qualname__": cls.__qualname__, "plain_class": cls}
    return types.new_class(cls.__name__, (cls, IterableDataset), exec_body=lambda names: names.update(body))


def rebuild(cls: type, to: str | None) -> Any:
    """Return an empty object, for pickle to fill."""
    return object.__new__(iterable_class(cls, to))
