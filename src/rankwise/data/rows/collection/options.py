"""`WriteOptions`: how data are added to a collection."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

from rankwise.data.rows.collection.joining import Joined
from rankwise.data.rows.writing import MatrixFormat, parse_size, rows_of_size
from rankwise.errors import ConfigError

__all__ = ["WriteOptions"]

_LEAST_BUDGET = 2**20
_MOST_DATASETS = 1000  # of one writing, where they are smaller than this:
_SMALL_DATASET = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How data are added to a collection; see `DatasetCollection.add_adatas`.

    Raises:
        ConfigError: a value makes no sense.
    """

    form: MatrixFormat
    groupby: tuple[str, ...] = ()
    dataset_size: int | str = "20GB"
    shuffle_chunk_size: int = 1
    shuffle: bool = True
    memory_budget: int | str = "2GB"
    reshuffle: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_size(self.dataset_size, "dataset_size")
        if self.budget < _LEAST_BUDGET:
            raise ConfigError(f'memory_budget wants at least "1MB", got {self.memory_budget!r}')
        if isinstance(self.shuffle_chunk_size, bool) or self.shuffle_chunk_size < 1:
            raise ConfigError(f"shuffle_chunk_size wants a number of rows >= 1, got {self.shuffle_chunk_size!r}")
        if len(set(self.groupby)) != len(self.groupby):
            raise ConfigError(f"the columns of groupby want to be different, got {list(self.groupby)}")

    @property
    def budget(self) -> int:
        """Bytes of memory for rows on their way, in each process."""
        return parse_size(self.memory_budget, "memory_budget")

    def dataset_rows(self, joined: Joined) -> int:
        """Rows of a dataset.

        Raises:
            ConfigError: a run of the shuffle is longer, or there would be thousands of small datasets.
        """
        size = rows_of_size(self.dataset_size, "dataset_size", joined.matrix_bytes)
        count = -(-joined.num_rows // size)
        if count > _MOST_DATASETS and size < _SMALL_DATASET:
            raise ConfigError(
                f"dataset_size={self.dataset_size!r} cuts {joined.num_rows} rows into {count} datasets of {size} rows "
                f"of about {joined.matrix_bytes:.0f} bytes, each a store of dozens of files: take at least "
                f"{-(-joined.num_rows // _MOST_DATASETS)} rows (a whole number is rows, a text such as '20GB' bytes)"
            )
        if self.shuffle and size < self.shuffle_chunk_size:
            raise ConfigError(
                f"runs of shuffle_chunk_size={self.shuffle_chunk_size} rows do not fit into datasets of {size} rows: "
                "reduce shuffle_chunk_size or increase dataset_size"
            )
        return size

    def part_rows(self, joined: Joined, share: int) -> int:
        """Rows that take one `share`-th of the memory budget."""
        return max(1, int(self.budget / share / joined.row_bytes))

    def check_columns(self, joined: Joined) -> None:
        """Say where a column of a dataset alone is beyond the budget, as one is written at a time."""
        rows = min(self.dataset_rows(joined), joined.num_rows)
        column = max((joined.index, *joined.columns), key=lambda column: column.field.row_bytes)
        need = column.field.row_bytes * rows
        if need > self.budget / 2:
            warnings.warn(
                f"obs column {column.name!r} takes about {column.field.row_bytes:.0f} bytes a row in memory, "
                f"{need / 2**20:.0f} MB for the {rows} rows of a dataset, of a memory_budget of "
                f"{self.budget / 2**20:.0f} MB: lower dataset_size, raise the budget, or make it a category",
                stacklevel=4,
            )

    def facts(self) -> dict[str, Any]:
        """Return the parameters, for the manifest."""
        facts = asdict(self)
        form = facts.pop("form")
        codecs = [codec.to_dict() if hasattr(codec, "to_dict") else str(codec) for codec in self.form.codecs]
        facts.pop("memory_budget")  # it decides nothing that is written
        return {**facts.pop("extra"), **facts, **form, "groupby": list(self.groupby), "compressors": codecs}
