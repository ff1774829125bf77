"""`ArrayMeta`: all metadata of one Zarr array that reading its chunks needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rankwise.data.contract import JSON, DType
from rankwise.data.store.shard import IndexLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCodec:
    """The encoding of one (inner) chunk, as far as our decoders support it.

    Attributes:
        kind: "raw" = the elements themselves, "zstd" = a zstd frame, "blosc" = a Blosc 1 frame (its header names
            the compressor), "lz4" = an LZ4 block after its decoded size in 4 bytes, "zarr" = anything else,
            which only zarr-python decodes.
        why: for "zarr": the part that our decoders do not support, for example "gzip" or "big-endian"; else "".
    """

    kind: Literal["raw", "zstd", "blosc", "lz4", "zarr"]
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEncoding:
    """Maps coordinates in the grid of files to the store key, relative to the array.

    Attributes:
        prefix: "c" for the default encoding of version 3, "" for that of version 2.
        separator: "/" or ".".
    """

    prefix: str
    separator: str

    def key(self, coords: tuple[int, ...]) -> str:
        """Return the key of a file: "c/0/3", "c.0.3", "0.3"; for an array without axes "c" or "0"."""
        if self.prefix:
            return self.separator.join([self.prefix, *map(str, coords)])
        return self.separator.join(map(str, coords)) or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMeta:
    """One Zarr array (version 2 or 3) as described by its metadata.

    Attributes:
        place: absolute local path, or URL, of the array; for opening and for messages.
        zarr_format: 2 or 3.
        shape: shape of the array; at least one axis.
        chunks: shape of an inner chunk, the unit of decoding (padded at the array's edges).
        files: shape of the part in one file: a shard, or a chunk without shards. A multiple of `chunks`.
        dtype: dtype of the elements, in native byte order.
        fill_value: value of the elements in chunks that were never written, as a value of `dtype`.
        codec: encoding of an inner chunk.
        keys: names of files.
        index: layout of the index of shards; None if one file is one chunk.
        dimension_names: names of the axes, None where unnamed; one for each axis.
        attributes: the user's attributes.
        document: the metadata document as it was read, for zarr-python.
        fingerprint: hash of the content's metadata: equal for a copy at another path.
    """

    place: str
    zarr_format: int
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    files: tuple[int, ...]
    dtype: DType
    fill_value: Any = field(compare=False)  # NaN differs from itself; `document` has it
    codec: ChunkCodec
    keys: KeyEncoding
    index: IndexLayout | None
    dimension_names: tuple[str | None, ...]
    attributes: Mapping[str, JSON] = field(hash=False)
    document: Mapping[str, JSON] = field(hash=False, repr=False)
    fingerprint: str = ""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def sharded(self) -> bool:
        """Whether files are shards with an index."""
        return self.files != self.chunks or self.index is not None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded inner chunk."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def is_remote(self) -> bool:
        """Whether it lies behind a URL."""
        return "://" in self.place
