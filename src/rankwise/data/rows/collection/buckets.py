"""The place of every row in a collection, and its unique name; rows on disk between both passes, in buckets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.order.permutation import derive, permute
from rankwise.errors import DataError

_RUNS, _INSIDE = 1, 2  # random streams of the seed


def cut_datasets(num_rows: int, dataset_rows: int) -> IntArray:
    """Return the edges of datasets with at most `dataset_rows` rows, of nearly equal size: int64[datasets + 1]."""
    count = max(1, -(-num_rows // dataset_rows))
    edges: IntArray = np.arange(count + 1, dtype=np.int64) * num_rows // count
    return edges


class Placing:
    """The place in the collection of every input row.

    With runs of one row it is a keyed permutation of all rows, computed on demand. Longer runs of neighbouring
    input rows stay together in one dataset as far as its edges allow, and are mixed inside it.

    Args:
        edges: int64[datasets + 1], of the datasets.
        seed: decides the permutation.
        shuffle: False keeps the order of the inputs.
        run: rows of a run.
        groups: int[rows], group rank of each input row: after the shuffle, rows of each dataset are sorted by it; this
            keeps their order in memory.
    """

    def __init__(
        self, edges: IntArray, *, seed: int, shuffle: bool = True, run: int = 1, groups: IntArray | None = None
    ) -> None:
        self._edges, self._num_rows, self._shuffle, self._run = edges, int(edges[-1]), shuffle, run
        self._key, self._seed = np.uint64(derive(seed, _RUNS)), seed
        self._sorted: IntArray | None = None
        if groups is not None:  # rows of a group keep their random order
            places = self._shuffled(np.arange(self._num_rows, dtype=np.int64))
            rows = np.empty_like(places)
            rows[places] = np.arange(self._num_rows, dtype=np.int64)
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                members = rows[start:stop]
                places[members[np.argsort(groups[members], kind="stable")]] = np.arange(start, stop)
            self._sorted = places

    def places(self, rows: IntArray) -> IntArray:
        """Return the places of input rows, int64 of their shape."""
        return self._shuffled(rows) if self._sorted is None else self._sorted[rows]

    def _shuffled(self, rows: IntArray) -> IntArray:
        if not self._shuffle:
            return rows
        if self._run == 1:
            return permute(rows, self._num_rows, self._key)
        # permute the runs; runs behind the last one, which may be short, move up
        num_runs = -(-self._num_rows // self._run)
        number = permute(rows // self._run, num_runs, self._key)
        short = permute(np.array([num_runs - 1]), num_runs, self._key)
        gap = num_runs * self._run - self._num_rows
        places: IntArray = number * self._run - np.where(number > short, gap, 0) + rows % self._run
        # mix the rows inside each dataset
        dataset = np.searchsorted(self._edges, places, side="right") - 1
        keys = np.array([derive(self._seed, _INSIDE, number) for number in range(len(self._edges) - 1)], np.uint64)
        start = self._edges[dataset]
        return start + permute(places - start, self._edges[dataset + 1] - start, keys[dataset])


_PARTS = 16  # number of parts in which hashes are compared


def hash_names(names: NDArray) -> NDArray:
    """Return a 64-bit hash of each name, uint64[n]; names are texts, see `as_texts`."""
    import pandas as pd

    found: NDArray = pd.util.hash_array(names, categorize=False)
    return found


def find_repeats(hashes: NDArray) -> IntArray:
    """Return how many earlier rows have the same hash, uint64[n]: int64[n], 0 for the first."""
    repeats = np.zeros(len(hashes), dtype=np.int64)
    part = (hashes >> np.uint64(60)).astype(np.int8)
    for number in range(_PARTS):
        rows = np.flatnonzero(part == number)
        order = np.argsort(hashes[rows], kind="stable")
        held = hashes[rows[order]]
        first = np.concatenate([[True], held[1:] != held[:-1]])
        starts = np.flatnonzero(first)
        repeats[rows[order]] = np.arange(len(held)) - np.repeat(starts, np.diff([*starts, len(held)]))
    return repeats


def rename(names: NDArray, repeats: IntArray) -> NDArray:
    """Append the repetition number to names, as anndata does: "cell", "cell-1", "cell-2"."""
    rows = np.flatnonzero(repeats)
    renamed = names.copy()
    renamed[rows] = [f"{names[row]}-{repeats[row]}" for row in rows.tolist()]
    return renamed


def append_record(path: Path, block: int, arrays: Sequence[NDArray]) -> None:
    """Append a record to a file."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    header = np.array([block, *(array.nbytes for array in arrays)], dtype="<i8")
    with path.open("ab") as file:
        file.write(header.data)
        for array in arrays:
            file.write(array.reshape(-1).view(np.uint8).data)


def scan_records(path: Path, num_arrays: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """Iterate over the records of a file, reading only their headers; skip an incomplete record at the end.

    Yields:
        The number of the block, and for each array its offset and its size in bytes.
    """
    head_bytes, end, place = 8 * (num_arrays + 1), path.stat().st_size, 0
    with path.open("rb") as file:
        while place + head_bytes <= end:
            file.seek(place)
            block, *sizes = np.frombuffer(file.read(head_bytes), dtype="<i8").tolist()
            starts = (np.cumsum([place + head_bytes, *sizes])).tolist()
            place = starts.pop()
            if place > end:
                return
            yield block, starts, sizes


def as_texts(values: Iterable[Any]) -> NDArray:
    """Return values as texts, object[n]: str, or None for what pandas treats as missing.

    Raises:
        DataError: a text has no form in UTF-8, in which stores hold texts.
    """
    import pandas as pd

    held = np.asarray(values, dtype=object)
    texts = np.empty(len(held), dtype=object)
    texts[:] = [None if gone else str(one) for one, gone in zip(held.tolist(), pd.isna(held).tolist(), strict=True)]
    try:
        "".join(filter(None, texts)).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        text = next(text for text in filter(None, texts) if half in text)
        raise DataError(f"the text {text!r} has no form in UTF-8: remove the half of a surrogate pair") from error
    return texts


def packed_texts(texts: NDArray) -> tuple[NDArray, NDArray]:
    """Return the UTF-8 bytes of each text, int32[n], -1 = missing; and all bytes concatenated, uint8."""
    packed = [None if text is None else text.encode() for text in texts.tolist()]
    lengths = np.fromiter((-1 if one is None else len(one) for one in packed), np.int32, len(packed))
    return lengths, np.frombuffer(b"".join(one for one in packed if one is not None), dtype=np.uint8)


Spans = Sequence[tuple[int, int]]
_LENGTH: DType = np.dtype(np.int32)
_BYTE: DType = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """A matrix, or a column with one value per row."""

    name: str  # "X", "layers/counts", "obs/cell_type", ...
    kind: Literal["dense", "csr", "text"]  # "dense" = an array; "csr" = a CSR matrix; "text" = see `as_texts`
    row_shape: tuple[int, ...] = ()  # shape of a row; () for columns and texts
    dtype: DType = _BYTE  # a dtype that holds the elements of all inputs
    row_bytes: float = 0.0  # average decoded bytes of a row

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Dtypes of the arrays of packed rows; ragged fields begin with lengths."""
        if self.kind == "dense":
            return (self.dtype,)
        return (_LENGTH, np.dtype(np.int32), self.dtype) if self.kind == "csr" else (_LENGTH, self.dtype)

    def pack(self, rows: Any, order: IntArray, spans: Spans) -> list[list[NDArray]]:
        """Sort rows and split them: for each span, return the arrays that hold its rows."""
        rows = rows[order]
        if self.kind == "dense":
            return [[rows[start:stop]] for start, stop in spans]
        if self.kind == "text":
            lengths, *elements = packed_texts(rows)
        else:
            lengths, elements = np.diff(rows.indptr).astype(_LENGTH), [rows.indices, rows.data]
        ends = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0), dtype=np.int64)])
        return [
            [lengths[start:stop], *(array[ends[start] : ends[stop]] for array in elements)] for start, stop in spans
        ]

    def unpack(self, parts: Sequence[NDArray], order: IntArray) -> Any:
        """Turn packed rows into an array or a CSR matrix, in a given order."""
        if self.kind == "dense":
            return parts[0].reshape(len(order), *self.row_shape)[order]
        if self.kind == "text":
            whole, texts, start = parts[1].tobytes(), np.empty(len(order), dtype=object), 0
            stops = np.cumsum(np.maximum(parts[0], 0), dtype=np.int64).tolist()
            for row, (stop, length) in enumerate(zip(stops, parts[0].tolist(), strict=True)):
                texts[row] = None if length < 0 else whole[start:stop].decode()
                start = stop
            return texts[order]
        import scipy.sparse as sp

        lengths, indices, data = parts
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return sp.csr_matrix((data, indices, indptr), shape=(len(order), self.row_shape[0]))[order]


_PLACE = np.dtype(np.int64)


class Buckets:
    """Accepts rows in blocks, in any order, and returns them sorted by place, with one bucket at a time in memory.

    Every process that adds rows has its own files. A block counts only if `accepts` confirms that this process wrote it
    completely to its file; other blocks were left by killed processes. `edges` are int64[buckets + 1], `piece` names
    the files of this process.
    """

    def __init__(
        self,
        folder: Path,
        edges: IntArray,
        fields: Sequence[Field],
        piece: str,
        accepts: Callable[[str, int], bool],
    ) -> None:
        self._folder, self.edges, self.fields = folder, edges, tuple(fields)
        self._piece, self._accepts = piece, accepts
        counts = [1, *(len(field.dtypes) for field in self.fields)]
        self._first = np.cumsum([0, *counts]).tolist()

    def add(self, block: int, places: IntArray, values: Sequence[Any]) -> str:
        """Add a block of rows, n for each field; rows with the same place, int64[n], keep the order of their blocks.

        Returns:
            The piece, by which `accepts` will know that the block was written completely.
        """
        bucket = np.searchsorted(self.edges, places, side="right") - 1
        order = np.argsort(bucket, kind="stable")
        numbers, starts = np.unique(bucket[order], return_index=True)
        spans = list(zip(starts.tolist(), np.append(starts, len(order))[1:].tolist(), strict=True))
        packed = [field.pack(rows, order, spans) for field, rows in zip(self.fields, values, strict=True)]
        moved = places[order]
        for at, (number, (start, stop)) in enumerate(zip(numbers.tolist(), spans, strict=True)):
            folder = self._folder / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            arrays = [array for field in packed for array in field[at]]
            append_record(folder / self._piece, block, [moved[start:stop], *arrays])
        return self._piece

    def open(self, number: int) -> Bucket:
        """Find the rows of a bucket."""
        found = []
        for path in sorted((self._folder / str(number)).glob("*")):
            for block, starts, sizes in scan_records(path, self._first[-1]):
                if self._accepts(path.name, block):
                    found.append(_Record(block, path, starts, sizes))
        return Bucket(sorted(found), self.fields, self._first)

    def drop(self, numbers: range) -> None:
        """Delete the files of buckets."""
        for number in numbers:
            shutil.rmtree(self._folder / str(number), ignore_errors=True)


class _Record(NamedTuple):
    block: int
    path: Path
    starts: list[int]
    sizes: list[int]


class Bucket:
    """The rows of one bucket; `first` is, for each field, the index of its first array in a record."""

    def __init__(self, records: Sequence[_Record], fields: tuple[Field, ...], first: list[int]) -> None:
        self._records, self._fields, self._first = records, fields, first
        self.places: IntArray = self._load(0, _PLACE)
        self._order = np.argsort(self.places, kind="stable")

    def lengths(self, which: int) -> IntArray:
        """Return the number of elements in each row of a ragged field, sorted by place."""
        return self._load(self._first[which + 1], np.dtype(np.int32))[self._order].astype(np.int64)

    def rows(self, which: int) -> Any:
        """Return a field of all rows, sorted by place."""
        field = self._fields[which]
        parts = [self._load(self._first[which + 1] + at, dtype) for at, dtype in enumerate(field.dtypes)]
        return field.unpack(parts, self._order)

    def _load(self, part: int, dtype: Any) -> NDArray:
        """Read one array of all records into one array."""
        whole = np.empty(sum(record.sizes[part] for record in self._records), dtype=np.uint8)
        start = 0
        with ExitStack() as stack:
            paths = {record.path for record in self._records}
            files = {path: stack.enter_context(path.open("rb")) for path in paths}
            for record in self._records:
                stop = start + record.sizes[part]
                files[record.path].seek(record.starts[part])
                if files[record.path].readinto(whole[start:stop].data) < stop - start:
                    raise DataError(f"{record.path} was truncated while it was read")
                start = stop
        return whole.view(dtype)
