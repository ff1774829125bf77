"""Encoding of written matrices: codecs, compressors, padding."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rankwise._process.cores import choose_threads, cpu_mask, usable_cores
from rankwise.data.contract import IntArray, NDArray
from rankwise.data.store import load_zarr
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
