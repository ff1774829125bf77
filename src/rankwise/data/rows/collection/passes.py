"""The two passes of an external shuffle: rows into buckets, buckets into datasets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.buckets import Buckets
from rankwise.data.rows.collection.joining import Field, Joined
from rankwise.data.rows.collection.journal import Journal
from rankwise.data.rows.datasets import load_anndata
from rankwise.data.rows.writing import DenseWriter, MatrixFormat, SparseWriter, quiet_anndata
from rankwise.data.store import load_zarr

__all__ = ["Shown", "bucket_edges", "spill_rows", "write_dataset"]

Shown = Callable[[float], None]


def bucket_edges(edges: IntArray, rows: int) -> IntArray:
    """Cut datasets into buckets of at most `rows` rows: int64[buckets + 1]."""
    parts = [
        start + np.arange(-(-(stop - start) // rows), dtype=np.int64) * rows
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return np.concatenate([*parts, edges[-1:]])


def spill_rows(
    joined: Joined, order: IntArray, buckets: Buckets, journal: Journal, *, block_rows: int, shown: Shown
) -> None:
    """First pass: read all inputs once, from beginning to end, and put every row into the bucket of its place."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=np.int64)
    done = int(journal.facts["spilled"])
    if done < len(order):  # later, files of finished datasets are gone
        buckets.cut(journal.facts["sizes"])
    shown(done)
    first = 0
    for number, held in enumerate(joined.inputs):
        for start in range(0, held.num_rows, block_rows):
            stop = min(start + block_rows, held.num_rows)
            if first + stop <= done:
                continue
            blocks = [joined.block(number, field, start, stop) for field in joined.fields]
            buckets.add(places[first + start : first + stop], blocks)
            journal.keep(spilled=first + stop, sizes=buckets.sizes())
            shown(stop - start)
        first += held.num_rows


def write_dataset(
    place: Path,
    joined: Joined,
    rows: IntArray,
    buckets: Buckets,
    numbers: range,
    *,
    form: MatrixFormat,
    shown: Shown,
) -> None:
    """Second pass: write one dataset out of its buckets.

    Args:
        place: folder of the dataset; what is there is left from a killed writing and goes.
        joined: the inputs.
        rows: int64[n], input rows of the dataset.
        buckets: rows on their way.
        numbers: the buckets of this dataset.
        form: how matrices are stored.
        shown: told how many rows more are written; a row whose matrices are half written counts half.
    """
    if place.exists():
        shutil.rmtree(place)
    group = load_zarr().open_group(str(place), mode="w", zarr_format=3)
    anndata = load_anndata()
    with quiet_anndata():
        tables = anndata.AnnData(obs=joined.obs.iloc[rows].copy(), var=joined.var)
        settings = anndata.settings.override(remove_unused_categories=False)
        with settings:
            anndata.experimental.write_dispatched(group, "/", tables, callback=_plain)
        if "X" in group:
            del group["X"]
        for which, field in enumerate(joined.fields):
            parent, _, name = field.name.rpartition("/")
            part = _Part(group[parent] if parent else group, name, field, which, len(rows), form)
            for count in _write_field(part, buckets, numbers):
                shown(count / len(joined.fields))


def _plain(write: Any, store: Any, name: str, elem: Any, dataset_kwargs: Any = None, **facts: Any) -> None:
    del facts
    write(store, name, elem, dataset_kwargs=dict(dataset_kwargs or {}))


class _Part(NamedTuple):
    """One matrix of a dataset."""

    group: Any
    name: str
    field: Field
    which: int
    num_rows: int
    form: MatrixFormat


def _write_field(part: _Part, buckets: Buckets, numbers: range) -> Iterator[int]:
    """Write a matrix bucket by bucket; yields the rows of each."""
    group, name, field, which, num_rows, form = part
    if not field.sparse:
        dense = DenseWriter(group, name, num_rows=num_rows, row_shape=field.row_shape, dtype=field.dtype, form=form)
        for number in numbers:
            values = buckets.rows(number, which)
            dense.append(values)
            yield len(values)
        dense.close()
        return
    lengths = np.concatenate([buckets.lengths(number, which) for number in numbers])
    sparse = SparseWriter(group, name, lengths=lengths, num_cols=field.row_shape[0], dtype=field.dtype, form=form)
    for number in numbers:
        rows = buckets.rows(number, which)
        sparse.append_rows(rows.data, rows.indices, rows.shape[0])
        yield rows.shape[0]
    sparse.close()
