"""Checked options of a write, and the disk space that it needs."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import whole_number
from rankwise.data.rows.collection.union import Joined
from rankwise.data.rows.output.sharded import MatrixFormat
from rankwise.data.rows.output.shards import parse_size, rows_of_size
from rankwise.errors import ConfigError

_LEAST_BUDGET = 2**20
_MOST_DATASETS = 1000  # most datasets of one write, if they are smaller than this:
_SMALL_DATASET = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How data are added to a collection; see `DatasetCollection.add_adatas`.

    Raises:
        ConfigError: a value is invalid.
    """

    form: MatrixFormat
    groupby: tuple[str, ...]
    dataset_size: int | str
    shuffle_chunk_size: int
    shuffle: bool
    memory_budget: int | str
    reshuffle: bool
    matrices: list[str] | None
    modalities: list[str]
    var_subset: list[str] | None
    merge: str | None
    join: str
    load_adata: Callable[[Any], Any] | None

    def __post_init__(self) -> None:
        if self.join not in {"outer", "inner"}:
            raise ConfigError(f"join must be 'outer' or 'inner', got {self.join!r}")
        parse_size(self.dataset_size, "dataset_size")
        if self.budget < _LEAST_BUDGET:
            raise ConfigError(f'memory_budget must be at least "1MB", got {self.memory_budget!r}')
        whole_number("shuffle_chunk_size (rows)", self.shuffle_chunk_size, least=1)
        if len(set(self.groupby)) != len(self.groupby):
            raise ConfigError(f"the columns of groupby must be different, got {list(self.groupby)}")

    @property
    def budget(self) -> int:
        """Bytes of memory for rows in transit, in each process."""
        return parse_size(self.memory_budget, "memory_budget")

    def dataset_rows(self, joined: Joined) -> int:
        """Rows of a dataset.

        Raises:
            ConfigError: a run of the shuffle is longer than a dataset, or there would be thousands of small datasets.
        """
        size = rows_of_size(self.dataset_size, "dataset_size", joined.matrix_bytes)
        count = -(-joined.num_rows // size)
        if count > _MOST_DATASETS and size < _SMALL_DATASET:
            raise ConfigError(
                f"dataset_size={self.dataset_size!r} cuts {joined.num_rows} rows into {count} datasets of {size} rows "
                f"of about {joined.matrix_bytes:.0f} bytes, each a store of dozens of files: use at least "
                f"{-(-joined.num_rows // _MOST_DATASETS)} rows (an integer means rows, a string such as '20GB' bytes)"
            )
        if self.shuffle and size < self.shuffle_chunk_size:
            raise ConfigError(
                f"runs of shuffle_chunk_size={self.shuffle_chunk_size} rows do not fit into datasets of {size} rows: "
                "reduce shuffle_chunk_size or increase dataset_size"
            )
        return size

    def part_rows(self, joined: Joined, share: int) -> int:
        """Number of rows that fit into 1/`share` of the memory budget."""
        return max(1, int(self.budget / share / joined.row_bytes))

    def check_columns(self, joined: Joined) -> None:
        """Warn if a column of a dataset exceeds the budget: it is written as a whole, which takes it four times."""
        rows = min(self.dataset_rows(joined), joined.num_rows)
        column = max((joined.index, *joined.columns), key=lambda column: column.field.row_bytes)
        need = column.field.row_bytes * rows
        if need > self.budget / 4:
            warnings.warn(
                f"obs column {column.name!r} needs about {column.field.row_bytes:.0f} bytes a row in memory, "
                f"{need / 2**20:.3g} MB for the {rows} rows of a dataset, four times that while it is written, of a "
                f"memory_budget of {self.budget / 2**20:.3g} MB: lower dataset_size, raise the budget, or make it a "
                "category",
                stacklevel=5,
            )

    def facts(self) -> dict[str, Any]:
        """Return the parameters, for the manifest."""
        facts = {one.name: getattr(self, one.name) for one in fields(self)}
        del facts["form"], facts["memory_budget"]  # the budget does not affect the written data
        codecs = [codec.to_dict() if hasattr(codec, "to_dict") else str(codec) for codec in self.form.codecs]
        converted = {"groupby": list(self.groupby), "compressors": codecs, "load_adata": self.load_adata is not None}
        facts = {**facts, **asdict(self.form), **converted}  # JSON has no numbers of NumPy
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in facts.items()}


def listed(sources: Any) -> list[Any]:
    """Return inputs as a list, also if there is only one."""
    alone = isinstance(sources, (str, os.PathLike)) or any(hasattr(sources, name) for name in ("obs_names", "attrs"))
    if not alone and not isinstance(sources, Iterable):
        raise ConfigError(f"add_adatas needs a list of paths, groups or AnnData objects, got {type(sources).__name__}")
    return [sources] if alone else list(sources)


def seed_of(rng: Any) -> int | None:
    """Return the seed of a shuffle: a number unchanged, a number drawn from a generator, None for a fresh one.

    Raises:
        ConfigError: it is something else.
    """
    if rng is None:
        return None
    if hasattr(rng, "integers"):
        return int(rng.integers(2**63))
    return whole_number("rng", rng, mend=": a seed, or a numpy.random.Generator, or None")


def warn_of_room(work: Path, spilled_bytes: float) -> None:
    """Warn if uncompressed rows in transit will not fit on the disk; those already in the work folder do not count."""
    there = sum(path.stat().st_size for path in (work / "buckets").rglob("*") if path.is_file())
    free = shutil.disk_usage(work).free
    need = spilled_bytes - there
    if need > free:
        warnings.warn(
            f"all rows are first stored uncompressed in {work}: this needs up to {need / 1e9:.3g} GB "
            f"more, but {free / 1e9:.3g} GB are free. Use a larger disk, or add the inputs in several calls",
            stacklevel=5,
        )
