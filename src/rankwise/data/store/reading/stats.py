"""What a `BoxReader` has done so far."""

from __future__ import annotations

from dataclasses import dataclass

from rankwise.data.store.counting import added

__all__ = ["ReaderStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStats:
    """Counts since a reader was made or its counts were reset.

    Attributes:
        boxes: boxes asked for.
        failed_boxes: of these, boxes that could not be read.
        fast_chunks: chunks that our own decoders decoded.
        slow_chunks: chunks that zarr-python decoded.
        cached_chunks: chunks that were decoded already.
        fill_chunks: chunks that are not in the store and stand for the fill value.
        targets: places that chunks filled; more than chunks where boxes share some.
        read_bytes: encoded bytes that were read.
        decoded_bytes: bytes that were decoded.
        out_bytes: bytes that were handed out.
        retries: reads that were tried again after trouble with the storage.
        plan_s: seconds spent on planning.
        read_s: seconds spent on reading and decoding, as the caller saw them.
        decode_s: seconds that all threads together spent on it.
    """

    boxes: int = 0
    failed_boxes: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    cached_chunks: int = 0
    fill_chunks: int = 0
    targets: int = 0
    read_bytes: int = 0
    decoded_bytes: int = 0
    out_bytes: int = 0
    retries: int = 0
    plan_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0

    @property
    def chunks_decoded(self) -> int:
        """Chunks that were decoded, by whomever."""
        return self.fast_chunks + self.slow_chunks

    def __add__(self, other: ReaderStats) -> ReaderStats:
        return added(self, other)
