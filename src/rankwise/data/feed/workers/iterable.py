"""Loaders that a torch `DataLoader` takes as an `IterableDataset`."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NoReturn

from rankwise.data.feed.workers.collating import teach_collating

__all__ = ["asked_by_dataloader", "iterable_class", "raising", "rebuild", "take_part"]

_FETCHING = "torch.utils.data._utils.fetch"


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


def take_part(loader: Any) -> None:
    """Make a loader an `IterableDataset` too, where torch is loaded already; else nothing happens."""
    if "torch" in sys.modules:
        cls: type = type(loader)
        loader.__class__ = _with_torch(cls)


@functools.cache
def _with_torch(cls: type) -> type:
    try:
        from torch.utils.data import IterableDataset
    except ImportError:  # a broken torch: everything but a DataLoader works without
        return cls
    teach_collating()
    if issubclass(cls, IterableDataset):
        return cls
    body = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__qualname__": cls.__qualname__, "plain_class": cls}
    return types.new_class(cls.__name__, (cls, IterableDataset), exec_body=lambda names: names.update(body))


def rebuild(cls: type, to: str | None = None) -> Any:
    """Return an empty object, for pickle to fill."""
    return object.__new__(iterable_class(cls, to))


def raising(error: Exception) -> Iterator[NoReturn]:
    """Return an iterator that raises: what `iter` itself raises in a worker that stays would end its process."""
    yield from ()
    raise error


def asked_by_dataloader() -> bool:
    """Whether who iterates over a loader, outside of this package, is a DataLoader without workers.

    It says so nowhere, and hands nothing over by which a loader could know it.
    """
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001  (documented; inspect.stack reads source files)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("rankwise."):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == _FETCHING
