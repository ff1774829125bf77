"""`RowSource`: rows of AnnData stores as samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Self, overload

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, IntArray, NDArray, ReadReport, Share
from rankwise.data.feed import HostBuffer
from rankwise.data.rows.collection import DatasetCollection
from rankwise.data.rows.datasets import Dataset, find_datasets
from rankwise.data.rows.drawing import RowDraws, balanced_weights, checked_weights
from rankwise.data.rows.failing import RowErrors
from rankwise.data.rows.fields import RowField, open_fields, variable_names
from rankwise.data.rows.obs import ObsColumn, read_column, read_groups
from rankwise.data.rows.plans import RowPlan
from rankwise.data.rows.subsets import chosen_rows, part_of_groups, part_of_rows, say_split
from rankwise.data.store import DEFAULT_CACHE_BYTES, BoxReader, ChunkCache, ReaderStats
from rankwise.errors import ConfigError

__all__ = ["RowSource"]

# What the chunks that an order mixes may take, decoded; the same number as the order's own.
_WINDOW_BYTES = 128 << 20
_LEAST_LANES, _MOST_LANES = 4, 64


class RowSource:
    """Implements `Source` over AnnData stores, one over the other: a sample is a row of matrices and of obs columns.

    Opening reads metadata, the chosen obs columns, and of several stores the names of their variables.

    Args:
        uris: AnnData stores (Zarr groups) or collections of them: folders or URLs, or a `DatasetCollection`.
        matrices: what to read of a row: "X", "layers/counts", "obsm/X_pca", ..., also the names of the fields.
        obs: columns of the tables of observations, which are fields too: numbers as they are, categories as int32 codes
            of one table over all stores (see `categories`), -1 where the value is missing.
        dense: whether CSR rows come out as dense ones.
        genes: variables by name or number; of X and the layers only these come out, dense, in this order.
        rows: only these rows: bool[rows of all stores], or row numbers, whose order is without meaning.
        dtype: dtype of the elements, one for all matrices or ``{matrix: dtype}``; None = as stored.
        cache: bytes of decoded chunks kept in memory (0 = none), or a `ChunkCache` that several sources share.
        threads: threads that read and decode; None = the cores that this rank may use.

    Raises:
        ConfigError: there are no such matrices, columns, genes or rows, or the stores do not fit together.
        DataError: there is no AnnData store, or a damaged one.
        MissingExtraError: what reads it is not installed.
    """

    def __init__(
        self,
        uris: str | os.PathLike[str] | DatasetCollection | Sequence[str | os.PathLike[str]],
        *,
        matrices: Sequence[str] = ("X",),
        obs: Sequence[str] = (),
        dense: bool = False,
        genes: Sequence[Any] | None = None,
        rows: Any = None,
        dtype: Any = None,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
    ) -> None:
        _check_names(matrices=matrices, obs=obs)
        # a window order comes back to its chunks soon: each is kept at its first time
        self.reader = BoxReader(cache=cache, threads=threads, keep="all")
        self.datasets = tuple(Dataset(place, self.reader) for place in find_datasets(_places(uris)))
        self._matrices = open_fields(self.datasets, matrices, dense=dense, genes=genes, dtype=dtype)
        self._columns = {name: read_column(self.datasets, name) for name in obs}
        self._names = (*self._matrices, *self._columns)
        self._num_rows = sum(dataset.num_rows for dataset in self.datasets)
        self._rows: NDArray | None = None if rows is None else chosen_rows(rows, self._num_rows)
        self._draws: RowDraws | None = None
        self._shelf: list[HostBuffer] = []
        if self._num_rows == 0:
            raise ConfigError(f"{self.datasets[0].place} has no rows")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in self.fields.items())
        return f"RowSource({len(self)} rows of {len(self.datasets)} stores; {fields})"

    def __len__(self) -> int:
        return self.num_samples

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_shelf": []}

    @property
    def num_samples(self) -> int:
        """Rows, of a subset those in it; of drawn rows the draws of an epoch."""
        if self._draws is not None:
            return self._draws.num_samples
        return self._num_chosen

    @property
    def _num_chosen(self) -> int:
        return self._num_rows if self._rows is None else len(self._rows)

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a row by name: matrices, then obs columns."""
        known: dict[str, RowField | ObsColumn] = {**self._matrices, **self._columns}
        return MappingProxyType({name: known[name].spec for name in self._names})

    @property
    def categories(self) -> Mapping[str, tuple[Any, ...]]:
        """For each categorical obs column what its codes stand for, over all stores."""
        found = {name: column.categories for name, column in self._columns.items()}
        return MappingProxyType({name: table for name, table in found.items() if table is not None})

    @property
    def var_names(self) -> tuple[str, ...]:
        """Names of all variables; read each time."""
        return variable_names(self.datasets[0])

    @property
    def fingerprint(self) -> str:
        """Hash of the metadata of the matrices and of which rows are taken: equal for a copy elsewhere.

        Obs columns, dense output, genes and dtypes are not in it: they change no order.
        """
        facts = [[dataset.num_rows for dataset in self.datasets]]
        held = sorted((name, field.stack.fingerprint) for name, field in self._matrices.items())
        rows = None if self._rows is None else hashlib.sha256(self._rows.tobytes()).hexdigest()
        drawn = None if self._draws is None else self._draws.fingerprint
        return hashlib.sha256(repr((facts, held, rows, drawn)).encode()).hexdigest()[:16]

    @property
    def chunk_samples(self) -> int:
        """Neighbouring samples that are stored together, on average: those of the longest chunk of all matrices."""
        return self._chunk_rows if self._draws is None else self._draws.together

    @property
    def _chunk_rows(self) -> int:
        """Rows of the subset that one chunk holds, on average."""
        chunk = min(self._num_rows, max((f.stack.chunk_rows for f in self._matrices.values()), default=1))
        if self._rows is None or chunk == 1:
            return chunk
        touched = 1 + np.count_nonzero(np.diff(self._rows // chunk))
        return max(1, round(len(self._rows) / touched))

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of the chunks that hold `chunk_samples` neighbours, on average."""
        chunk = min(self._num_rows, max((f.stack.chunk_rows for f in self._matrices.values()), default=1))
        return max(1, round(chunk * sum(field.stack.row_bytes for field in self._matrices.values())))

    def order_layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return the lanes that suit an order, so that its windows decode to at most 128 MiB; the window is its own."""
        lanes = min(_WINDOW_BYTES // self.chunk_bytes, batch_size)
        return int(np.clip(lanes, _LEAST_LANES, _MOST_LANES)), None

    @property
    def cache(self) -> ChunkCache:
        """Where decoded chunks are kept."""
        return self.reader.cache

    @property
    def stats(self) -> ReaderStats:
        """What was read so far, row pointers included."""
        return self.reader.stats

    def decoded_bytes(self, num_samples: int) -> int:
        """Return the bytes that so many neighbouring samples take in the cache, about."""
        return -(-num_samples // self.chunk_samples) * self.chunk_bytes

    def row_numbers(self, ids: IntArray, *, seed: int = 0, epoch: int = 0) -> IntArray:
        """Return the rows over all stores, int64, that samples are; without a subset they are the same.

        Args:
            ids: int64, sample ids.
            seed: seed of the order, which decides drawn rows; without meaning for others.
            epoch: epoch, likewise.
        """
        chosen = ids if self._draws is None else self._draws.rows(ids, seed=seed, epoch=epoch)
        found: IntArray = chosen if self._rows is None else self._rows[chosen].astype(np.int64)
        return found

    def drawn(
        self,
        *,
        balance: str | None = None,
        weights: Any = None,
        num_samples: int | None = None,
        together: int = 1,
    ) -> RowSource:
        """Return a source whose samples are draws of these rows, with replacement, anew in each epoch.

        Which row a draw is follows from (seed, epoch, sample) alone: the same at every world size and after a restart.

        Args:
            balance: an obs column (it need not be a field); each of its values is as likely, rows without one never.
            weights: float[num_samples], how likely each row is, in any unit; instead of `balance`.
            num_samples: draws of an epoch; None = as many as there are rows.
            together: draws that come from one chunk of neighbouring rows: more of them need less decoding, and are
                less independent of each other inside a window of the order.

        Raises:
            ConfigError: not one of `balance` and `weights` is given, or it makes no sense; or rows are drawn already.
        """
        if (balance is None) == (weights is None) or self._draws is not None:
            raise ConfigError("drawn() wants rows that are not drawn yet, and one of balance= and weights=")
        if balance is not None:
            rows = self.row_numbers(np.arange(self.num_samples, dtype=np.int64))
            chosen = balanced_weights(read_groups(self.datasets, balance).of(rows))
        else:
            chosen = checked_weights(weights, self.num_samples)
        draws = RowDraws(
            num_samples=self.num_samples if num_samples is None else num_samples,
            bounds=np.cumsum(chosen),
            together=together,
            block_rows=self._chunk_rows,
        )
        return self._with(_draws=draws)

    def subset(self, rows: Any) -> RowSource:
        """Return a source of some of these samples, with the same reader and columns.

        Args:
            rows: bool[num_samples], or sample numbers, each once; their order is without meaning.

        Raises:
            ConfigError: there are no such samples.
        """
        if self._draws is not None:
            raise ConfigError("drawn rows have no subsets: take the subset first, then draw from it")
        chosen = chosen_rows(rows, self.num_samples)
        return self._with(_rows=chosen if self._rows is None else self._rows[chosen])

    def select(self, fields: Sequence[str]) -> RowSource:
        """Return a source of some of the fields, with the same reader; the order stays the same.

        Raises:
            ConfigError: there is no such field.
        """
        unknown = [name for name in fields if name not in self._names]
        if unknown or not fields:
            raise ConfigError(f"the source has the fields {', '.join(self._names)}; asked for {list(fields)}")
        return self._with(_names=tuple(name for name in self._names if name in fields))

    @overload
    def split(self, *, by: str, fractions: Mapping[str, float], seed: int = ...) -> dict[str, RowSource]: ...
    @overload
    def split(self, *, by: str, fractions: Sequence[float], seed: int = ...) -> tuple[RowSource, ...]: ...
    def split(
        self, *, by: str, fractions: Mapping[str, float] | Sequence[float], seed: int = 1889
    ) -> dict[str, RowSource] | tuple[RowSource, ...]:
        """Return sources over parts of the rows, the same on every rank; rows that are added later move no old one.

        Where a row goes follows from a hash of its group's name (or of its number), so parts are as large as asked for
        only within chance; what came out is logged, and a warning says when it is far off.

        Args:
            by: the obs column whose equal values stay together, such as "donor" (it need not be a field); "row" = none,
                each row goes by its number.
            fractions: sizes of the parts, ``{"train": 0.8, "val": 0.2}`` or ``(0.8, 0.2)``, at most 1 together.
            seed: another seed, another split.

        Raises:
            ConfigError: there is no such column, rows have no value in it, or a part is empty.
        """
        if self._draws is not None:
            raise ConfigError("drawn rows cannot be split: split first, then draw from a part")
        named = isinstance(fractions, Mapping)
        names = [str(name) for name in fractions] if named else [f"part {number}" for number in range(len(fractions))]
        sizes = list(fractions.values()) if isinstance(fractions, Mapping) else list(fractions)
        part = self._parts(by, sizes, seed)
        members = [np.flatnonzero(part == number) for number in range(len(sizes))]
        say_split([len(member) for member in members], names, sizes, self.num_samples, by)
        made = [self.subset(member) for member in members]
        return dict(zip(names, made, strict=True)) if named else tuple(made)

    def plan(self, share: Share) -> RowPlan:
        """Return how `share` is read; looks at row pointers and shard indexes.

        Raises:
            IndexError: the share has a sample that the source has not.
            DataError: row pointers cannot be read or are damaged.
        """
        ids = np.asarray(share.ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.num_samples):
            raise IndexError(f"a share asks for samples {ids.min()} to {ids.max()}: the source has {self.num_samples}")
        rows = self.row_numbers(ids, seed=share.step.resume.seed, epoch=share.step.epoch)
        plans = {name: field.stack.plan(rows, self.reader) for name, field in self._read_fields().items()}
        return RowPlan.of(share, rows, plans, self.reader)

    def hint(self, plan: RowPlan) -> None:
        """Ask the system to read the bytes of a plan soon (local files only, best effort)."""
        self.reader.hint([box for matrix in plan.matrices.values() for box in matrix.boxes])

    def read(self, plan: RowPlan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer, which it reserves. Thread-safe; rows that fail are reported, not raised."""
        num, fields = plan.share.num_samples, self._read_fields()
        into.reserve(self.fields, num, plan.capacity)
        errors = RowErrors(plan.share.ids, plan.rows, self.datasets)
        with self._scratch() as scratch:
            between = {name: field.stack.spec for name, field in fields.items() if not field.is_direct}
            scratch.reserve(between, num, plan.capacity)
            room = {name: (into if field.is_direct else scratch).arrays(name) for name, field in fields.items()}
            jobs = [job for name, matrix in plan.matrices.items() for job in matrix.jobs(room[name])]
            reports = self.reader.read(jobs) if jobs else ()
            for report in reports:
                for error in report.errors:
                    errors.add(error)
            for name, field in fields.items():
                outside = field.finish(room[name], into.arrays(name), self.reader.run_tasks)
                if outside is not None:
                    errors.add_outside(np.flatnonzero(outside), name, field.stack.spec.shape[0])
        for name, column in self._columns.items():
            if name in self._names:
                column.take(plan.rows, into.arrays(name)[0])
        return errors.summed(reports)

    def close(self) -> None:
        """Give threads, files and scratch memory back. Reading again opens them anew."""
        self._shelf.clear()
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _with(self, **changes: Any) -> RowSource:
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **changes})
        return made

    def _read_fields(self) -> dict[str, RowField]:
        return {name: field for name, field in self._matrices.items() if name in self._names}

    def _parts(self, by: str, fractions: Sequence[float], seed: int) -> IntArray:
        rows = self.row_numbers(np.arange(self.num_samples, dtype=np.int64))
        if by == "row":
            return part_of_rows(rows, fractions, seed=seed)
        return part_of_groups(read_groups(self.datasets, by).of(rows), fractions, seed=seed)

    @contextmanager
    def _scratch(self) -> Iterator[HostBuffer]:
        """Memory for rows on their way to another shape; one for each thread that reads at a time, used again."""
        try:
            held = self._shelf.pop()
        except IndexError:
            held = HostBuffer()
        try:
            yield held
        finally:
            self._shelf.append(held)


def _places(
    uris: str | os.PathLike[str] | DatasetCollection | Sequence[str | os.PathLike[str]],
) -> str | os.PathLike[str] | Sequence[str | os.PathLike[str]]:
    return uris.path if isinstance(uris, DatasetCollection) else uris


def _check_names(**lists: Sequence[str]) -> None:
    for name, given in lists.items():
        if isinstance(given, str):
            raise ConfigError(f"{name}= is a list of names, got the text {given!r}: write {name}=[{given!r}]")
    names = [name for given in lists.values() for name in given]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"a source of rows wants at least one field, each under its own name; asked for {names}")
