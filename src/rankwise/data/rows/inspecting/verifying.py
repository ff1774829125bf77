"""Whether a collection still is what was written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.rows.collection import DatasetCollection, array_checksums
from rankwise.data.rows.datasets import Dataset, find_datasets
from rankwise.data.rows.inspecting.sources import compare_with_sources
from rankwise.data.rows.matrices import StoredSparse
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError, RankwiseError

__all__ = ["verify_rows"]

_PART = 2**16


def verify_rows(
    uri: str | os.PathLike[str], *, sources: bool = False, shown: Callable[[str], None] | None = None
) -> list[str]:
    """Compare a collection with its manifest; reads every file once.

    Checked are the checksum of every array, that tables and matrices have the rows that were written, that row
    pointers are sound, and that every row of every source is there once.

    Args:
        uri: folder of the collection.
        sources: also read the sources again, and compare every row with its source.
        shown: told what is read next: the place of each dataset; of the sources, the name of each matrix and column.

    Returns:
        What is wrong, one sentence each; empty if all is well.

    Raises:
        ConfigError: it has no manifest: it was written by another program, or is no collection.
        DataError: there is nothing.
    """
    collection = DatasetCollection(uri, mode="r")
    entries = collection.manifest["datasets"]
    if not entries:
        raise ConfigError(f"{uri} has no manifest to compare with: only collections that rankwise wrote have one")
    problems = [f"{name} is missing" for name in entries if not (collection.path / name).is_dir()]
    with BoxReader(threads=1, cache=0) as reader:
        for place in find_datasets(collection.path):
            name = Path(place).name
            if (collection.path / name).is_dir():
                if shown is not None:
                    shown(place)
                problems += _files(Path(place), entries[name]["arrays"])
                problems += _rows(place, entries[name]["rows"], reader)
    problems = problems or _sources(collection)
    return problems if problems or not sources else compare_with_sources(collection, shown=shown)


def _files(folder: Path, expected: dict[str, str]) -> list[str]:
    found = array_checksums(folder)
    problems = [f"{folder.name}/{array} is missing" for array in sorted(set(expected) - set(found))]
    problems += [f"{folder.name}/{array} was added later" for array in sorted(set(found) - set(expected))]
    same = set(found) & set(expected)
    changed = sorted(array for array in same if found[array] != expected[array])
    return problems + [f"{folder.name}/{array} is not what was written: its checksum differs" for array in changed]


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
    return list(dict.fromkeys(problems))  # what is wrong with a chunk once, not for each of its rows


def _sources(collection: Any) -> list[str]:
    """Rows that came twice or went missing, by the notes of where they come from."""
    if not any("src_row" in group["obs"].attrs["column-order"] for group in collection):
        return []  # annbatch wrote them all
    obs = collection.obs(["src_path", "src_row"])
    known = obs[obs["src_row"] >= 0]
    twice = int(known.duplicated().sum())
    problems = [f"{twice} rows are there twice, by their src_path and src_row"] if twice else []
    counts = known.groupby("src_path", observed=True)["src_row"].agg(["size", "max"])
    short = counts[counts["max"] + 1 > counts["size"]]
    return problems + [
        f"of {label} {row['size']} rows are there, but row {row['max']} is among them: some are lost"
        for label, row in short.iterrows()
    ]
