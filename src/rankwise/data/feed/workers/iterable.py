"""Loaders in the workers of a torch `DataLoader`, and how their batches reach the trainer."""

from __future__ import annotations

import functools
import logging
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NoReturn, Self

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.feed.batch import FeedBatch
from rankwise.data.feed.memory.csr import copied_field, csr_parts, torch_csr
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.errors import ConfigError


def iterable_class(cls: type, to: str | None) -> type:
    """Return the class, or a subclass that is also torch's `IterableDataset` if torch is installed.

    A DataLoader checks for that class. Inheriting from it in the source would load torch with every import. A loader
    made for JAX (`to`) does not load torch.
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


def rebuild(cls: type, to: str | None = None) -> Any:
    """Return an empty object for pickle to fill."""
    return object.__new__(iterable_class(cls, to))


def raising(error: Exception) -> Iterator[NoReturn]:
    """Return an iterator that raises: if `iter` itself raised, a persistent worker would end."""
    yield from ()
    raise error


_LOG = logging.getLogger("rankwise.data")


def check_sendable(device: Any) -> None:
    """Refuse a loader of JAX arrays: they cannot be sent between processes.

    Raises:
        ConfigError: the loader gives JAX arrays.
    """
    if is_jax_target(device):
        raise ConfigError(
            "a loader of JAX arrays can neither read in workers nor be pickled: use num_workers=0 (it reads in the "
            "background anyway), or device=None for NumPy arrays and convert those with JAX"
        )


def warn_in_memory(device: Any, *, rank: int, worker: LoaderWorker) -> None:
    """Warn on the main rank, in the first worker, that batches do not come on the requested device."""
    if rank or worker.number or device is None or str(device).startswith("cpu"):
        return
    _LOG.warning(
        "DataLoader workers do not use %s: batches are in CPU memory; batch.to(%r) moves one, and "
        "pin_memory=True of the DataLoader makes the copy asynchronous",
        device, str(device),
    )  # fmt: skip


class SentBatch(FeedBatch):
    """A batch with CPU memory of its own, whatever the device of its loader.

    It stays valid when the loop moves on: `release` has nothing to give back. ``DataLoader(pin_memory=True)`` pins it,
    and `to` moves it; Lightning does so by itself.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fields": {name: _packed(field) for name, field in self.fields.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._fields = {name: _unpacked(field) for name, field in state["_fields"].items()}

    def release(self, event: Any = None) -> None:
        """Do nothing: the memory is freed with the batch."""

    def to(self, device: Any, non_blocking: bool = False) -> Self:  # noqa: FBT001, FBT002  (as of a tensor)
        """Return the batch with its tensors on a device; NumPy arrays and SciPy matrices stay where they are.

        Args:
            device: a torch device.
            non_blocking: whether the copy may run in the background; it does so only from pinned memory.
        """
        moved = {n: f.to(device, non_blocking=non_blocking) if _is_tensor(f) else f for n, f in self.fields.items()}
        return self._again(moved)

    def pin_memory(self) -> Self:
        """Return the batch with its tensors in page-locked memory."""
        return self._again({name: _pinned(field) for name, field in self.fields.items()})


def sent_fields(fields: Mapping[str, Any], lent: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with memory of their own: the loader's tensors move to shared memory, so that one copy suffices.

    Args:
        fields: of a batch.
        lent: fields in memory of the loader, which nothing else references. The other fields come from a transform,
            which may keep them.
    """
    mine = {id(field) for field in lent.values()}
    return {name: _shared(field) if id(field) in mine else copied_field(field) for name, field in fields.items()}


@dataclass(frozen=True, slots=True)
class _Packed:
    """A CSR tensor as dense tensors: torch's own way to send one checks it and warns."""

    parts: tuple[Any, ...]
    num_cols: int


def _packed(field: Any) -> Any:
    parts = csr_parts(field) if _is_tensor(field) else None
    return field if parts is None else _Packed(parts, field.shape[1])


def _unpacked(field: Any) -> Any:
    return torch_csr(field.parts, field.num_cols) if isinstance(field, _Packed) else field


def _shared(field: Any) -> Any:
    """Move a tensor to shared memory; copy a NumPy array, which is copied once more when it is sent."""
    if not _is_tensor(field):
        return copied_field(field)
    for tensor in csr_parts(field) or (field,):
        tensor.share_memory_()
    return field


def _pinned(field: Any) -> Any:
    if not _is_tensor(field):
        return field
    packed = _packed(field)
    if not isinstance(packed, _Packed):
        return field.pin_memory()
    return torch_csr(tuple(part.pin_memory() for part in packed.parts), packed.num_cols)


def _is_tensor(field: Any) -> bool:
    return hasattr(field, "share_memory_")
