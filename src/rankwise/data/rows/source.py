"""`RowSource`: rows of AnnData stores as samples."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from rankwise.data.contract import BaseSource, BatchBuffer, FieldSpec, IntArray, NDArray, OrderState, ReadReport, Share
from rankwise.data.contract.cuts import lone_share
from rankwise.data.feed.memory.buffer import HostBuffer
from rankwise.data.feed.memory.csr import one_row
from rankwise.data.order import Groups, SplitRule
from rankwise.data.rows.chosen import NamedRows, RowLocality, bound_rows, find_rows, hash_rows, stack_rows
from rankwise.data.rows.datasets.on_disk import open_dataset
from rankwise.data.rows.draws.row_draws import RowDraws
from rankwise.data.rows.draws.weights import DrawOptions
from rankwise.data.rows.fields.row_field import RowPlan, ScratchPools, read_fields
from rankwise.data.rows.fields.variables import FieldChoice, RowFields
from rankwise.data.rows.matrices.damage import row_errors
from rankwise.data.rows.obs import RowGroups, chosen_rows, read_groups, read_tables, split_rows, taken
from rankwise.data.store import DEFAULT_CACHE_BYTES, BoxReader, ChunkCache, ReaderStats, sum_reports
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

_PIECES_PER_FIELD = 4  # of scratch memory


class RowSource(BaseSource):
    """Implements `Source` over concatenated AnnData stores: a sample is a row of matrices and of obs columns.

    Opening reads metadata, the chosen obs columns, and for several stores the names of their variables.

    Args:
        uris: AnnData stores (Zarr groups) or collections of them: folders or URLs, a `DatasetCollection`, another
            `RowSource` (for example a part of a split), or a list of these. For small data also AnnData in memory and
            h5ad files, which are read into memory: up to 4 GiB of matrices, on every rank.
        matrices: what to read of a row: "X", "layers/counts", "obsm/X_pca", "mod/protein/X", ..., also the names of the
            fields.
        obs: columns of the tables of observations, which are also fields: numbers as stored, categories as int32 codes
            of one table over all stores (see `categories`), -1 for missing values.
        dense: whether to return CSR rows as dense ones.
        genes: variables by name or number; only these columns of X and the layers are returned, dense, in this order.
            For several matrices, for example modalities, ``{matrix: variables}``. Stores with different variables need
            names. ``...`` = chosen later by the loader: until then rows can be counted, split and ordered, not read.
        rows: only these rows: bool[rows of all stores], or row numbers in any order; the order is ignored.
        dtype: dtype of the elements, one for all matrices or ``{matrix: dtype}``; None = as stored.
        cache: bytes of decoded chunks to keep in memory (0 = none), or a `ChunkCache` that several sources share.
        threads: threads that read and decode; None = the cores that this rank may use.

    Raises:
        ConfigError: there are no such matrices, columns, genes or rows, or the stores do not fit together.
        DataError: there is no AnnData store, or it is damaged.
        MissingExtraError: the package that reads it is not installed.
    """

    stateless = True  # the content depends on the share alone: loaders may read before an epoch is asked for

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
        self._named = find_rows(uris)
        # an order with windows soon returns to its chunks: keep each one at its first use
        self.reader = BoxReader(cache=cache, threads=threads, keep="all")
        self.datasets = tuple(open_dataset(place, self.reader) for one in self._named for place in one.places)
        self._edges, self._rows = stack_rows(self._named, self.datasets, rows)
        self._draws: RowDraws | None = None  # None = each row once
        self._fields = RowFields.of(self.datasets, choice)
        self._shelf = ScratchPools()

    def __repr__(self) -> str:
        specs = {name: self._fields.spec(name) for name in self._fields.names}
        fields = ", ".join(f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in specs.items())
        return f"RowSource({len(self)} rows of {len(self.datasets)} stores; {fields})"

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """Return the fields of one sample, for inspection: the input of a loader's `transform=`.

        NumPy arrays and numbers, CSR rows as SciPy matrices [1, columns], codes of `categories`. Use a loader for many
        rows: each call reads again.

        Raises:
            IndexError: there is no sample of this number (negative ones count from the end).
            ConfigError: rows are drawn, so a number means another row in each epoch.
            SampleError: it cannot be read.
        """
        self._refuse_draws("have no fixed samples: read the rows that they are drawn from")
        number = range(len(self))[operator.index(sample)]
        share = lone_share(np.array([number]), OrderState(seed=0, epoch=0, position=1, recipe=""))
        buffer = HostBuffer()
        for error in self.read(self.plan(share), buffer).errors:
            raise error
        widths = {name: spec.shape[0] if spec.ragged else None for name, spec in self.fields.items()}
        return {name: one_row(buffer.arrays(name), 0, width) for name, width in widths.items()}

    def obs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the table of observations for these rows, in their order; each call reads it.

        Args:
            columns: names; None = all. For a store without a column the values are missing; categories are merged.

        Raises:
            ConfigError: there is no such column, or rows are drawn.
            DataError: a column cannot be read.
        """
        self._refuse_draws("have no table: every epoch draws others; read the rows that they are drawn from")
        table: pd.DataFrame = read_tables(self.datasets, columns)
        return table if self._rows is None else table.iloc[self._rows]

    @cached_property
    def num_samples(self) -> int:
        """Number of rows, those of the subset if there is one; for drawn rows the draws of an epoch."""
        if self._draws is not None:
            return self._draws.options.num_samples
        return int(self._edges[-1]) if self._rows is None else len(self._rows)

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a row by name: matrices, then obs columns."""
        return MappingProxyType(self._fields.specs)

    @property
    def categories(self) -> Mapping[str, tuple[Any, ...]]:
        """For each categorical obs column the meaning of its codes, over all stores."""
        return MappingProxyType(self._fields.categories)

    @property
    def var_names(self) -> tuple[str, ...]:
        """Names of all variables; each access reads them."""
        return self.datasets[0].var_names()

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the selected rows, and how they are drawn: equal for a copy at another path.

        Fields, dense output, genes and dtypes are not part of it: one order serves any of them.
        """
        own = hash_rows(self.datasets, self._rows)
        return own if self._draws is None else f"{own}+{self._draws.fingerprint}"

    @property
    def draw_options(self) -> DrawOptions | None:
        """How rows are drawn; None = they are not drawn."""
        return None if self._draws is None else self._draws.options

    @property
    def stored_rows(self) -> NamedRows:
        """Its rows, for opening with others: ``RowSource([part_of_a, part_of_b])``; raises an error for drawn rows."""
        self._refuse_draws("cannot be put in a list: list the rows first, then draw from them")
        name = " + ".join(one.name for one in self._named)
        return NamedRows(name=name, places=tuple(dataset.origin for dataset in self.datasets), rows=self._rows)

    @cached_property
    def locality(self) -> RowLocality:
        """The longest average chunk of all matrices.

        Rows of a chunk are decoded together, so loaders read the steps of a window together.
        """
        stacks = tuple(field.stack for field in self._fields.open_matrices.values())
        num_stored, cache_bytes = int(self._edges[-1]), self.cache.capacity_bytes
        return RowLocality.of(stacks, num_stored, self._rows, self.draw_options, cache_bytes=cache_bytes)

    @property
    def cache(self) -> ChunkCache:
        """The cache of decoded chunks."""
        return self.reader.cache

    @property
    def stats(self) -> ReaderStats:
        """Counts of what was read so far, row pointers included."""
        return self.reader.stats

    def row_numbers(self, ids: IntArray, *, seed: int = 0, epoch: int = 0) -> IntArray:
        """Return the rows, over all stores, int64, of samples; without a subset or draws they are the same.

        Args:
            ids: int64, sample ids.
            seed: seed of the order, which with `epoch` decides drawn rows; otherwise ignored.
            epoch: the epoch.
        """
        chosen = ids if self._draws is None else self._draws.rows(ids, seed=seed, epoch=epoch)
        found: IntArray = chosen if self._rows is None else self._rows[chosen].astype(np.int64)
        return found

    def drawn(
        self,
        *,
        balance: str | None = None,
        weights: Any = None,
        mix: Sequence[float] | Mapping[str, float] | None = None,
        num_samples: int | None = None,
        together: int = 1,
    ) -> RowSource:
        """Return a source whose samples are draws of these rows, new ones in each epoch.

        The row of a draw depends on (seed, epoch, sample) alone. Draws by weight are made with replacement; a mix
        without weights uses all rows of a collection before it repeats one.

        Args:
            balance: an obs column (it need not be a field) with equally likely values; rows without one never appear.
            weights: float[num_samples], probability of each row, in any unit; instead of `balance`. Kept as float32.
            mix: for several collections, the share of each in every batch: numbers in their order, or ``{place:
                share}``; alone, or with `balance` or `weights`, which then apply inside each of them.
            num_samples: draws of an epoch; None = the number of rows.
            together: number of draws from one chunk of neighbouring rows: larger values need less decoding, but the
                draws are less independent inside a window of the order.

        Raises:
            ConfigError: none of them is given, or they are invalid; or rows are drawn already.
        """
        options = DrawOptions.of(
            balance=balance, weights=weights, mix=mix, num_samples=num_samples, num_rows=self.num_samples,
            together=together, names=[one.name for one in self._named], locality=self.locality,
        )  # fmt: skip
        return self._drawn(options)

    def bound_to(self, order: Any) -> RowSource:
        """Return the samples that an order counts: these rows, drawn if the order draws.

        Raises:
            ConfigError: the order was made for other rows, or for other draws.
        """
        return bound_rows(self, order, self._drawn)

    def subset(self, rows: Any) -> RowSource:
        """Return a source with some of these samples, with the same reader and columns.

        Args:
            rows: bool[num_samples], or sample numbers without duplicates; their order is ignored.

        Raises:
            ConfigError: there are no such samples, or they are drawn.
        """
        self._refuse_draws("have no subsets: take the subset first, then draw from it")
        return self._some(chosen_rows(rows, self.num_samples))

    def reading(self, **changes: Any) -> RowSource:
        """Return a source with the same rows and other fields, over the same stores, reader and cache.

        Args:
            **changes: some of `matrices`, `obs`, `dense`, `genes` and `dtype`, as for the class; others are unchanged;
                and `rows` to select some of these samples.

        Raises:
            ConfigError: there are no such fields or rows.
        """
        rows = changes.pop("rows", None)
        made = self._with(_fields=self._fields.changed(**changes))
        return made if rows is None else made.subset(rows)

    def select(self, fields: Sequence[str]) -> RowSource:
        """Return a source with some of the fields, with the same reader; its orders are the same.

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

        A hash of its group's name (or of its number) decides the part of a row. So rows that are added later do not
        move old ones, but part sizes match the request only on average. The sizes are logged, with a warning if they
        are far off; with few groups they mostly are: use `exact` or `groups` then.

        Args:
            by: the obs column whose equal values stay together, for example "donor" (it need not be a field); "row" =
                each row by its own number.
            fractions: sizes of the parts, ``{"train": 0.8, "val": 0.2}`` or ``(0.8, 0.2)``, with a sum of at most 1.
                With `groups`, of the remaining groups.
            groups: values of the column for a part, ``{"val": ["donor 3", "donor 7"]}``. `fractions` divides all groups
                that no list names; without it they are ``"train"``, or the part with ``...`` instead of a list.
            exact: count the groups, in the order of their hashes: each part has its fraction of their number, rounded,
                and groups that are added later may move others. Rows are sorted (temporarily 24 bytes each).
            stratify: an obs column; each part gets its exact fraction of the groups (of the rows with ``by="row"``) for
                each of its values. All rows of a group must have the same value.
            seed: another seed gives another split.

        Raises:
            ConfigError: there is no such column or group, a row has no value in it, a group lies in several strata, or
                a part is empty.
        """
        rule = SplitRule.of(fractions, groups, exact=exact or stratify is not None, seed=seed)
        self._refuse_draws("cannot be split: split first, then draw from a part")
        rows = range(self.num_samples) if self._rows is None else self._rows
        parts = split_rows(rows, rule, by=by, stratify=stratify, groups_of=self._groups)
        return rule.handed_out([self._some(part) for part in parts])

    def fused_with(self, batch_transform: Any) -> RowSource | None:
        """Return a source that applies a batch transform while rows are read; None = not supported.

        Supported for `Log1pCounts` of dense rows; integers then become float32, as they do in the transform.
        """
        fields = self._fields.fused_with(batch_transform)
        return None if fields is None else self._with(_fields=fields)

    def plan(self, share: Share) -> RowPlan:
        """Return the plan for reading `share`; reads row pointers and shard indexes.

        Raises:
            IndexError: the share contains a sample that the source does not have.
            DataError: the storage of row pointers fails; damage is reported when they are read.
        """
        ids, held = np.asarray(share.ids, dtype=np.int64), self.num_samples
        if len(ids) and not (ids.min() >= 0 and ids.max() < held):
            raise IndexError(f"a share asks for samples {ids.min()} to {ids.max()}, the source has {held}")
        rows = self.row_numbers(ids, seed=share.step.resume.seed, epoch=share.step.epoch)
        plans = {name: field.plan(rows, self.reader) for name, field in self._fields.matrices.items()}
        return RowPlan.of(share, rows, plans, self.reader)

    def hint(self, plan: RowPlan) -> None:
        """Ask the system to read the bytes of a plan soon (local files only, best effort)."""
        self.reader.hint(plan.boxes)

    def read(self, plan: RowPlan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer, which this reserves. Thread-safe; failed rows are reported, not raised."""
        fields, num_samples = self._fields, plan.share.num_samples
        into.reserve(fields.specs, num_samples, plan.capacity)
        arrays = {name: into.arrays(name) for name in fields.matrices}
        with self._shelf.memory(_PIECES_PER_FIELD * len(arrays)) as memory:
            done = read_fields(fields.matrices, plan.matrices, arrays, self.reader, memory)
        read = {name: (plan.matrices[name], done[name], field.stack.spec) for name, field in fields.matrices.items()}
        errors = row_errors(plan.rows, self.datasets, read, ids=plan.share.ids)
        for name, column in fields.columns.items():
            column.take(plan.rows, into.arrays(name)[0])
        if (change := fields.change) is not None:
            change.change(arrays[change.field][0], None if change.size is None else into.arrays(change.size)[0])
        return sum_reports(num_samples, errors, [report for one in done.values() for report in one.reports])

    def close(self) -> None:
        """Close threads and files, and free scratch memory. Reading again reopens them."""
        self._shelf.clear()
        self.reader.close()

    def _refuse_draws(self, said: str) -> None:
        """Raise an error if rows are drawn: `said` completes "drawn rows ..."."""
        if self._draws is not None:
            raise ConfigError(f"drawn rows {said}")

    def _groups(self, column: str) -> RowGroups:
        return read_groups(self.datasets, column, self._rows)

    def _drawn(self, options: DrawOptions) -> RowSource:
        self._refuse_draws("cannot be drawn from: draw once, from the rows themselves")
        edges = self._edges
        if self._rows is not None:  # same dtype: otherwise NumPy would copy all rows to a wider one
            edges = np.searchsorted(self._rows, edges.astype(self._rows.dtype)).astype(np.int64)
        return self._with(_draws=RowDraws.of(options, edges=edges, groups_of=self._groups))

    def _some(self, samples: NDArray) -> RowSource:
        return self._with(_rows=samples if self._rows is None else taken(self._rows, samples))

    def _with(self, **changes: Any) -> RowSource:
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **changes})
        known = ("fingerprint", "num_samples") if "_fields" in changes else ()
        for name in {"fingerprint", "locality", "num_samples"}.difference(known):
            vars(made).pop(name, None)
        return made
