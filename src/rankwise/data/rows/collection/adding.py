"""Adding inputs to a collection, so that it is whole at any moment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankwise._files import fsync_folder
from rankwise._version import __version__
from rankwise.data.contract import IntArray
from rankwise.data.rows.collection.buckets import Buckets
from rankwise.data.rows.collection.checksums import array_checksums
from rankwise.data.rows.collection.inputs import Input
from rankwise.data.rows.collection.joining import Joined
from rankwise.data.rows.collection.journal import Journal, locked, work_folder
from rankwise.data.rows.collection.manifest import commit, has_manifest, listed_names, on_disk, read_manifest
from rankwise.data.rows.collection.options import WriteOptions
from rankwise.data.rows.collection.passes import bucket_edges, spill_rows, write_dataset
from rankwise.data.rows.collection.progress import Progress
from rankwise.data.rows.collection.shuffling import cut_datasets, order_rows
from rankwise.errors import ConfigError

__all__ = ["add_rows", "plan_of", "settle"]

# Shares of the memory budget. A bucket is held three times (as it came, in order, with zeros), a block twice, and
# Zarr holds a shard decoded, encoded and joined.
_BUCKET_SHARE = 8
_BLOCK_SHARE = 12
_PAYS = 0.1  # of the rows outside the largest write


def add_rows(
    folder: Path, joined: Joined, options: WriteOptions, *, plan: str, seed: int | None, progress: bool | None = None
) -> None:
    """Add joined inputs to the collection in a folder, or continue to.

    Everything is prepared in a folder beside the collection; its datasets move in at the end, and one atomic
    replacement of the metadata makes them part of it. With `options.reshuffle` that replacement also drops the old
    ones.

    Args:
        folder: the collection.
        joined: the inputs.
        options: how.
        plan: identifies what was asked for; an unfinished writing of the same is continued.
        seed: of the shuffle; None = that of an unfinished writing, or a fresh one.
        progress: whether to show how far it is; None = on a terminal.

    Raises:
        ConfigError: there are no rows, or a parameter does not fit them.
        DataError: an input cannot be read, or another process writes this collection.
    """
    if not len(joined.obs):
        raise ConfigError("a collection wants inputs with rows, got none")
    edges = cut_datasets(len(joined.obs), options.dataset_rows(joined))
    with locked(work_folder(folder)):
        old = listed_names(folder)
        stale = Journal.stale(work_folder(folder), plan)
        _drop(folder, [] if stale is None else [name for name in stale["names"] if name not in old])
        fresh = {
            "spilled": 0,
            "sizes": {},
            "seed": int(np.random.default_rng().integers(2**63)) if seed is None else seed,
            "names": _next_names(folder, len(edges) - 1),
            "old": [] if options.reshuffle else old,
            "dropped": old if options.reshuffle else [],
            "bucket_rows": options.part_rows(joined, _BUCKET_SHARE),
            "entries": {},
        }
        journal = Journal(work_folder(folder), plan, fresh)
        with Progress(len(joined.obs), enabled=progress) as shown:
            _prepare(joined, options, journal, edges, shown)
        _publish(folder, joined, options, journal)
        _drop(folder, journal.facts["dropped"])


def settle(folder: Path, plan: str) -> bool:
    """Clean up after a writing that was killed when its datasets were part of the collection already.

    Returns:
        Whether it was the one that is asked for now, so that nothing is left to do.
    """
    facts = Journal.peek(work_folder(folder))
    if facts is None or not set(facts["names"]) <= set(read_manifest(folder)["datasets"]):
        return False
    with locked(work_folder(folder)):
        _drop(folder, facts["dropped"])
    return bool(facts["plan"] == plan)


def plan_of(inputs: Sequence[Input], options: WriteOptions, seed: int | None) -> str:
    """Return a hash of what is asked for: inputs as far as the file system tells, parameters, seed."""
    facts = {
        "rankwise": __version__,
        "inputs": [(held.label, held.stamp, held.num_rows, sorted(held.tables)) for held in inputs],
        "options": options.facts(),
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _next_names(folder: Path, count: int) -> list[str]:
    held = on_disk(folder)
    first = int(held[-1].removeprefix("dataset_")) + 1 if held else 0
    return [f"dataset_{number}" for number in range(first, first + count)]


def _prepare(joined: Joined, options: WriteOptions, journal: Journal, edges: IntArray, shown: Progress) -> None:
    """Both passes; whatever is done already is not done again."""
    work = journal.folder
    order = order_rows(
        edges,
        seed=journal.facts["seed"],
        shuffle=options.shuffle,
        run=options.shuffle_chunk_size,
        obs=joined.obs,
        groupby=options.groupby,
    )
    cuts = bucket_edges(edges, journal.facts["bucket_rows"])
    buckets = Buckets(work / "buckets", cuts, joined.fields)
    block_rows = options.part_rows(joined, _BLOCK_SHARE)
    spill_rows(joined, order, buckets, journal, block_rows=block_rows, shown=lambda rows: shown.step(spilled=rows))
    for number, name in enumerate(journal.facts["names"]):
        rows = order[edges[number] : edges[number + 1]]
        if name in journal.facts["entries"]:
            shown.step(written=len(rows))
            continue
        first, last = np.searchsorted(cuts, edges[number : number + 2]).tolist()
        numbers = range(first, last)
        told = partial(_told, shown)
        write_dataset(work / name, joined, rows, buckets, numbers, form=options.form, shown=told)
        entry = {"rows": len(rows), "arrays": array_checksums(work / name)}
        journal.keep(entries=journal.facts["entries"] | {name: entry})
        buckets.drop(numbers)


def _told(shown: Progress, rows: float) -> None:
    shown.step(written=rows)


def _publish(folder: Path, joined: Joined, options: WriteOptions, journal: Journal) -> None:
    """Move the datasets in and replace the metadata; repeated after a kill it does what is left."""
    if not has_manifest(folder):  # readers would take folders that have moved in for members
        held = _known(folder, {}, [*journal.facts["old"], *journal.facts["dropped"]])
        commit(folder, {**read_manifest(folder), "datasets": held})
    os.sync()  # what the metadata will name is on the disk before they are
    for name in journal.facts["names"]:
        if (journal.folder / name).exists():
            (journal.folder / name).rename(folder / name)
    fsync_folder(folder)
    manifest = read_manifest(folder)
    old = {} if options.reshuffle else _known(folder, manifest["datasets"], journal.facts["old"])
    write = {
        "rankwise": __version__,
        "seed": journal.facts["seed"],
        "parameters": options.facts(),
        "sources": [{"src_path": held.label, "rows": held.num_rows} for held in joined.inputs],
        "datasets": journal.facts["names"],
    }
    writes = [*manifest["writes"], write]
    commit(folder, {**manifest, "datasets": old | journal.facts["entries"], "writes": writes})
    _advise(folder, old, journal.facts["entries"])


def _known(folder: Path, entries: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Entries of the datasets that were there; without checksums for those that another writer has made."""
    return {name: entries.get(name) or {"rows": None, "arrays": array_checksums(folder / name)} for name in names}


def _advise(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    sums = [sum(entry["rows"] or 0 for entry in entries.values()) for entries in (old, new)]
    if old and min(sums) >= _PAYS * sum(sums):
        warnings.warn(
            f"{folder}: {sums[1]} new rows are shuffled among themselves, beside {sums[0]} that were there. An order "
            "over the whole collection mixes them at load time; loaders of single chunk ranges gain from a rewrite: "
            "add_adatas([], reshuffle=True)",
            stacklevel=4,
        )


def _drop(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
