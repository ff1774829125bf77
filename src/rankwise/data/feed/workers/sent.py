"""`SentBatch`: a batch on its way from a worker of a `DataLoader` to the process that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rankwise.data.feed.batch import FeedBatch
from rankwise.data.feed.csr import copied_field, csr_parts, torch_csr

__all__ = ["SentBatch", "sent_fields"]


class SentBatch(FeedBatch):
    """A batch with memory of its own, in the CPU's memory, wherever other batches of its loader lie.

    It stays when the loop moves on: `release` has nothing to give back. ``DataLoader(pin_memory=True)`` pins it, and
    `to` moves it; Lightning does so by itself.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fields": {name: _packed(field) for name, field in self.fields.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._fields = {name: _unpacked(field) for name, field in state["_fields"].items()}

    def release(self, event: Any = None) -> None:
        """Do nothing: its memory goes with it."""

    def to(self, device: Any, non_blocking: bool = False) -> Self:  # noqa: FBT001, FBT002  (as of a tensor)
        """Return the batch with its tensors on a device; NumPy arrays and SciPy matrices stay where they are.

        Args:
            device: of torch.
            non_blocking: whether the copy may go on while the program does, from memory that is pinned.
        """
        moved = {n: f.to(device, non_blocking=non_blocking) if _is_tensor(f) else f for n, f in self.fields.items()}
        return self._again(moved)

    def pin_memory(self) -> Self:
        """Return the batch with its tensors in page-locked memory."""
        return self._again({name: _pinned(field) for name, field in self.fields.items()})


def sent_fields(fields: Mapping[str, Any], lent: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with memory of their own: tensors in memory that processes share, where one copy is the way.

    Args:
        fields: of a batch.
        lent: those that lie in memory of the loader, which nobody else holds; the others are of a transform, which may
            keep them.
    """
    mine = {id(field) for field in lent.values()}
    return {name: _shared(field) if id(field) in mine else copied_field(field) for name, field in fields.items()}


@dataclass(frozen=True, slots=True)
class _Packed:
    """A CSR tensor as dense ones: torch looks at what its own way of sending makes, and speaks of it."""

    parts: tuple[Any, ...]
    num_cols: int


def _packed(field: Any) -> Any:
    parts = csr_parts(field) if _is_tensor(field) else None
    return field if parts is None else _Packed(parts, field.shape[1])


def _unpacked(field: Any) -> Any:
    return torch_csr(field.parts, field.num_cols) if isinstance(field, _Packed) else field


def _shared(field: Any) -> Any:
    """Move a field out of the memory that it was lent; NumPy arrays are copied once more when they are sent."""
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
