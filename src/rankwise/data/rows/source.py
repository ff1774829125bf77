"""`RowSource`: rows of AnnData stores as samples."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from rankwise.data.contract import BaseSource, BatchBuffer, FieldSpec, IntArray, ReadReport, Share
from rankwise.data.order import Groups, SplitRule
from rankwise.data.rows.chosen import ChosenRows, RowLocality, bound_rows
from rankwise.data.rows.datasets import open_dataset
from rankwise.data.rows.drawing import DrawOptions, settled_options
from rankwise.data.rows.fields import FieldChoice
from rankwise.data.rows.matrices import RowErrors
from rankwise.data.rows.places import NamedRows, find_rows
from rankwise.data.rows.reader import ChosenFields, RowPlan, Shelf, read_one
from rankwise.data.store import DEFAULT_CACHE_BYTES, BoxReader, ChunkCache, ReaderStats

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RowSource"]


class RowSource(BaseSource):
    """Implements `Source` over AnnData stores, one over the other: a sample is a row of matrices and of obs columns.

    Opening reads metadata, the chosen obs columns, and of several stores the names of their variables.

    Args:
        uris: AnnData stores (Zarr groups) or collections of them: folders or URLs, a `DatasetCollection`, another
            `RowSource` (a part of a split, say), or a list of these. For small data also AnnData in memory and h5ad
            files, which are read into it: up to 4 GiB of matrices, on every rank.
        matrices: what to read of a row: "X", "layers/counts", "obsm/X_pca", "mod/protein/X", ..., also the names of the
            fields.
        obs: columns of the tables of observations, which are fields too: numbers as they are, categories as int32 codes
            of one table over all stores (see `categories`), -1 where the value is missing.
        dense: whether CSR rows come out as dense ones.
        genes: variables by name or number; of X and the layers only these come out, dense, in this order. Of several
            matrices, modalities say, ``{matrix: variables}``. Stores whose variables differ want names. ``...`` = to
            be said by the loader: until then rows can be counted, split and ordered, not read.
        rows: only these rows: bool[rows of all stores], or row numbers, whose order is without meaning.
        dtype: dtype of the elements, one for all matrices or ``{matrix: dtype}``; None = as stored.
        cache: bytes of decoded chunks kept in memory (0 = none), or a `ChunkCache` that several sources share.
        threads: threads that read and decode; None = the cores that this rank may use.

    Raises:
        ConfigError: there are no such matrices, columns, genes or rows, or the stores do not fit together.
        DataError: there is no AnnData store, or a damaged one.
        MissingExtraError: what reads it is not installed.
    """

    stateless = True  # what is read follows from the share alone: loaders may read before an epoch is asked for

    def __init__(
        self,
        uris: Any,
        *,
        matrices: Sequence[str] = ("X",),
        obs: Sequence[str] = (),
        dense: bool = False,
        genes: Any = None,
        rows: Any = None,
        dtype: Any = None,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
    ) -> None:
        choice = FieldChoice(matrices=matrices, obs=obs, dense=dense, genes=genes, dtype=dtype)
        named = find_rows(uris)
        # a window order comes back to its chunks soon: each is kept at its first time
        self.reader = BoxReader(cache=cache, threads=threads, keep="all")
        self.datasets = tuple(open_dataset(place, self.reader) for one in named for place in one.places)
        self._chosen = ChosenRows.of(named, self.datasets, rows)
        self._fields = ChosenFields.of(self.datasets, choice)
        self._shelf = Shelf()

    def __repr__(self) -> str:
        specs = self._fields.opened.specs
        fields = ", ".join(f"{name}: {specs[name].dtype}{list(specs[name].shape)}" for name in self._fields.names)
        return f"RowSource({len(self)} rows of {len(self.datasets)} stores; {fields})"

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """Return the fields of one sample, for a look: what a loader's `transform=` is given.

        Arrays and numbers of NumPy, CSR rows as SciPy matrices [1, columns], codes of `categories`. For many rows make
        a loader: each call reads anew.

        Raises:
            IndexError: there is no sample of this number (below 0: from the end).
            ConfigError: rows are drawn, so that a number means another row in each epoch.
            SampleError: it cannot be read.
        """
        self._chosen.refuse_draws("samples to look at: look at the rows that they are drawn from")
        number = range(len(self))[operator.index(sample)]
        return read_one(number, self.fields, lambda share, into: self.read(self.plan(share), into))

    def obs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the table of observations of these rows, in their order; read each time.

        Args:
            columns: which; None = all. Where a store lacks one its rows have no value; categories are united.

        Raises:
            ConfigError: there is no such column, or rows are drawn.
            DataError: a column cannot be read.
        """
        table: pd.DataFrame = self._chosen.table(columns)
        return table

    @property
    def num_samples(self) -> int:
        """Rows, of a subset those in it; of drawn rows the draws of an epoch."""
        return self._chosen.num_samples

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a row by name: matrices, then obs columns."""
        return MappingProxyType(self._fields.read.specs)

    @property
    def categories(self) -> Mapping[str, tuple[Any, ...]]:
        """For each categorical obs column what its codes stand for, over all stores."""
        return MappingProxyType(self._fields.categories)

    @property
    def var_names(self) -> tuple[str, ...]:
        """Names of all variables; read each time."""
        return self.datasets[0].var_names()

    @property
    def fingerprint(self) -> str:
        """Hash of which rows are taken, and how they are drawn: equal for a copy elsewhere.

        The fields are not in it, nor dense output, genes and dtypes: any of them can be read in one order.
        """
        return self._chosen.fingerprint

    @property
    def draw_options(self) -> DrawOptions | None:
        """How rows are drawn; None = they are not."""
        return self._chosen.options

    @property
    def stored_rows(self) -> NamedRows:
        """What is read from, to be opened with others, ``RowSource([part_of_a, part_of_b])``; drawn rows refuse."""
        return self._chosen.stored

    @cached_property
    def locality(self) -> RowLocality:
        """What neighbouring rows share: the longest chunk of all matrices, on average.

        Rows of a chunk are decoded together, so loaders read the steps of a window as one.
        """
        stacks = tuple(field.stack for field in self._fields.opened.matrices.values())
        return RowLocality.of(self._chosen, stacks, cache_bytes=self.cache.capacity_bytes)

    @property
    def cache(self) -> ChunkCache:
        """Where decoded chunks are kept."""
        return self.reader.cache

    @property
    def stats(self) -> ReaderStats:
        """What was read so far, row pointers included."""
        return self.reader.stats

    def row_numbers(self, ids: IntArray, *, seed: int = 0, epoch: int = 0) -> IntArray:
        """Return the rows over all stores, int64, that samples are; without a subset they are the same.

        Args:
            ids: int64, sample ids.
            seed: seed of the order, which with `epoch` decides drawn rows; without meaning for others.
            epoch: the epoch.
        """
        return self._chosen.numbers(ids, seed=seed, epoch=epoch)

    def drawn(
        self,
        *,
        balance: str | None = None,
        weights: Any = None,
        mix: Sequence[float] | Mapping[str, float] | None = None,
        num_samples: int | None = None,
        together: int = 1,
    ) -> RowSource:
        """Return a source whose samples are draws of these rows, anew in each epoch.

        Which row a draw is follows from (seed, epoch, sample) alone. Draws by weight are made with replacement; a mix
        alone shows all rows of a collection before one comes again.

        Args:
            balance: an obs column (it need not be a field); each of its values is as likely, rows without one never.
            weights: float[num_samples], how likely each row is, in any unit; instead of `balance`. Kept as float32.
            mix: of several collections, the share of each in every batch: numbers in their order, or ``{place:
                share}``; alone, or with `balance` or `weights`, which then hold inside each of them.
            num_samples: draws of an epoch; None = as many as there are rows.
            together: draws that come from one chunk of neighbouring rows: more of them need less decoding, and are
                less independent of each other inside a window of the order.

        Raises:
            ConfigError: not one of them is given, or it makes no sense; or rows are drawn already.
        """
        options = settled_options(
            balance=balance,
            weights=weights,
            mix=mix,
            num_samples=num_samples,
            num_rows=self.num_samples,
            together=together,
            names=[one.name for one in self._chosen.named],
            block_rows=self.locality.chunk_samples,
            chunk_bytes=self.locality.chunk_bytes,
        )
        return self.drawn_as(options)

    def drawn_as(self, options: DrawOptions) -> RowSource:
        """Return a source whose samples are draws of these rows as another source's were; see `draw_options`.

        Raises:
            ConfigError: rows are drawn already, or the options do not fit them.
        """
        return self._with(_chosen=self._chosen.drawn(options))

    def bound_to(self, order: Any) -> RowSource:
        """Return the samples that an order counts: these rows, drawn where the order draws.

        Raises:
            ConfigError: the order was made of other rows, or draws otherwise.
        """
        chosen = bound_rows(self._chosen, order)
        return self if chosen is self._chosen else self._with(_chosen=chosen)

    def subset(self, rows: Any) -> RowSource:
        """Return a source of some of these samples, with the same reader and columns.

        Args:
            rows: bool[num_samples], or sample numbers, each once; their order is without meaning.

        Raises:
            ConfigError: there are no such samples, or they are drawn.
        """
        return self._with(_chosen=self._chosen.subset(rows))

    def reading(self, **changes: Any) -> RowSource:
        """Return a source of the same rows with other fields, over the same stores, reader and cache.

        Args:
            **changes: some of `matrices`, `obs`, `dense`, `genes` and `dtype`, as of the class; the others stay; and
                `rows` for some of these samples.

        Raises:
            ConfigError: there are no such fields or rows.
        """
        rows = changes.pop("rows", None)
        fields = self._fields.changed(**changes)
        return self._with(_chosen=self._chosen if rows is None else self._chosen.subset(rows), _fields=fields)

    def select(self, fields: Sequence[str]) -> RowSource:
        """Return a source of some of the fields, with the same reader; the order stays the same.

        Raises:
            ConfigError: there is no such field.
        """
        return self._with(_fields=self._fields.select(fields))

    @overload
    def split(
        self, *, by: str, fractions: Mapping[str, float] | None = ..., groups: Groups | None = ...,
        exact: bool = ..., stratify: str | None = ..., seed: int = ...,
    ) -> dict[str, RowSource]: ...  # fmt: skip
    @overload
    def split(
        self, *, by: str, fractions: Sequence[float], groups: None = ...,
        exact: bool = ..., stratify: str | None = ..., seed: int = ...,
    ) -> tuple[RowSource, ...]: ...  # fmt: skip
    def split(
        self,
        *,
        by: str,
        fractions: Mapping[str, float] | Sequence[float] | None = None,
        groups: Groups | None = None,
        exact: bool = False,
        stratify: str | None = None,
        seed: int = 1889,
    ) -> dict[str, RowSource] | tuple[RowSource, ...]:
        """Return sources over parts of the rows, the same on every rank.

        Where a row goes follows from a hash of its group's name (or of its number): rows that are added later move no
        old one, and parts are as large as asked for only within chance. What came out is logged, with a warning where
        it is far off; of few groups it mostly is, which `exact` and `groups` are for.

        Args:
            by: the obs column whose equal values stay together, such as "donor" (it need not be a field); "row" = none,
                each row goes by its number.
            fractions: sizes of the parts, ``{"train": 0.8, "val": 0.2}`` or ``(0.8, 0.2)``, at most 1 together. Beside
                `groups` of what is left.
            groups: values of the column for a part, ``{"val": ["donor 3", "donor 7"]}``. What no list names is shared
                out by `fractions`; without them it is ``"train"``, or the part that is given ``...`` instead of a list.
            exact: count the groups, in the order of their hashes: each part has its fraction of their number, rounded,
                and groups that are added later may move others. Rows are sorted (24 bytes each, for a while).
            stratify: an obs column; each part gets its fraction of the groups (of the rows with ``by="row"``) of each
                of its values, exactly. The rows of one group have one value.
            seed: another seed, another split.

        Raises:
            ConfigError: there is no such column or group, rows have no value in it, a group lies in several strata, or
                a part is empty.
        """
        rule = SplitRule.of(fractions, groups, exact=exact or stratify is not None, seed=seed)
        return rule.handed_out([self._with(_chosen=part) for part in self._chosen.split(by, rule, stratify)])

    def fused_with(self, batch_transform: Any) -> RowSource | None:
        """Return a source that does what a transform of whole batches does, while rows are read; None = it cannot.

        It can do `Log1pCounts` of dense rows; rows of whole numbers then come as float32, as they do from it.
        """
        fields = self._fields.fused_with(batch_transform)
        return None if fields is None else self._with(_fields=fields)

    def plan(self, share: Share) -> RowPlan:
        """Return how `share` is read; looks at row pointers and shard indexes.

        Raises:
            IndexError: the share has a sample that the source has not.
            DataError: there is trouble with the storage of row pointers; damage is reported when they are read.
        """
        ids = np.asarray(share.ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.num_samples):
            raise IndexError(f"a share asks for samples {ids.min()} to {ids.max()}: the source has {self.num_samples}")
        rows = self.row_numbers(ids, seed=share.step.resume.seed, epoch=share.step.epoch)
        plans = {name: field.plan(rows, self.reader) for name, field in self._fields.read.matrices.items()}
        return RowPlan.of(share, rows, plans, self.reader)

    def hint(self, plan: RowPlan) -> None:
        """Ask the system to read the bytes of a plan soon (local files only, best effort)."""
        self.reader.hint([box for matrix in plan.matrices.values() for box in matrix.boxes])

    def read(self, plan: RowPlan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer, which it reserves. Thread-safe; rows that fail are reported, not raised."""
        errors = RowErrors(plan.share.ids, plan.rows, self.datasets)
        return self._fields.read.read(plan, into, self.reader, errors, self._shelf)

    def close(self) -> None:
        """Give threads, files and scratch memory back. Reading again opens them anew."""
        self._shelf.clear()
        self.reader.close()

    def _with(self, **changes: Any) -> RowSource:
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **changes})
        vars(made).pop("locality", None)
        return made
