"""Whether the rows of a collection are those of the files that they come from."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.order.permutation import WordArray
from rankwise.data.rows.collection import DatasetCollection
from rankwise.data.rows.collection.columns import Column
from rankwise.data.rows.collection.inputs import Input, open_input
from rankwise.data.rows.collection.joining import SOURCE, SOURCE_ROW, Joined, join_inputs
from rankwise.data.rows.inspecting.digests import digest_column, digest_elements, digest_rows
from rankwise.errors import RankwiseError

__all__ = ["compare_with_sources"]

_BLOCK_BYTES = 2**25  # of a matrix that is read at once
_PORTION = 2**20  # elements of a matrix by columns
_BLOCK_ROWS = 2**16  # of a column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Side:
    """A dataset, or a source in the variables of the collection."""

    name: str
    held: Input
    joined: Joined

    def has(self, name: str, *, matrix: bool) -> bool:
        """Whether there is a matrix, or else a column, of a name."""
        return name in (self.held.tables if matrix else self.held.columns)

    def matrix(self, name: str) -> WordArray:
        """Return the digests of all rows of a matrix."""
        table = self.held.tables[name]
        field = next(field for field in self.joined.matrices if field.name == name)
        if table.by_columns:
            whole = digest_elements(table.held, self.joined.gather_of(0, name), _PORTION)
            return whole if table.rows is None else whole[table.rows]
        step = max(1, int(_BLOCK_BYTES / max(1.0, table.row_bytes)))
        blocks = [
            digest_rows(self.joined.shape(0, field, table.block(start, stop)))
            for start, stop in _steps(table.shape[0], step)
        ]
        return np.concatenate(blocks)

    def column(self, name: str, *, text: bool) -> WordArray:
        """Return the digests of a column about the rows."""
        column = self.held.columns[name]
        blocks = [
            digest_column(column.block(start, stop), column, text=text)
            for start, stop in _steps(column.num_rows, _BLOCK_ROWS)
        ]
        return np.concatenate(blocks)


def compare_with_sources(collection: DatasetCollection, *, shown: Callable[[str], None] | None = None) -> list[str]:
    """Read the sources of a collection again and compare every row with its source, matrices and columns.

    Sources and datasets are read from beginning to end; what is held is 8 bytes for each row of the sources, of one
    matrix or column at a time. Names of the observations are not compared, as they may have been made unique.

    Args:
        collection: the collection.
        shown: told the name of each matrix and column before it is compared.

    Returns:
        What is wrong, one sentence each; empty if all is well.
    """
    with contextlib.ExitStack() as stack:
        return _compare_all(collection, stack, shown)


def _compare_all(
    collection: DatasetCollection, stack: contextlib.ExitStack, shown: Callable[[str], None] | None
) -> list[str]:
    vars_ = collection.tables_of_variables()
    datasets = [_side(str(collection.path / name), vars_, {}, member=True) for name in collection.manifest["datasets"]]
    origins = [_Origin(side.held.columns) for side in datasets]
    sources, problems = _open_sources(
        collection, sorted({label for origin in origins for label in origin.labels}), vars_
    )
    for side in sources.values():
        stack.callback(side.held.close)
    problems += _missing_rows(sources, origins)
    columns = (name for side in datasets for name in side.held.columns if name not in {SOURCE, SOURCE_ROW})
    for name in dict.fromkeys([*(name for side in datasets for name in side.held.tables), *columns]):
        if shown is not None:
            shown(name)
        problems += _compare(name, datasets, origins, sources)
    return problems


class _Origin:
    """Where the rows of one dataset come from."""

    def __init__(self, columns: dict[str, Column]) -> None:
        path, row = columns[SOURCE], columns.get(SOURCE_ROW)  # annbatch notes no rows
        self.labels: tuple[str, ...] = tuple(map(str, path.categories))
        self.codes: IntArray = path.block(0, path.num_rows)
        self.rows: IntArray = np.full(path.num_rows, -1) if row is None else row.block(0, row.num_rows)

    def of(self, label: str) -> NDArray:
        """Return which rows of the dataset come from a source."""
        code = self.labels.index(label) if label in self.labels else -2
        return np.flatnonzero((self.codes == code) & (self.rows >= 0))


def _side(source: str, vars_: dict[str, Any], parameters: dict[str, Any], *, member: bool = False) -> _Side:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = open_input(source, 0, modalities=parameters.get("modalities") or (), member=member)
        return _Side(name=source, held=held, joined=join_inputs([held], vars_=vars_))


def _open_sources(
    collection: DatasetCollection, labels: list[str], vars_: dict[str, Any]
) -> tuple[dict[str, _Side], list[str]]:
    parameters: dict[str, dict[str, Any]] = {}
    for write in collection.manifest["writes"]:
        for source in write["sources"]:
            parameters.setdefault(source["src_path"], write["parameters"])
    opened: dict[str, _Side] = {}
    problems: list[str] = []
    for label in labels:
        mine = parameters.get(label, {})
        if label.startswith("in memory") or mine.get("load_adata"):
            what = "was in memory" if label.startswith("in memory") else "was turned by a function (load_adata)"
            problems.append(f"{label} {what}: its rows cannot be compared")
            continue
        try:
            opened[label] = _side(label, vars_, mine)
        except RankwiseError as error:
            away = not Path(label).is_absolute() and not Path(label).exists() and "://" not in label
            hint = " (src_path is what was passed: call this from the folder that it was passed in)" * away
            problems.append(f"{label} cannot be compared: {error}{hint}")
    return opened, problems


def _missing_rows(sources: dict[str, _Side], origins: list[_Origin]) -> list[str]:
    problems = []
    for label, side in sources.items():
        seen = np.concatenate([origin.rows[origin.of(label)] for origin in origins])
        lost = side.held.num_rows - len(np.unique(seen[seen < side.held.num_rows]))
        if lost or (seen >= side.held.num_rows).any():
            problems.append(f"{label} has {side.held.num_rows} rows, {lost} of them are not in the collection")
    return problems


def _compare(name: str, datasets: list[_Side], origins: list[_Origin], sources: dict[str, _Side]) -> list[str]:
    """Compare one matrix or column."""
    problems: list[str] = []
    matrix = any(name in side.held.tables for side in datasets)
    text = not matrix and _is_text(name, [*datasets, *sources.values()])
    wanted = {
        label: side.matrix(name) if matrix else side.column(name, text=text)
        for label, side in sources.items()
        if side.has(name, matrix=matrix)
    }
    for side, origin in zip(datasets, origins, strict=True):
        if not side.has(name, matrix=matrix):  # of an addition that lacks it, which was said then
            continue
        found = side.matrix(name) if matrix else side.column(name, text=text)
        for label, words in wanted.items():
            problems += _differences(name, side.name, label, (found, words), (origin.of(label), origin.rows))
    return problems


def _differences(
    name: str, dataset: str, label: str, words: tuple[WordArray, WordArray], rows: tuple[NDArray, IntArray]
) -> Iterator[str]:
    (found, wanted), (mine, source_rows) = words, rows
    mine = mine[source_rows[mine] < len(wanted)]
    odd = mine[found[mine] != wanted[source_rows[mine]]]
    if len(odd):
        yield (
            f"{name} of {len(odd)} rows of {dataset} is not that of {label}, such as row {odd[0]}, which should be row "
            f"{source_rows[odd[0]]} there"
        )


def _is_text(name: str, sides: list[_Side]) -> bool:
    kinds = {side.held.columns[name].kind for side in sides if name in side.held.columns}
    return bool(kinds & {"text", "category"})


def _steps(num_rows: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, num_rows)) for start in range(0, max(1, num_rows), step)]
