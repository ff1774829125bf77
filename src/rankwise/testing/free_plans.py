"""`FreePlan`: the plan of a source that reads nothing from disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwise.data.contract import Share

__all__ = ["FreePlan"]


@dataclass(frozen=True, slots=True)
class FreePlan:
    """Implements `Plan`: what costs no reading and no decoding.

    Attributes:
        share: the share.
        capacity: for each ragged field, the elements of the batch.
        num_chunks: none.
        read_bytes: none.
        decode_bytes: none.
    """

    share: Share
    capacity: Mapping[str, int] = field(default_factory=dict)
    num_chunks: int = 0
    read_bytes: int = 0
    decode_bytes: int = 0
