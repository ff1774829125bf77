"""The index of a shard: the location of each inner chunk in the file, verified against its checksum."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import DataError, MissingExtraError

MISSING = -1  # the chunk was never written: it reads as the fill value
OUTSIDE = -2  # beyond the end of the file, which was truncated, or zero bytes, which no codec produces


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLayout:
    """The layout of the index in an array's shards.

    Attributes:
        chunks_per_shard: shape of the index without its last axis.
        at_end: whether the index is at the end of the file, else at its start.
        checked: whether a CRC-32C follows it.
    """

    chunks_per_shard: tuple[int, ...]
    at_end: bool
    checked: bool

    @property
    def num_bytes(self) -> int:
        """Length of the encoded index."""
        return 16 * math.prod(self.chunks_per_shard) + 4 * self.checked


def read_index(path: Path, layout: IndexLayout) -> IntArray:
    """Return the index of a shard: int64[*chunks_per_shard, 2], offset and length in bytes of each inner chunk.

    The offset is `MISSING` for a chunk that was not written (for all if there is no file) and `OUTSIDE` for one
    that extends beyond the end of the file or has no bytes.

    Raises:
        DataError: the file is shorter than its index, or the index does not match its checksum.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - layout.num_bytes) if layout.at_end else 0)
            encoded = file.read(min(size, layout.num_bytes))  # not as many as the metadata say: that may be absurd
    except FileNotFoundError:
        return np.full((*layout.chunks_per_shard, 2), MISSING, dtype=np.int64)
    return decode_index(encoded, layout, size=size, place=str(path))


def decode_index(encoded: bytes, layout: IndexLayout, *, size: int, place: str) -> IntArray:
    """Return the index of a shard from its bytes; see `read_index`.

    Raises:
        DataError: there are fewer bytes than the index needs, or they do not match their checksum.
    """
    present = min(size, len(encoded))
    if present < layout.num_bytes:
        raise DataError(
            f"the file {place} has {present} bytes, but its shard index alone needs {layout.num_bytes}: "
            "it was truncated; copy or write it again"
        )
    if layout.checked and (stated := int.from_bytes(encoded[-4:], "little")) != (found := crc32c(encoded[:-4])):
        raise DataError(
            f"the shard index of {place} does not match its checksum (CRC-32C {found:08x}, stated {stated:08x}): "
            "the file was truncated or damaged; copy or write it again"
        )
    raw = np.frombuffer(encoded, dtype="<u8", count=2 * math.prod(layout.chunks_per_shard))
    raw = raw.reshape(*layout.chunks_per_shard, 2)
    index = raw.astype(np.int64)
    offset, length = raw[..., 0], raw[..., 1]
    missing = (offset == np.uint64(2**64 - 1)) & (length == np.uint64(2**64 - 1))
    # compared without addition, so that absurd values cannot wrap around
    outside = (offset > np.uint64(size)) | (length > np.uint64(size)) | (np.uint64(size) - offset < length)
    index[outside | (length == 0)] = (OUTSIDE, 0)  # zarr-python reads zero bytes as a chunk that was never written
    index[missing] = (MISSING, 0)
    return index


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of `data`.

    Raises:
        MissingExtraError: google-crc32c, a dependency of zarr-python, is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:  # without `needs_extra`, which takes longer than the checksum of a small index
        raise MissingExtraError(
            "the checksum of a shard index needs google-crc32c: pip install 'rankwise[data]'"
        ) from error
    return int(google_crc32c.value(data))
