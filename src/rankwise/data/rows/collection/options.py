"""Checked options of a write, whether its inputs fit the collection, and the disk space that it needs."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import whole_number
from rankwise.data.rows.collection.inputs.inputs import Input
from rankwise.data.rows.collection.union import Joined, few_names
from rankwise.data.rows.datasets.search import split_modality
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


_LOG = logging.getLogger("rankwise.rows")

_MADE_HERE = ("src_path", "src_row")


def check_fit(inputs: Sequence[Input], member: Input, folder: Path) -> None:
    """Refuse inputs whose rows cannot be read together with a dataset of a collection; warn about what they lack."""
    for held in inputs:
        for name in sorted(set(held.tables) & set(member.tables)):
            new, old = held.tables[name], member.tables[name]
            free = split_modality(name)[1].startswith("obsm/")
            shapes = [table.shape[1:] if free else len(table.shape) for table in (new, old)]
            if (old.sparse or not new.sparse) and shapes[0] == shapes[1]:
                continue  # dense rows become CSR if any matrix of the name is sparse
            words = ["sparse" if table.sparse else "dense" for table in (new, old)]
            raise ConfigError(
                f"{name} of {held.label} is {words[0]} {list(new.shape)}, in the collection {folder} it is {words[1]} "
                f"{list(old.shape)}: rows of both cannot be read together. Convert it with load_adata=, or choose "
                "other matrices="
            )
        for modality in sorted(set(held.vars) & set(member.vars)):
            mine, var = held.vars[modality], member.vars[modality]
            if len(mine) and len(var) and not mine.index.isin(var.index).any():
                raise ConfigError(
                    f"{held.label} has none of the variables of the collection {folder}: it has "
                    f"{few_names(list(mine.index))}, the collection has {few_names(list(var.index))}. Rename them with "
                    "load_adata=, or write another collection"
                )
    _warn_of_variables(inputs, member.vars)
    _warn_of_names("matrices", [set(held.tables) for held in inputs], set(member.tables), folder)
    known = {name for name in member.columns if name not in _MADE_HERE}
    _warn_of_names("columns of obs", [set(held.columns) - set(_MADE_HERE) for held in inputs], known, folder)


def check_kept(members: Sequence[Input], inputs: Sequence[Input], folder: Path) -> None:
    """Refuse a rewrite that would lose matrices: it writes only matrices that all inputs have."""
    held = [*members, *inputs]
    names = dict.fromkeys(name for member in members for name in member.tables)
    lost = [name for name in names if any(name not in one.tables for one in held)]
    if not lost:
        return
    lacking = few_names([one.label for one in held if any(name not in one.tables for name in lost)], letters=1000)
    kept = [name for name in names if name not in lost]
    raise ConfigError(
        f"reshuffle=True rewrites {folder} and would delete {few_names(lost)} from it, because not all rows have it: "
        f"{lacking} lacks it. Add the new rows without reshuffle=True (--reshuffle), or choose what to keep with "
        f"matrices={kept} (--layer, --obsm)"
    )


def check_once(inputs: Sequence[tuple[Any, str]]) -> None:
    """Refuse an input, given with its label, that is passed twice in one call: its rows would appear twice."""
    seen: dict[Any, str] = {}
    for source, label in inputs:
        place = _place_of(source)
        if place in seen:
            same = "" if seen[place] == label else f", as {seen[place]} and as {label}"
            raise ConfigError(
                f"{label} is among the inputs twice{same}: its rows would occur twice. Pass it once; to repeat it "
                "on purpose, add it in a second call"
            )
        seen[place] = label


def _place_of(source: Any) -> Any:
    """Return a value that is equal for two references to the same input."""
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source).removeprefix("file://")
        return text.rstrip("/") if "://" in text else str(Path(text).resolve())
    if hasattr(source, "store_path"):
        return _place_of(str(source.store_path))
    if hasattr(source, "file") and hasattr(source, "name"):  # an HDF5 group
        return f"{Path(source.file.filename).resolve()}:{source.name}"
    return id(source)


def log_variables(joined: Joined) -> None:
    """If inputs have different variables, log how many they share, and what is filled or left out."""
    for modality, var in joined.vars.items():
        pairs = zip(joined.inputs, joined.gathers[modality], strict=True)
        differ = [(held.label, gather) for held, gather in pairs if gather is not None]
        found = [np.unique(gather[gather >= 0]) for _, gather in differ]
        lacking = {label: len(var) - len(mine) for (label, _), mine in zip(differ, found, strict=True)}
        most = max(lacking, key=lambda label: lacking[label], default="")
        left = max((int((gather < 0).sum()) for _, gather in differ), default=0)
        shared = len(reduce(np.intersect1d, found, np.arange(len(var))))
        words = []
        if most and lacking[most]:
            words.append(
                f"rows of {sum(map(bool, lacking.values()))} of them are filled (no element in CSR, NaN in dense "
                f"floats), most of all those of {most}, which lacks {lacking[most]}; join='inner' (--join inner) makes "
                "a new collection of only the shared ones"
            )
        words += [f"up to {left} others of an input are dropped"] * bool(left)
        if words:
            _LOG.warning(
                "%d of %d variables%s are in all inputs; %s",
                *(shared, len(var), modality and f" of {modality}", "; ".join(words)),
            )


def warn_of_repeats(inputs: Sequence[Input], writes: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Warn about files that were added before: their rows would appear twice."""
    before = {source["src_path"] for write in writes for source in write["sources"]}
    again = [held.label for held in inputs if not held.in_memory and held.label in before]
    if again:
        relative = any("://" not in label and not Path(label).is_absolute() for label in again)
        hint = " (paths are compared as they were passed: for other files pass absolute ones or other names)" * relative
        warnings.warn(
            f"{folder} already has rows of {few_names(again, letters=1000)}: they will occur twice{hint}. To start "
            "over, delete the collection first",
            stacklevel=6,
        )


def _warn_of_variables(inputs: Sequence[Input], vars_: Mapping[str, Any]) -> None:
    dropped = sorted(
        {
            str(name)
            for held in inputs
            for key, var in held.vars.items()
            if key in vars_
            for name in var.index.difference(vars_[key].index)
        }
    )
    if dropped:
        warnings.warn(
            f"{len(dropped)} variables are not in the collection and are dropped: {few_names(dropped)}", stacklevel=7
        )


def _warn_of_names(what: str, new: Sequence[set[str]], old: set[str], folder: Path) -> None:
    """Warn about names that only some of the rows will have."""
    lacking = sorted({name for names in new for name in old - names})
    more = sorted({name for names in new for name in names - old})
    words = [f"new rows lack {few_names(lacking)}"] if lacking else []
    if more:
        words.append(f"only new rows have {few_names(more)}")
    if words:
        warnings.warn(
            f"{what} differ from those of {folder}: {'; '.join(words)}. Loaders only read by name what all rows have",
            stacklevel=7,
        )
