"""`FreeSource` and `FreePlan`: a source that reads nothing from disk, and its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rankwise.data.contract import BaseSource, FieldSpec, Locality, Share


@dataclass(frozen=True, slots=True)
class FreePlan:
    """Implements `Plan` without reads and decoding.

    Attributes:
        share: the share.
        capacity: elements of the batch, by ragged field.
        num_chunks: 0.
        read_bytes: 0.
        decode_bytes: 0.
    """

    share: Share
    capacity: Mapping[str, int] = field(default_factory=dict)
    num_chunks: int = 0
    read_bytes: int = 0
    decode_bytes: int = 0


class FreeSource(BaseSource):
    """A source with default attributes for tests; a subclass or the caller sets other values.

    Args:
        **facts: values of attributes.

    Attributes:
        chunk_samples: see `Locality`, as `chunk_bytes`, `group_steps`, `order_kind` and `window_samples`.
    """

    fingerprint: str = "free"
    num_samples: int = 10
    fields: Mapping[str, FieldSpec] = MappingProxyType({})
    chunk_samples: int = 1
    chunk_bytes: int | None = None
    group_steps: bool = False
    order_kind: str | None = None
    window_samples: int | None = None
    layout: Callable[[int], tuple[int | None, int | None]] | None = None
    stateless: bool = False
    draw_options: Any = None

    def __init__(self, **facts: Any) -> None:
        vars(self).update(facts)

    @property
    def locality(self) -> Locality:
        """Return the locality from the attributes."""
        return _FreeLocality(
            chunk_samples=self.chunk_samples,
            chunk_bytes=self.chunk_bytes,
            group_steps=self.group_steps,
            order_kind=self.order_kind,
            window_samples=self.window_samples,
            wished=self.layout,
        )


@dataclass(frozen=True, kw_only=True)
class _FreeLocality(Locality):
    wished: Callable[[int], tuple[int | None, int | None]] | None

    def layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return the requested layout."""
        return (None, None) if self.wished is None else self.wished(batch_size)
