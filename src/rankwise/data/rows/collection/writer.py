"""Adds inputs to a collection, on all ranks together; the collection stays complete at any moment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise._files import fsync_folder
from rankwise._version import __version__
from rankwise.data.rows.collection.buckets import cut_datasets
from rankwise.data.rows.collection.contents import dataset_tasks, skeleton_tasks
from rankwise.data.rows.collection.inputs.inputs import Input, open_input
from rankwise.data.rows.collection.inputs.tables import spread_collections
from rankwise.data.rows.collection.job import Job, name_tasks, spill_tasks, turn_tasks
from rankwise.data.rows.collection.journal import (
    JOURNAL,
    commit,
    explain_disk_errors,
    has_manifest,
    listed_names,
    on_disk,
    put_json,
    read_journal,
    read_manifest,
    resume,
    this_boot,
    work_folder,
)
from rankwise.data.rows.collection.options import (
    WriteOptions,
    check_fit,
    check_kept,
    check_once,
    listed,
    log_variables,
    seed_of,
    warn_of_repeats,
    warn_of_room,
)
from rankwise.data.rows.collection.progress import PROGRESS, Progress
from rankwise.data.rows.collection.ranks import Ranks, Task, joined_ranks, run_tasks
from rankwise.data.rows.collection.union import SOURCE, Joined, join_inputs
from rankwise.data.rows.datasets.on_disk import array_checksums
from rankwise.data.rows.datasets.search import load_anndata
from rankwise.data.rows.output.sharded import MatrixFormat, quiet_anndata
from rankwise.data.rows.output.shards import codecs_of
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rankwise._process.place import Place
    from rankwise.world.value import World

__all__ = ["MatrixFormat", "WriteOptions", "codecs_of", "listed", "write"]


def write(
    path: Path,
    sources: list[Any],
    options: WriteOptions,
    *,
    world: World | Place | None,
    rng: Any,
    progress: bool | None,
) -> None:
    """Write datasets from inputs, see `DatasetCollection.add_adatas`."""
    seed = seed_of(rng)
    wanted: dict[str, Any] = {name: getattr(options, name) for name in ("load_adata", "matrices", "modalities")}
    with (
        joined_ranks(world) as ranks,
        explain_disk_errors(path),
        ranks.together(work_folder(path)),
        contextlib.ExitStack() as stack,
    ):
        if not ranks.is_main:  # the main rank gives the same warnings
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        inputs: list[Input] = []
        passed: list[tuple[Any, str]] = []
        plain = options.load_adata is not None or options.modalities
        for number, (source, is_dataset) in enumerate(spread_collections(sources, path)):
            inputs.append(open_input(source, number, member=is_dataset and not plain, **wanted))
            stack.callback(inputs[-1].close)
            passed.append((source, inputs[-1].label))
        check_once(passed)
        _write_inputs(path, inputs, options, ranks, seed=seed, progress=progress)


def _joined_inputs(path: Path, inputs: list[Input], options: WriteOptions) -> Joined:
    """Return all rows to write: those of the inputs, after those of the collection if it is rewritten."""
    warn_of_repeats(inputs, read_manifest(path)["writes"], path)
    places = [str(path / name) for name in listed_names(path)]
    vars_, sparse = None, set[str]()
    if places:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about oddities of an existing dataset
            member = open_input(places[0], 0, member=True)
        vars_ = member.vars
        check_fit(inputs, member, path)
        sparse = {name for name, table in member.tables.items() if table.sparse}
        if options.reshuffle:
            members = [
                open_input(place, number, matrices=options.matrices, member=True) for number, place in enumerate(places)
            ]
            check_kept(members, inputs, path)
            inputs = [*members, *inputs]
    chosen: dict[str, Any] = {name: getattr(options, name) for name in ("var_subset", "merge", "join")}
    return join_inputs(inputs, vars_=vars_, **chosen, sparse=sparse)


# Shares of the memory budget. A bucket is held three times (as read, sorted, with zeros added), a block twice.
_BUCKET_SHARE = 8
_BLOCK_SHARE = 12
_PAYS = 0.1  # of all rows: advise a rewrite only if old and new rows each have this share


def _known_tasks(job: Job) -> list[Task]:
    """Read datasets that another program made, to compute checksums; all ranks share this, as they may be large."""
    held = job.ranks.from_main(lambda: read_manifest(job.folder)["datasets"])
    names = [name for name in (*job.facts["old"], *job.facts["dropped"]) if name not in held]
    return [Task(name=f"known-{name}", run=partial(array_checksums, job.folder / name)) for name in names]


def _write_inputs(
    folder: Path, inputs: list[Input], options: WriteOptions, ranks: Ranks, *, seed: int | None, progress: bool | None
) -> None:
    """Add inputs to the collection in a folder, or resume adding them.

    All files are prepared in a folder beside the collection. At the end the datasets are moved in, and one atomic
    replacement of the metadata makes them part of the collection. With `options.reshuffle` it also drops the old
    datasets. Every rank calls this; the main rank holds the lock. An unfinished write of the same request is resumed;
    without a `seed` it keeps its own.

    Raises:
        ConfigError: there are no rows, or a parameter does not fit them.
        DataError: an input cannot be read.
        WorldError: another rank failed or has ended.
    """
    if not inputs and not options.reshuffle:
        raise ConfigError("add_adatas needs at least one input, got none")
    request = _request(inputs, options)
    if ranks.from_main(lambda: request) != request:
        raise ConfigError(
            f"rank {ranks.rank} was called with other inputs or parameters for {folder} than rank 0: "
            "every rank must make the same call"
        )
    plan = hashlib.sha256(f"{request} {seed}".encode()).hexdigest()
    if ranks.from_main(lambda: _settle(folder, plan)):
        return
    joined = _joined_inputs(folder, inputs, options)
    if ranks.is_main:
        log_variables(joined)
    if not joined.num_rows:
        raise ConfigError("a collection needs inputs with rows, got none")
    options.check_columns(joined)
    _check_variables(joined)
    facts = ranks.from_main(lambda: _facts(folder, joined, options, plan=plan, seed=seed))
    job = Job(folder, joined, options, facts, ranks)
    if ranks.is_main:
        warn_of_room(job.work, joined.row_bytes * joined.num_rows)
    told = job.work / PROGRESS if ranks.is_main and ranks.size > 1 else None
    with Progress(joined.num_rows, enabled=progress if ranks.is_main else False, told=told) as shown:
        steps = {
            "turned": turn_tasks,
            "spilled": spill_tasks,
            "named": name_tasks,
            "begun": skeleton_tasks,
            "written": dataset_tasks,
            "known": _known_tasks,
        }
        for bar, tasks_of in steps.items():  # tasks that are done are skipped
            run_tasks(tasks_of(job), job.marks, ranks, shown=partial(shown.show, bar))
        os.sync()  # all data must be on disk before the metadata name them, on every machine that wrote
        ranks.gather(None)
        shown.finish()  # shares of rows may add up to slightly less
    if ranks.is_main:
        _publish(job)
        _drop(folder, facts["dropped"])


def _check_variables(joined: Joined) -> None:
    """Refuse tables of variables that anndata cannot store, before any row is moved."""
    group, write = load_zarr().open_group(load_zarr().storage.MemoryStore(), mode="w"), load_anndata().io.write_elem
    with quiet_anndata():
        for var in joined.vars.values():
            for column in var.columns:
                try:
                    write(group, "var", var[[column]])
                except Exception as error:  # any error of anndata
                    raise DataError(
                        f"column {column!r} of the variables holds {var[column].dtype}, which cannot be stored: "
                        f"{error}. Convert it to text, numbers or categories, or drop it, with load_adata="
                    ) from error


def _settle(folder: Path, plan: str) -> bool:
    """Clean up after a write that was killed when its datasets were already part of the collection.

    Returns:
        Whether it has the given plan, so that nothing is left to do.
    """
    facts = read_journal(work_folder(folder))
    if facts is None or not set(facts["names"]) <= set(read_manifest(folder)["datasets"]):
        return False
    _drop(folder, facts["dropped"])
    (work_folder(folder) / JOURNAL).unlink()
    return bool(facts["plan"] == plan)


def _request(inputs: Sequence[Input], options: WriteOptions) -> str:
    """Return a hash of the stamps of the inputs, and the parameters."""
    facts = {
        "rankwise": __version__,
        "inputs": [(held.label, held.stamp(), held.num_rows, sorted(held.tables)) for held in inputs],
        "options": options.facts(),
        "memory_budget": options.memory_budget,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _facts(folder: Path, joined: Joined, options: WriteOptions, *, plan: str, seed: int | None) -> dict[str, Any]:
    """Return the decisions of the write, from its journal if it is resumed."""
    facts = resume(folder, plan)
    if facts is not None:
        return facts
    old, there = listed_names(folder), on_disk(folder)
    count = len(cut_datasets(joined.num_rows, options.dataset_rows(joined))) - 1
    first = int(there[-1].removeprefix("dataset_")) + 1 if there else 0
    facts = {
        "plan": plan,
        "boot": this_boot(),
        "seed": int(np.random.default_rng().integers(2**63)) if seed is None else seed,
        "names": [f"dataset_{number}" for number in range(first, first + count)],
        "old": [] if options.reshuffle else old,
        "dropped": old if options.reshuffle else [],
        "bucket_rows": options.part_rows(joined, _BUCKET_SHARE),
        "block_rows": options.part_rows(joined, _BLOCK_SHARE),
    }
    put_json(work_folder(folder) / JOURNAL, facts)
    return facts


def _publish(job: Job) -> None:
    """Move the datasets in and replace the metadata; after a kill, call it again to finish."""
    folder, facts = job.folder, job.facts
    if not has_manifest(folder):  # without a manifest, readers would take moved folders for datasets
        held = _known(job, {}, [*facts["old"], *facts["dropped"]])
        commit(folder, {**read_manifest(folder), "datasets": held})
    for name in job.names:
        if (job.work / name).exists():
            (job.work / name).rename(folder / name)
    fsync_folder(folder)
    manifest, entries = read_manifest(folder), {name: job.marks.notes[f"end-{name}"] for name in job.names}
    old = {} if job.options.reshuffle else _known(job, manifest["datasets"], facts["old"])
    write = {
        "rankwise": __version__,
        "seed": facts["seed"],
        "parameters": job.options.facts(),
        # rows that were in a collection before have its labels, which may be those of other inputs here
        "sources": [
            {"src_path": held.label, "rows": held.num_rows, **({"kept_origin": True} if SOURCE in held.columns else {})}
            for held in job.joined.inputs
        ],
        "datasets": list(job.names),
    }
    writes = [*manifest["writes"], write]
    commit(folder, {**manifest, "datasets": old | entries, "writes": writes})
    _advise(folder, old, entries)


def _known(job: Job, entries: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the entries of the datasets that existed before."""
    return {name: entries.get(name) or {"rows": None, "arrays": job.marks.notes[f"known-{name}"]} for name in names}


def _advise(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    sums = [sum(entry["rows"] or 0 for entry in entries.values()) for entries in (old, new)]
    if old and min(sums) >= _PAYS * sum(sums):
        warnings.warn(
            f"{folder}: {sums[1]} new rows are shuffled among themselves, not with the {sums[0]} old ones. An order "
            "over the whole collection mixes them at load time; for loaders of single chunk ranges rewrite: "
            "add_adatas([], reshuffle=True)",
            stacklevel=6,
        )


def _drop(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
