"""Checks that a collection is as it was written, and has the rows of its source files."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.order.permutation import WordArray, mix_words
from rankwise.data.rows.collection.buckets import hash_names
from rankwise.data.rows.collection.collection import DatasetCollection
from rankwise.data.rows.collection.inputs.columns import Column, as_text
from rankwise.data.rows.collection.inputs.inputs import open_input
from rankwise.data.rows.collection.union import SOURCE, SOURCE_ROW, Joined, join_inputs
from rankwise.data.rows.datasets.on_disk import Dataset, array_checksums
from rankwise.data.rows.datasets.search import find_datasets, member_names
from rankwise.data.rows.matrices.matrix import StoredSparse
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError, RankwiseError

_BLOCK_BYTES = 2**25  # of a matrix, read at once
_PORTION = 2**20  # elements of a matrix stored by columns
_BLOCK_ROWS = 2**16  # rows of a column


def _matrix_digests(side: Joined, name: str) -> WordArray:
    """Return the digests of all rows of a matrix of one input."""
    table = side.inputs[0].tables[name]
    if not table.by_columns:
        field = next(field for field in side.matrices if field.name == name)
        spans = _spans(table.shape[0], max(1, int(_BLOCK_BYTES / max(1.0, table.row_bytes))))
        return np.concatenate([digest_rows(side.shape(0, field, table.block(*span))) for span in spans])
    found, gather = np.zeros(table.held.shape[0], dtype=np.uint64), side.gather_of(0, name)
    for span in _spans(table.held.nnz, _PORTION):
        rows, columns, values = table.held.elements(*span)
        if gather is not None:  # the target of each column, -1 = none
            columns = gather[columns]
            rows, columns, values = rows[columns >= 0], columns[columns >= 0], values[columns >= 0]
        found += _sum(len(found), rows, columns, values)
    return found if table.rows is None else found[table.rows]


def _spans(num_rows: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, num_rows)) for start in range(0, max(1, num_rows), step)]


def compare_with_sources(collection: DatasetCollection, *, shown: Callable[[str], None] | None = None) -> list[str]:
    """Read the sources of a collection again and compare every row with its source, matrices and columns.

    Reads sources and datasets completely. Memory holds 8 bytes for each row of the sources, for one matrix or column at
    a time. Names of the observations are not compared, because they may have been made unique.

    Returns:
        The problems, one sentence each; empty if there are none.
    """
    vars_ = collection.tables_of_variables()
    datasets = [_side(str(collection.path / name), vars_, member=True) for name in collection.manifest["datasets"]]
    origins = [_Origin(side.inputs[0].columns) for side in datasets]
    labels = sorted({label for origin in origins for label in origin.labels})
    with contextlib.ExitStack() as stack:
        sparse = {field.name for side in datasets for field in side.matrices if field.kind == "csr"}
        sources, problems = _open_sources(collection, labels, vars_, sparse)
        for side in sources.values():
            stack.callback(side.inputs[0].close)
        for label, side in sources.items():
            seen = np.concatenate([origin.rows[origin.of(label)] for origin in origins])
            lost = side.num_rows - len(np.unique(seen[seen < side.num_rows]))
            if lost or (seen >= side.num_rows).any():
                problems.append(f"{label} has {side.num_rows} rows, but {lost} of them are not in the collection")
        for matrix in (True, False):
            for name in dict.fromkeys(name for side in datasets for name in _parts(side, matrix=matrix)):
                if matrix or name not in {SOURCE, SOURCE_ROW}:
                    if shown is not None:
                        shown(name)
                    problems += _compare(name, datasets, origins, sources, matrix=matrix)
    return problems


class _Origin:
    """The origin of the rows of one dataset."""

    def __init__(self, columns: dict[str, Column]) -> None:
        import pandas as pd

        path, row = columns[SOURCE], columns.get(SOURCE_ROW)  # annbatch does not record rows
        codes, labels = path.block(0, path.num_rows), path.categories
        if labels is None:  # an input had a column of this name, with texts or numbers
            codes, labels = pd.factorize(as_text(codes, path))
        self.labels: tuple[str, ...] = tuple(map(str, labels))
        self.codes: IntArray = codes
        self.rows: IntArray = np.full(path.num_rows, -1) if row is None else row.block(0, row.num_rows)

    def of(self, label: str) -> NDArray:
        """Return which rows of the dataset come from a source."""
        code = self.labels.index(label) if label in self.labels else -2
        return np.flatnonzero((self.codes == code) & (self.rows >= 0))


def _side(source: str, vars_: dict[str, Any], *, sparse: Collection[str] = (), **options: Any) -> Joined:
    """Open a dataset, or a source to be converted to the variables of the collection and its CSR matrices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return join_inputs([open_input(source, 0, **options)], vars_=vars_, sparse=sparse)


def _parts(side: Joined, *, matrix: bool) -> Mapping[str, Any]:
    """Return the matrices or the columns of a side, by name."""
    return side.inputs[0].tables if matrix else side.inputs[0].columns


def _open_sources(
    collection: DatasetCollection, labels: list[str], vars_: dict[str, Any], sparse: Collection[str]
) -> tuple[dict[str, Joined], list[str]]:
    parameters: dict[str, dict[str, Any]] = {}
    for write in collection.manifest["writes"]:
        for source in write["sources"]:
            parameters.setdefault(source["src_path"], write["parameters"])
    opened: dict[str, Joined] = {}
    problems: list[str] = []
    for label in labels:
        mine = parameters.get(label, {})
        if label.startswith("in memory") or mine.get("load_adata"):
            what = "was in memory" if label.startswith("in memory") else "was converted by a function (load_adata)"
            problems.append(f"{label} {what}: its rows cannot be compared")
            continue
        try:
            opened[label] = _side(label, vars_, sparse=sparse, modalities=mine.get("modalities") or ())
        except RankwiseError as error:
            away = not Path(label).is_absolute() and not Path(label).exists() and "://" not in label
            hint = " (src_path is relative to the folder of the original call: run this there)" * away
            problems.append(f"{label} cannot be compared: {error}{hint}")
    return opened, problems


def _compare(
    name: str, datasets: list[Joined], origins: list[_Origin], sources: dict[str, Joined], *, matrix: bool
) -> list[str]:
    """Compare one matrix or column."""
    problems: list[str] = []
    held = [parts[name] for side in (*datasets, *sources.values()) if name in (parts := _parts(side, matrix=matrix))]
    text = not matrix and any(part.kind in {"text", "category"} for part in held)

    def digests(side: Joined) -> WordArray:
        if matrix:
            return _matrix_digests(side, name)
        column = side.inputs[0].columns[name]
        spans = _spans(column.num_rows, _BLOCK_ROWS)
        return np.concatenate([digest_column(column.block(*span), column, text=text) for span in spans])

    wanted = {label: digests(side) for label, side in sources.items() if name in _parts(side, matrix=matrix)}
    for side, origin in zip(datasets, origins, strict=True):
        if name not in _parts(side, matrix=matrix):  # an addition lacks it; that was logged when it was written
            continue
        found = digests(side)
        for label, words in wanted.items():
            mine = origin.of(label)
            mine = mine[origin.rows[mine] < len(words)]
            odd = mine[found[mine] != words[origin.rows[mine]]]
            if len(odd):
                problems.append(
                    f"{name} of {len(odd)} rows of {side.inputs[0].label} differs from {label}, such as row {odd[0]}, "
                    f"which should be row {origin.rows[odd[0]]} there"
                )
    return problems


_NOTHING = np.uint64(0x6E6F7468696E6721)  # word for a missing value


def digest_rows(rows: Any) -> WordArray:
    """Return a 64-bit digest of each row of a CSR matrix or an array; stored zeros do not count.

    It is the sum over all elements of a mixed word of column and value.
    """
    if hasattr(rows, "indptr"):
        numbers = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        return _sum(rows.shape[0], numbers, rows.indices, rows.data)
    flat = rows.reshape(len(rows), -1)
    numbers, columns = np.nonzero(flat)
    return _sum(len(rows), numbers, columns, flat[numbers, columns])


def digest_column(values: Any, column: Any, *, text: bool) -> WordArray:
    """Return a digest of each row; with `text` converted first: for categories, and if the other side has text."""
    if text:
        texts = as_text(values, column)
        words = hash_names(texts)
        words[[text is None for text in texts]] = _NOTHING
        return words
    if values.dtype.names:
        words = _words(values["value"])
        words[values["missing"]] = _NOTHING
        return words
    words = _words(values)
    words[np.isnan(values)] = _NOTHING
    return words


def _sum(num_rows: int, rows: NDArray, columns: NDArray, values: NDArray) -> WordArray:
    kept = values != 0
    words = mix_words(mix_words(columns[kept].astype(np.uint64)) ^ _words(values[kept]))
    found = np.zeros(num_rows, dtype=np.uint64)
    np.add.at(found, rows[kept], words)
    return found


def _words(values: NDArray) -> WordArray:
    """Return the bits of numbers; equal numbers give equal bits in any dtype."""
    if values.dtype.kind == "c":
        return _words(values.real) ^ np.where(values.imag != 0, mix_words(_words(values.imag)), np.uint64(0))
    words: WordArray = values.astype(np.float64).view(np.uint64)
    return words


_PART = 2**16


def verify_rows(
    uri: str | os.PathLike[str], *, sources: bool = False, shown: Callable[[str], None] | None = None
) -> list[str]:
    """Compare a collection with its manifest; reads every file once.

    It checks the checksum of every array, that tables and matrices have the rows that were written, that row
    pointers are valid, and that every row of every source appears exactly once.

    Args:
        uri: folder of the collection.
        sources: also read the sources again, and compare every row with its source.
        shown: called before each read: with the place of a dataset, or the name of a matrix or column of the sources.

    Returns:
        The problems, one sentence each; empty if there are none.

    Raises:
        ConfigError: it has no manifest: another program wrote it, or it is not a collection.
        DataError: there is nothing at `uri`.
    """
    collection = DatasetCollection(uri, mode="r")
    entries = collection.manifest["datasets"]
    if not entries:
        raise ConfigError(f"{uri} has no manifest to compare with: only collections written by rankwise have one")
    problems = [f"{name} is missing" for name in entries if not (collection.path / name).is_dir()]
    with BoxReader(threads=1, cache=0) as reader:
        for place in find_datasets(collection.path):
            name = Path(place).name
            if (collection.path / name).is_dir():
                if shown is not None:
                    shown(place)
                found, expected = array_checksums(Path(place)), entries[name]["arrays"]
                problems += [f"{name}/{array} is missing" for array in sorted(set(expected) - set(found))]
                problems += [f"{name}/{array} was added later" for array in sorted(set(found) - set(expected))]
                problems += [
                    f"{name}/{array} changed after it was written: its checksum differs"
                    for array in sorted(set(found) & set(expected))
                    if found[array] != expected[array]
                ]
                problems += _rows(place, entries[name]["rows"], reader)
    problems = problems or _sources(collection)
    return problems if problems or not sources else compare_with_sources(collection, shown=shown)


def _rows(place: str, expected: int | None, reader: BoxReader) -> list[str]:
    try:
        held = Dataset(place, reader)
        problems = []
        if expected is not None and held.num_rows != expected:
            problems.append(f"{Path(place).name} has {held.num_rows} rows, {expected} were written")
        for name in held.matrices:
            matrix = held.matrix(name)
            if isinstance(matrix, StoredSparse):
                for start in range(0, matrix.num_rows, _PART):
                    _, _, lost = matrix.pointers.spans(np.arange(start, min(start + _PART, matrix.num_rows)))
                    problems += [str(error.error) for error in lost]
    except RankwiseError as error:
        return [str(error)]
    return list(dict.fromkeys(problems))  # report each damaged chunk once, not for each of its rows


def _sources(collection: Any) -> list[str]:
    """Return messages about duplicate or missing rows, from the recorded origins."""
    if not any("src_row" in group["obs"].attrs["column-order"] for group in collection):
        return []  # annbatch wrote all datasets
    obs = collection.obs(["src_path", "src_row"])
    writes, names = collection.manifest["writes"], member_names(collection.manifest["datasets"])
    # other labels were recorded in an input before, which may hold any part of the rows of that source
    written = [
        {source["src_path"]: source["rows"] for source in write["sources"] if not source.get("kept_origin")}
        for write in writes
    ]
    with BoxReader(threads=1, cache=0) as reader:
        sizes = [Dataset(str(collection.path / name), reader).num_rows for name in names]
    number = {name: number for number, write in enumerate(writes) for name in write["datasets"]}
    obs["write"] = np.repeat([number.get(name, -1) for name in names], sizes)
    # Every write numbers its inputs in memory from 0, so they are told apart by the write. Of rows that were written
    # again since, such as in a reshuffle, nobody knows which write it was.
    held = obs["src_path"].astype(str).str.startswith("in memory ")
    mine = np.array([at >= 0 and path in written[at] for at, path in zip(obs["write"], obs["src_path"], strict=True)])
    obs.loc[~held, "write"] = -1
    known = obs[(obs["src_row"] >= 0) & (~held | mine)]
    groups = known.groupby(["src_path", "write"], observed=True, dropna=False)["src_row"]
    counts = groups.agg(["size", "max"])
    # An input of the same write may have brought rows with the label of one in memory: nobody can tell them apart.
    mixed = [any(source.get("kept_origin") for source in write["sources"]) for write in writes]
    beside = np.array(
        [at >= 0 and mixed[at] and size > written[at][path] for (path, at), size in counts["size"].items()], np.bool_
    )
    known, counts = known[~beside[groups.ngroup()]], counts[~beside]
    twice = int(known.duplicated().sum())
    problems = [f"{twice} rows occur twice, by their src_path and src_row"] if twice else []
    labels = counts.index.get_level_values("src_path")
    short = counts[(counts["max"] + 1 > counts["size"]) & labels.isin(set().union(*written))]
    return problems + [
        f"{row['size']} rows of {label} were found, including row {row['max']}: some are lost"
        for (label, _), row in short.iterrows()
    ]
