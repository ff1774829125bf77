"""`ChosenRows`: the rows that are samples, found by what the user names, and their locality in chunks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, Locality, NDArray, Order
from rankwise.data.order import SplitRule
from rankwise.data.order.layout import WINDOW_BYTES
from rankwise.data.rows.datasets.in_memory import MemoryDataset, is_anndata, is_h5ad
from rankwise.data.rows.datasets.on_disk import AnyDataset
from rankwise.data.rows.datasets.search import find_datasets
from rankwise.data.rows.draws.row_draws import RowDraws
from rankwise.data.rows.draws.weights import LEAST_LANES, MOST_LANES, DrawOptions
from rankwise.data.rows.matrices.matrix import MemoryMatrix, StoredMatrix
from rankwise.data.rows.matrices.stacks import MatrixStack
from rankwise.data.rows.obs import RowGroups, num_stretches, places_where, read_groups, row_dtype, taken
from rankwise.data.rows.subsets import chosen_rows, log_split, part_of_groups, part_of_rows
from rankwise.errors import ConfigError, DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedRows:
    """One named input: a store, a collection, or a source with some rows."""

    name: str
    places: tuple[str | MemoryDataset, ...]  # its AnnData stores; AnnData in memory and h5ad files as opened datasets
    rows: NDArray | None = None  # its rows, sorted; None = all


def find_rows(uris: Any) -> tuple[NamedRows, ...]:
    """Return the content of URIs, collections and sources, in their order.

    Args:
        uris: a folder or URL of an AnnData store or of a collection, an h5ad file, an AnnData, a `DatasetCollection`,
            a `RowSource`, or a list.

    Raises:
        ConfigError: the list is empty or has other objects, or rows of a source are drawn.
        DataError: there is nothing at a URI.
    """
    named = list(uris) if isinstance(uris, (list, tuple)) else [uris]
    if not named:
        raise ConfigError("rows need at least one AnnData store or collection, got none")
    return tuple(_named(uri) for uri in named)


def _named(uri: Any) -> NamedRows:
    if is_anndata(uri) or is_h5ad(uri):
        held = MemoryDataset(uri)
        return NamedRows(name=held.place, places=(held,))
    if isinstance(uri, (str, os.PathLike)):
        return NamedRows(name=os.fspath(uri), places=find_datasets(uri))
    stored = getattr(uri, "stored_rows", None)  # a RowSource, or a DatasetCollection
    if isinstance(stored, NamedRows):
        return stored
    raise ConfigError(
        "rows are read from AnnData stores, collections and h5ad files, by path or as a DatasetCollection, and from "
        f"AnnData in memory; got {type(uri).__name__}: pass a table or array as anndata.AnnData(...), write MuData "
        "to a collection (rankwise rows write --modality NAME), and pass a torch Dataset to "
        "rankwise.data.samples.DatasetLoader(dataset, order=...)"
    )


def first_matrix(dataset: AnyDataset) -> tuple[str | None, StoredMatrix | MemoryMatrix | None]:
    """Return the matrix that represents a dataset, with its name: X, or the first by name that has readable rows."""
    found = _opened(dataset, "X")
    if found is not None:
        return "X", found
    opened = ((name, _opened(dataset, name)) for name in sorted(dataset.matrices))
    return next(((name, matrix) for name, matrix in opened if matrix is not None), (None, None))


def _opened(dataset: AnyDataset, name: str) -> StoredMatrix | MemoryMatrix | None:
    try:
        return dataset.matrix(name)
    except (ConfigError, DataError):  # there is none, or it is stored by columns
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenRows:
    """Some or all rows of concatenated datasets, as stored or drawn."""

    datasets: tuple[AnyDataset, ...]
    named: tuple[NamedRows, ...]  # what the user named to get them
    edges: IntArray  # int64[P + 1], first row of each of `named`, over all datasets, and the end
    rows: NDArray | None = None  # the selected rows, sorted; None = all
    draws: RowDraws | None = None  # how they are drawn; None = each row once

    @classmethod
    def of(cls, named: Sequence[NamedRows], datasets: Sequence[AnyDataset], rows: Any) -> ChosenRows:
        """Return the rows that were named, in their opened datasets, or some of these rows; see `RowSource`."""
        sizes = [dataset.num_rows for dataset in datasets]
        ends = np.cumsum([0, *(len(one.places) for one in named)])
        before = np.cumsum([0, *sizes], dtype=np.int64)
        edges: IntArray = before[ends]
        if edges[-1] == 0:
            raise ConfigError(f"{datasets[0].place} has no rows")
        made = cls(
            datasets=tuple(datasets), named=tuple(named), edges=edges, rows=_stacked(named, np.diff(edges).tolist())
        )
        return made if rows is None else made.subset(rows)

    @property
    def num_stored(self) -> int:
        """Rows of all datasets."""
        return int(self.edges[-1])

    @property
    def num_rows(self) -> int:
        """Number of selected rows."""
        return self.num_stored if self.rows is None else len(self.rows)

    @cached_property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return self.num_rows if self.draws is None else self.draws.options.num_samples

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the datasets' rows and of the selection; for drawn rows followed by "+" and the hash of the draws.

        Of each dataset it covers the number of rows and the metadata of its `first_matrix`: equal for copies elsewhere.
        Other parts of a store may change without changing the order of its rows.
        """
        facts = []
        for dataset in self.datasets:
            name, matrix = first_matrix(dataset)
            facts.append((dataset.num_rows, name, None if matrix is None else matrix.fingerprint))
        whole = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        chosen = None if self.rows is None else hashlib.sha256(self.rows.data).hexdigest()
        own = hashlib.sha256(repr((whole, chosen)).encode()).hexdigest()[:16]
        return own if self.draws is None else f"{own}+{self.draws.fingerprint}"

    def numbers(self, ids: IntArray, *, seed: int = 0, epoch: int = 0) -> IntArray:
        """Return the rows, over all datasets, of samples of an epoch, int64[B]."""
        chosen = ids if self.draws is None else self.draws.rows(ids, seed=seed, epoch=epoch)
        found: IntArray = chosen if self.rows is None else self.rows[chosen].astype(np.int64)
        return found

    def subset(self, rows: Any) -> ChosenRows:
        """Return some of these rows; see `RowSource.subset`."""
        self.refuse_draws("have no subsets: take the subset first, then draw from it")
        return self._of(chosen_rows(rows, self.num_rows))

    def _of(self, chosen: NDArray) -> ChosenRows:
        return replace(self, rows=chosen if self.rows is None else taken(self.rows, chosen))

    def split(self, by: str, rule: SplitRule, stratify: str | None) -> list[ChosenRows]:
        """Return parts of these rows, in the order of the rule's names; see `RowSource.split`."""
        self.refuse_draws("cannot be split: split first, then draw from a part")
        strata = None if stratify is None else self.groups(stratify)
        if by == "row":
            part = part_of_rows(range(self.num_stored) if self.rows is None else self.rows, rule, strata=strata)
        else:
            part = part_of_groups(self.groups(by), rule, by=by, strata=strata)
        members = [places_where(part, number) for number in range(len(rule.names))]
        log_split([len(member) for member in members], rule, self.num_rows, by)
        return [self._of(member) for member in members]

    def groups(self, column: str) -> RowGroups:
        """Return the groups of these rows by an obs column."""
        found = read_groups(self.datasets, column)
        return found if self.rows is None else found.of(self.rows)

    def drawn(self, options: DrawOptions) -> ChosenRows:
        """Return draws of these rows."""
        self.refuse_draws("cannot be drawn from: draw once, from the rows themselves")
        edges = self.edges
        if self.rows is not None:  # same dtype: otherwise NumPy would copy all rows to a wider one
            edges = np.searchsorted(self.rows, edges.astype(self.rows.dtype)).astype(np.int64)
        return replace(self, draws=RowDraws.of(options, num_rows=self.num_rows, edges=edges, groups_of=self.groups))

    def refuse_draws(self, said: str) -> None:
        """Raise an error if rows are drawn: `said` completes "drawn rows ..."."""
        if self.draws is not None:
            raise ConfigError(f"drawn rows {said}")


def _stacked(found: Sequence[NamedRows], sizes: Sequence[int]) -> NDArray | None:
    """Return the selected rows over all concatenated stores, sorted; None = all."""
    if all(one.rows is None for one in found):
        return None
    counts = [size if one.rows is None else len(one.rows) for one, size in zip(found, sizes, strict=True)]
    rows: NDArray = np.empty(sum(counts), dtype=row_dtype(sum(sizes)))
    first = at = 0
    for one, size, count in zip(found, sizes, counts, strict=True):
        rows[at : at + count] = np.arange(size, dtype=rows.dtype) if one.rows is None else one.rows
        rows[at : at + count] += first
        first, at = first + size, at + count
    return rows


_MEND = (
    "use the same rows in both: Order(collection, batch_size=...) and OrderedLoader(collection, order=...), or a part "
    "of a split in both places"
)


def bound_rows(rows: ChosenRows, order: Order) -> ChosenRows:
    """Return the samples that an order counts: these rows, drawn if the order draws.

    Raises:
        ConfigError: the order was made for other rows, or for other draws.
    """
    wanted = order.fingerprint
    if wanted is None or wanted == rows.fingerprint:
        return rows
    wanted_rows, _, wanted_draws = str(wanted).partition("+")
    own_rows, _, own_draws = rows.fingerprint.partition("+")
    if wanted_rows != own_rows:
        raise ConfigError(
            f"the order is for other rows (fingerprint {wanted_rows}, {order.samples} samples an epoch) than the "
            f"loader's ({own_rows}, {rows.num_samples} samples): {_MEND}"
        )
    draw = order.draw
    if own_draws:
        said = "draws differently" if wanted_draws else "does not draw"
        raise ConfigError(
            f"the loader's rows are drawn, but the order {said}: make the order from the drawn rows, or pass balance=, "
            "weights=, mix=, num_samples= and together= to Order(...) alone"
        )
    if draw is None:
        raise ConfigError(f"the order draws rows in a way that it does not record (fingerprint {wanted}): {_MEND}")
    drawn = rows.drawn(draw)
    if drawn.fingerprint != wanted:
        raise ConfigError(
            f"drawn by the order, these rows differ from the order's rows ({drawn.fingerprint}, not "
            f"{wanted}); the column {draw.balance!r} may have changed: create the order again"
        )
    return drawn


@dataclass(frozen=True, kw_only=True)
class RowLocality(Locality):
    """Locality of rows in the chunks of their matrices."""

    chunk_bytes: int  # average decoded bytes of the chunks that hold `chunk_samples` neighbouring rows
    mix_lanes: int | None  # lanes of a mix of collections; None = the order chooses

    @classmethod
    def of(cls, chosen: ChosenRows, stacks: Sequence[MatrixStack], *, cache_bytes: int) -> RowLocality:
        """Return the locality of rows, as stored or drawn, over all matrices; rows of a chunk are read together."""
        longest = min(chosen.num_stored, max((stack.chunk_rows for stack in stacks), default=1))
        options, chunk_samples = None if chosen.draws is None else chosen.draws.options, longest
        mix = None if options is None else options.mix
        window_samples = None  # of the windows of all collections of a mix together
        if options is not None and mix is not None:
            window_samples = len(mix) * options.lanes * options.window * options.block_rows
        if options is not None:
            chunk_samples = options.together if mix is None else 1  # a mix already has an order
        elif chosen.rows is not None and longest > 1:  # average number of a subset's rows in one chunk
            chunk_samples = max(1, round(len(chosen.rows) / num_stretches(chosen.rows, longest)))
        return cls(
            chunk_samples=chunk_samples,
            chunk_bytes=max(1, round(longest * sum(stack.row_bytes for stack in stacks))),
            cache_bytes=cache_bytes,
            group_steps=True,
            order_kind=None if mix is None else "sequential",
            window_samples=window_samples,
            mix_lanes=None if options is None or mix is None else options.lanes,
        )

    def layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return lanes for an order, so that its windows decode to at most 128 MiB; the order chooses the window.

        For a mix, both come from the mix.
        """
        if self.mix_lanes is not None:
            return self.mix_lanes, 1
        lanes = min(WINDOW_BYTES // self.chunk_bytes, batch_size)
        return int(np.clip(lanes, LEAST_LANES, MOST_LANES)), None
