"""Shards of written arrays: their encoding, writing them, and the choice of their size."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from rankwise._process.cores import choose_threads, cpu_mask, usable_cores
from rankwise.data.contract import IntArray, NDArray, whole_number
from rankwise.data.store import load_zarr
from rankwise.data.store.shard import crc32c
from rankwise.errors import ConfigError


class ChunkEncoder:
    """Encodes chunks of one sharded array, chunked along its first axis only, with its inner codecs."""

    def __init__(self, array: Any, *, keep_zeros: bool = False) -> None:
        self._array, self._chunk, self._keep_zeros = array, array.chunks, keep_zeros
        self._blosc = _plain_blosc(array)
        cores = usable_cores(len(cpu_mask()))
        self._threads = choose_threads(None, environ=os.environ, cores=min(cores, 8), sharers=1)
        # a pool even for one thread: called from the main thread, Blosc orders the blocks of a chunk at random
        self._pool = ThreadPoolExecutor(self._threads)

    def close(self) -> None:
        """Stop its threads."""
        self._pool.shutdown()

    def encode(self, values: NDArray) -> list[bytes | None]:
        """Encode whole chunks; the last one may be short, and is padded.

        Returns:
            The bytes of each chunk; None for a chunk of the fill value alone, which is not stored.
        """
        size = self._chunk[0]
        chunks = [values[start : start + size] for start in range(0, len(values), size)]
        if len(chunks[-1]) < size:
            whole = np.full(self._chunk, self._array.fill_value, dtype=self._array.dtype)
            whole[: len(chunks[-1])] = chunks[-1]
            chunks[-1] = whole
        if self._blosc is None:
            return self._by_zarr(chunks)
        return list(self._pool.map(self._by_blosc, chunks))

    def _by_blosc(self, chunk: NDArray) -> bytes | None:
        assert self._blosc is not None
        if not self._keep_zeros and not np.any(chunk.view(f"u{chunk.itemsize}")):  # by bits: -0.0 is not the fill value
            return None
        return bytes(self._blosc.encode(np.ascontiguousarray(chunk)))

    def _by_zarr(self, chunks: list[NDArray]) -> list[bytes | None]:
        zarr = load_zarr()
        held: dict[str, Any] = {}
        array = self._array
        scratch = zarr.create_array(
            zarr.storage.MemoryStore(held),
            shape=(len(chunks) * self._chunk[0], *self._chunk[1:]),
            chunks=self._chunk,
            dtype=array.dtype,
            compressors=array.compressors or None,
            filters=array.filters or None,
            serializer=array.serializer,
            fill_value=array.fill_value,
            config={"write_empty_chunks": self._keep_zeros},
        )
        scratch[:] = np.concatenate(chunks)
        zeros = (0,) * (len(self._chunk) - 1)
        keys = [scratch.metadata.encode_chunk_key((number, *zeros)) for number in range(len(chunks))]
        return [held[key].to_bytes() if key in held else None for key in keys]


def _plain_blosc(array: Any) -> Any:
    """Return the codec of numcodecs if Blosc is the only codec; else None."""
    import numcodecs
    from zarr.codecs import BloscCodec

    codecs = array.compressors
    plain = len(codecs) == 1 and isinstance(codecs[0], BloscCodec) and not array.filters
    if not plain or array.dtype.kind not in "iuf" or array.fill_value != 0:
        return None
    facts = codecs[0].to_dict()["configuration"]
    shuffle = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[facts["shuffle"]]
    if facts["typesize"] != array.dtype.itemsize:
        return None
    return numcodecs.Blosc(facts["cname"], facts["clevel"], shuffle, facts["blocksize"])


def codecs_of(given: Any, argument: str) -> tuple[Any, ...] | None:
    """Return Zarr codecs as a tuple, from one or several; None stays None.

    Raises:
        ConfigError: it is anything else, for example the name of a codec.
    """
    if given is None:
        return None
    found = () if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not found or not all(hasattr(codec, "to_dict") for codec in found):
        raise ConfigError(
            f"{argument}= must be a list of Zarr codecs, such as [zarr.codecs.ZstdCodec(level=3)]; got {given!r}"
        )
    return found


def pad_rows(
    data: NDArray, indices: NDArray, lengths: IntArray, pads: IntArray, num_cols: int
) -> tuple[NDArray, NDArray]:
    """Append zeros to the elements of rows, in the first unused columns of each row.

    `lengths` are the elements of the rows, `pads` the zeros for each, int64[n].

    Returns:
        Elements and columns with the zeros, [nnz + zeros] each.
    """
    if not pads.any():
        return data, indices
    ends = np.cumsum(lengths)
    rows = np.flatnonzero(pads)
    columns = []
    for row in rows.tolist():
        free = np.ones(num_cols, dtype=bool)
        free[indices[ends[row] - lengths[row] : ends[row]]] = False
        columns.append(np.flatnonzero(free)[: pads[row]])
    places = np.repeat(ends[rows], pads[rows])
    padded_indices = np.insert(indices, places, np.concatenate(columns).astype(indices.dtype))
    return np.insert(data, places, np.zeros(len(places), dtype=data.dtype)), padded_indices


_ABSENT = np.uint64(2**64 - 1)
_MOST_CHUNKS = 64


class ShardStream:
    """Writes rows of an array from one shard edge to another; memory holds a few chunks, never a whole shard.

    The files equal those of zarr-python: encoded chunks in order, then the index with its checksum. Used as a context
    manager, it closes file and threads if an error comes before `close`.

    Args:
        array: from `create_array`, in a local folder.
        start: first row, at a shard edge.
        stop: last row + 1, at a shard edge or the end.
        scratch: folder on the same file system; files stay there until they are complete.
        batch_bytes: decoded bytes to encode at once, at least one chunk.
        keep_zeros: see `write_whole`.
    """

    def __init__(
        self, array: Any, start: int, stop: int, scratch: Path, *, batch_bytes: int = 2**22, keep_zeros: bool = False
    ) -> None:
        self._array, self._place, self._stop, self._scratch = array, start, stop, scratch
        self._encoder = ChunkEncoder(array, keep_zeros=keep_zeros)
        self._chunk, self._shard = int(array.chunks[0]), int(array.shards[0])
        row_bytes = int(np.prod(array.chunks[1:])) * array.dtype.itemsize
        chunks = max(1, min(_MOST_CHUNKS, batch_bytes // (self._chunk * row_bytes)))
        self._batch: int = chunks * self._chunk
        self._held: list[NDArray] = []
        self._num_held = 0
        self._file: _ShardFile | None = None
        self.digests: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._encoder.close()
        if self._file is not None:
            self._file.abandon()

    def append(self, values: NDArray) -> None:
        """Append rows."""
        while len(values):
            part = values[: self._room() - self._num_held]
            self._held.append(np.asarray(part, dtype=self._array.dtype))
            self._num_held += len(part)
            values = values[len(part) :]
            if self._num_held == self._room():
                self._flush()

    def close(self) -> dict[str, str]:
        """Write the remaining rows; return the digest of each file by its path in the folder of the array.

        Raises:
            RuntimeError: the number of rows differs from the announced one.
        """
        with self:
            if self._num_held:
                self._flush()
            if self._place != self._stop:
                raise RuntimeError(f"{self._array.path} should get rows up to {self._stop}, but got {self._place}")
        return self.digests

    def _room(self) -> int:
        """Rows to encode together: a batch, but no further than the shard."""
        return min(self._batch, self._shard - self._place % self._shard, self._stop - self._place)

    def _flush(self) -> None:
        if self._file is None:
            self._file = _ShardFile(self._scratch, self._shard // self._chunk)
        for encoded in self._encoder.encode(np.concatenate(self._held)):
            self._file.add(encoded)
        self._place += self._num_held
        self._held, self._num_held = [], 0
        if self._place % self._shard == 0 or self._place == self._stop:
            number = (self._place - 1) // self._shard
            key = self._array.metadata.encode_chunk_key((number, *(0,) * (len(self._array.shape) - 1)))
            digest = self._file.publish(Path(self._array.store.root) / self._array.path / key)
            if digest is not None:
                self.digests[key] = digest
            self._file = None


class _ShardFile:
    """One file being written."""

    def __init__(self, scratch: Path, num_chunks: int) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._path = scratch / "shard"
        self._file: IO[bytes] = self._path.open("wb")
        self._index = np.full((num_chunks, 2), _ABSENT, dtype="<u8")
        self._digest = hashlib.blake2b(digest_size=16)
        self._next = self._end = 0

    def add(self, encoded: bytes | None) -> None:
        """Append the next chunk; None = it is not stored."""
        if encoded is not None:
            self._write(encoded)
            self._index[self._next] = self._end, len(encoded)
            self._end += len(encoded)
        self._next += 1

    def abandon(self) -> None:
        """Leave the file unfinished, in the scratch folder."""
        self._file.close()

    def publish(self, place: Path) -> str | None:
        """Finish the file and move it to its place; a shard without stored chunks gets no file. Return its digest."""
        index = self._index.tobytes()
        self._write(index + crc32c(index).to_bytes(4, "little"))
        self._file.close()
        if not self._end:
            self._path.unlink()
            return None
        place.parent.mkdir(parents=True, exist_ok=True)
        self._path.rename(place)
        return self._digest.hexdigest()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)


_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(size: int | str, name: str) -> int:
    """Convert "1GB", "512MB", "64 KiB" or a plain number to bytes; units are powers of 1,024, as in annbatch.

    Raises:
        ConfigError: it is not a size, or below 1.
    """
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match:
        size = int(float(match[1]) * 1024 ** _POWERS[match[2].upper()])
    return whole_number(name, size, least=1, mend=': a number, or a size such as "1GB" or "512MB"')


def rows_of_size(size: int | str, name: str, row_bytes: float) -> int:
    """Return the number of rows for a size: an integer, also as text, is rows; text with a unit is bytes."""
    number = parse_size(size, name)
    in_rows = not isinstance(size, str) or size.strip().isdecimal()
    return max(1, int(min(number if in_rows else number / max(row_bytes, 1e-9), 2**62)))


_CHUNK_COST = 1_000  # opening a chunk costs about as much as decoding this many elements
_QUANTILES = np.linspace(0.5, 1.0, 101)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseLayout:
    """The storage layout of the rows of one matrix."""

    chunk: int  # elements of a chunk
    pads: IntArray | None  # int64[rows], explicit zeros after the true elements of each row; None = no padding
    num_elements: int  # stored elements, zeros included


def lay_out(lengths: IntArray, num_cols: int, rows_per_chunk: int, *, align: bool) -> SparseLayout:
    """Choose the chunks of a CSR matrix.

    With `align` every block of `rows_per_chunk` rows begins at a chunk edge: the last rows of the previous block get
    explicit zeros up to that edge, in unused columns. The chunk size minimises the elements to decode; longer blocks
    take several chunks. If the rows of a block have too few free columns for the zeros, the next block begins directly
    after it.
    """
    total = int(lengths.sum())
    if not align or total == 0:
        mean = max(1, min(total, int(rows_per_chunk * total / max(1, len(lengths)))))
        return SparseLayout(chunk=mean, pads=None, num_elements=total)
    starts = np.arange(0, len(lengths), rows_per_chunk)
    sums = np.add.reduceat(lengths, starts)
    chunk = _best_chunk(sums)
    pads = np.zeros(len(lengths), dtype=np.int64)
    place = 0
    for number, start in enumerate(starts[:-1].tolist()):
        place += int(sums[number])
        need = -place % chunk
        if need and _give(pads, lengths, num_cols, slice(start, start + rows_per_chunk), need):
            place += need
    return SparseLayout(chunk=chunk, pads=pads, num_elements=total + int(pads.sum()))


def _best_chunk(sums: IntArray) -> int:
    """Return the chunk size with the fewest elements to decode for blocks of these sizes."""
    sizes = np.unique(np.quantile(sums, _QUANTILES, method="higher")).astype(np.int64)
    sizes = sizes[sizes > 0]
    chunks = [-(-sums // size) for size in sizes]
    costs = [int(count.sum()) * (int(size) + _CHUNK_COST) for count, size in zip(chunks, sizes, strict=True)]
    return int(sizes[int(np.argmin(costs))])


def _give(pads: IntArray, lengths: IntArray, num_cols: int, block: slice, need: int) -> bool:
    """Add zeros to the last rows of a block that have free columns; return False if all rows together have too few."""
    free = num_cols - lengths[block]
    if int(free.sum()) < need:
        return False
    later = np.cumsum(free[::-1])[::-1] - free  # number of zeros that fit into the rows after each one
    pads[block] = np.clip(need - later, 0, free)
    return True
