"""`Input`: a source of rows for a collection, also several modalities of a MuData."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.buckets import hash_names, packed_texts
from rankwise.data.rows.collection.inputs.columns import Column, columns_of_frame, open_columns
from rankwise.data.rows.collection.inputs.tables import Columnwise, Table, table_of
from rankwise.data.rows.datasets.search import load_anndata, split_modality
from rankwise.data.store import load_zarr
from rankwise.data.store.meta.codecs import is_core
from rankwise.errors import ConfigError, DataError, RankwiseError

_IN_MEMORY = "in memory "
_VCF_ENDINGS = (".vcf", ".vcf.gz", ".vcf.bgz", ".bcf")
_BLOCK = 2**16  # names to hash at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Input:
    """One AnnData, or some modalities of a MuData; from a file, a store or memory."""

    label: str  # its origin, for the column src_path
    index: Column
    columns: dict[str, Column]
    vars: dict[str, Any]  # tables of variables, in memory: the first modality under "", others under their names
    tables: dict[str, Table]
    unfit: tuple[str, ...] = ()  # names of matrices that hold no rows of numbers
    raw: bool = False  # whether it has a `raw`, which is not written
    close: Callable[[], None] = lambda: None  # closes its file; nothing can be read afterwards
    file: tuple[int, int] | None = None  # size and modification time, if it is one file
    loaded: bool = False  # whether a function of the user made it from the file

    @property
    def in_memory(self) -> bool:
        """Whether it has no path by which it could be recognised."""
        return self.label.startswith(_IN_MEMORY)

    @property
    def num_rows(self) -> int:
        """Number of observations."""
        return self.index.num_rows

    def stamp(self) -> Any:
        """Return a value that changes with the content.

        For a file it is size and time. Otherwise it is a hash of sampled rows of all parts, spread over the input; of
        all rows if there are at most 1,024. That detects another layer, normalisation or order, but not every change of
        a single value.
        """
        if self.file is not None and not self.loaded:
            return self.file
        digest = hashlib.blake2b(digest_size=16)
        for name, var in self.vars.items():
            digest.update(repr((name, var.index.tolist())).encode())
        for column in (self.index, *self.columns.values()):
            _add(digest, column.name, (column.block(*span) for span in _spans(column.num_rows, _ROWS)))
            names = None if column.categories is None else column.categories.tolist()
            _add(digest, column.kind, [np.array(repr(names))])
        for name, table in self.tables.items():
            held = table.held
            if isinstance(held, Columnwise):
                elements = (array for span in _spans(held.nnz, _ELEMENTS) for array in held.elements(*span))
                _add(digest, name, (held.indptr, *elements))
            else:
                _add(digest, name, (table.block(*span) for span in _spans(table.shape[0], _ROWS)))
        return self.file, digest.hexdigest()


_LOOKS = 16  # ranges of rows, spread evenly over all rows
_ROWS = 64  # rows in each
_ELEMENTS = 4096  # elements of a matrix stored by columns


def _spans(total: int, length: int) -> list[tuple[int, int]]:
    """Return row ranges as far apart as possible, including the first and the last rows."""
    if total <= _LOOKS * length:
        return [(0, total)]
    starts = np.linspace(0, total - length, _LOOKS).astype(np.int64).tolist()
    return [(start, start + length) for start in starts]


def _add(digest: Any, name: str, parts: Iterable[Any]) -> None:
    digest.update(name.encode())
    for part in parts:
        if hasattr(part, "indptr"):
            arrays = [part.data, part.indices, part.indptr]
        else:
            arrays = [*packed_texts(part)] if part.dtype == object else [part]
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())


def open_input(
    source: Any,
    number: int,
    *,
    load_adata: Callable[[Any], Any] | None = None,
    matrices: Sequence[str] | None = None,
    modalities: Sequence[str] = (),
    member: bool = False,
) -> Input:
    """Open an input; reads only its table of variables into memory.

    Args:
        source: path of an h5ad or h5mu file or a Zarr store, a group of Zarr or h5py, or an AnnData or MuData.
        number: its index in the list, for the label of inputs in memory.
        load_adata: turns the path or group into an AnnData; None = all of it.
        matrices: names to take; None = all.
        modalities: names of MuData modalities, the first one provides X; () = it is an AnnData.
        member: whether it is a dataset of a collection, which keeps other modalities in uns.

    Raises:
        ConfigError: there is no matrix or modality of that name.
        DataError: it is not an AnnData, or cannot be read.
    """
    label = _label(source, number)
    with contextlib.ExitStack() as stack:
        held, loaded = source, load_adata is not None
        if load_adata is not None and not hasattr(source, "obs_names"):
            held = load_adata(source)
            if not hasattr(held, "obs_names"):
                kind = type(held).__name__
                raise ConfigError(f"load_adata= must return an AnnData, but for {label} it returned {kind}")
        elif isinstance(source, (str, os.PathLike)):
            held = _open_path(source, label)
            if hasattr(held, "close"):  # an HDF5 file
                stack.callback(held.close)
        try:
            found = _member(held, label) if member else _whole(held, label, modalities)
        except (RankwiseError, Warning):
            raise
        except Exception as error:  # any error of a file format
            raise DataError(f"{label} is damaged or not an AnnData: {error}. Copy or write it again") from error
        if found.raw and matrices is None:
            warnings.warn(f"raw of {label} is dropped; move it to a layer with load_adata to keep it", stacklevel=4)
        found = _choose(found, matrices)
        _check(found)
        is_file = isinstance(source, (str, os.PathLike)) and Path(source).is_file()
        facts = Path(source).stat() if is_file else None
        return replace(
            found,
            index=replace(found.index, label=label),
            columns={name: replace(column, label=label) for name, column in found.columns.items()},
            close=stack.pop_all().close,
            file=None if facts is None else (facts.st_size, facts.st_mtime_ns),
            loaded=loaded,
        )


def _label(source: Any, number: int) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if hasattr(source, "obs_names"):
        return f"{_IN_MEMORY}{number}"
    if hasattr(source, "store_path"):
        return str(source.store_path)
    return f"{getattr(getattr(source, 'file', None), 'filename', source)}{getattr(source, 'name', '')}"


def _open_path(source: str | os.PathLike[str], label: str) -> Any:
    path = Path(source)
    if "://" not in str(source) and not path.exists():
        raise DataError(f"nothing found at {label}, searched from {Path.cwd()}")
    if path.name.lower().endswith(_VCF_ENDINGS):
        raise DataError(
            f"{label} is VCF, which is not supported: put its genotypes into an AnnData and pass that, or write "
            "load_adata=, which converts the path to one"
        )
    try:
        if path.is_file():
            import h5py

            return h5py.File(path, "r")
        return load_zarr().open_group(os.fspath(source), mode="r")
    except Exception as error:
        raise DataError(
            f"{label} cannot be opened as an h5ad file or a Zarr store: {error}. For other formats pass load_adata=, "
            "which converts the path to an AnnData"
        ) from error


def _choose(found: Input, matrices: Sequence[str] | None) -> Input:
    """Return the input with some of its matrices; None = all."""
    known = [*found.tables, *found.unfit]
    names = known if matrices is None else list(matrices)
    unknown = [name for name in names if name not in known]
    if unknown:
        held = ", ".join(known) or "no matrix"
        raise ConfigError(f"{found.label} has no {', '.join(map(repr, unknown))}; it has {held}")
    odd = [name for name in names if name in found.unfit]
    if odd:
        warnings.warn(f"{', '.join(odd)} of {found.label} hold no rows of numbers and are dropped", stacklevel=5)
    return replace(found, tables={name: found.tables[name] for name in names if name in found.tables})


def _check(found: Input) -> None:
    for table in found.tables.values():
        if table.shape[0] != found.num_rows:
            raise DataError(
                f"{table.name} of {found.label} has {table.shape[0]} rows, but there are {found.num_rows} observations"
            )
        half = table.sparse and table.dtype == np.float16
        if half or not is_core(table.dtype):
            why = "for which Zarr has no type" if not half else "of which SciPy has no sparse matrices"
            raise DataError(
                f"{table.name} of {found.label} holds {table.dtype}, {why}: convert it, for example to "
                f"{'float32' if half else 'float64'}, with load_adata="
            )
    names = {"obs": ("columns", list(found.columns))}
    names["var"] = ("columns", [str(name) for var in found.vars.values() for name in var.columns])
    for kind in ("layers", "obsm"):
        inner = [split_modality(name)[1].partition("/") for name in found.tables]
        names[kind] = ("matrices", [key for table, _, key in inner if table == kind])
    for kind, (what, given) in names.items():
        for why, is_odd in _UNFIT.items():
            odd = list(filter(is_odd, given))
            if odd:
                raise ConfigError(
                    f"{kind} of {found.label} has {what} with {why}: {', '.join(map(repr, odd[:5]))}; rename them "
                    "with load_adata="
                )


_UNFIT: dict[str, Callable[[str], bool]] = {
    "a slash in their names, which Zarr treats as folders": lambda name: "/" in name,
    "names that Zarr or AnnData reserves, or cannot store": lambda name: (
        name in {"", ".", "..", "_index"} or name != name.encode(errors="replace").decode()
    ),
}


def _whole(source: Any, label: str, modalities: Sequence[str]) -> Input:
    """Return an AnnData, or some modalities of a MuData."""
    if hasattr(source, "obs_names"):
        held = source.mod if hasattr(source, "mod") else None
    else:
        kind = dict(source.attrs).get("encoding-type")
        if kind not in {"anndata", "MuData"}:
            raise DataError(f"{label} is not an AnnData store")
        held = source["mod"] if kind == "MuData" else None
    if held is None:
        if modalities:
            raise ConfigError(f"{label} is an AnnData without modalities; modalities={list(modalities)} needs a MuData")
        return _anndata(source, label)
    names = sorted(held.keys())
    unknown = [name for name in modalities if name not in names]
    if unknown or not modalities:
        what = f"has no {', '.join(map(repr, unknown))}" if unknown else "is a MuData"
        raise ConfigError(f"{label} {what}: choose from {', '.join(names)} with modalities= (--modality)")
    return _join({name: _anndata(held[name], f"{label}/mod/{name}") for name in modalities}, source, label)


def _member(group: Any, label: str) -> Input:
    """Return a dataset of a collection, including further modalities."""
    found = _anndata(group, label)
    held = group["uns/mod"] if "uns" in group and "mod" in group["uns"] else {}
    for name in sorted(held):
        part = _anndata(held[name], f"{label}/mod/{name}")
        found.vars[name] = part.vars[""]
        found.tables.update(_named(part, name))
    return found


def _named(part: Input, modality: str) -> dict[str, Table]:
    """Return the matrices of a modality that is not the first, by their names in the collection."""
    tables = {f"mod/{modality}/{name}": table for name, table in part.tables.items()}
    return {name: replace(table, name=name) for name, table in tables.items()}


def _anndata(held: Any, label: str) -> Input:
    """Return an AnnData in memory, backed or lazy, or a Zarr or HDF5 group of one."""
    parts = {}
    if hasattr(held, "obs_names"):
        obs, var = (getattr(held, name) for name in ("obs", "var"))
        obs, var = (table.to_memory() if hasattr(table, "to_memory") else table for table in (obs, var))
        (index, columns), raw = columns_of_frame(obs, label), held.raw is not None
        if held.X is not None:
            parts["X"] = held.X
        for table in ("layers", "obsm"):
            parts |= {f"{table}/{name}": part for name, part in getattr(held, table).items()}
    else:
        there = {
            name for name in ("X", "raw") if name in held and dict(held[name].attrs).get("encoding-type") != "null"
        }
        raw = "raw" in there
        if "X" in there:
            parts["X"] = held["X"]
        for table in ("layers", "obsm"):
            if table in held:
                parts |= {f"{table}/{name}": held[table][name] for name in sorted(held[table].keys())}
        try:
            index, columns = open_columns(held["obs"], label)
            var = load_anndata().io.read_elem(held["var"])
        except RankwiseError:
            raise
        except Exception as error:  # any error of a file format
            raise DataError(f"the tables obs and var of {label} cannot be read: {error}") from error
    tables = {name: table_of(name, part, label) for name, part in parts.items()}
    return Input(
        label=label,
        index=index,
        columns=columns,
        vars={"": var},
        tables={name: table for name, table in tables.items() if table is not None},
        unfit=tuple(name for name, table in tables.items() if table is None),
        raw=raw,
    )


def _join(parts: dict[str, Input], whole: Any, label: str) -> Input:
    """Combine modalities side by side.

    Rows are the observations that all modalities have, by name, in the order of the first one. The columns of the first
    come first, then those of the MuData itself, then those of the others as `modality:column`.

    Raises:
        DataError: a modality has duplicate names of observations.
    """
    hashes = {name: _hashes(part.index) for name, part in parts.items()}
    for name, held in hashes.items():
        if len(np.unique(held)) < len(held):
            raise DataError(f"{label}/mod/{name} has duplicate observation names: its rows cannot be found by name")
    first, *others = parts
    common = reduce(np.intersect1d, hashes.values())
    wanted = hashes[first][np.isin(hashes[first], common)]  # in the order of the first one
    rows = {name: _rows_of(wanted, held) for name, held in hashes.items()}
    if len(common) < max(map(len, hashes.values())):
        counts = ", ".join(f"{len(held)} in {name}" for name, held in hashes.items())
        warnings.warn(f"{label}: {len(common)} observations are in all of its modalities ({counts})", stacklevel=6)
    columns = {name: replace(column, rows=rows[first]) for name, column in parts[first].columns.items()}
    columns |= _own_columns(whole, label, columns, wanted)
    tables = {name: (table, rows[first]) for name, table in parts[first].tables.items()}
    unfit = parts[first].unfit
    for other in others:
        for column in parts[other].columns.values():
            name = f"{other}:{column.name}"
            columns[name] = replace(column, name=name, rows=rows[other])
        tables |= {name: (table, rows[other]) for name, table in _named(parts[other], other).items()}
        unfit += tuple(f"mod/{other}/{name}" for name in parts[other].unfit)
    return Input(
        label=label,
        index=replace(parts[first].index, rows=rows[first]),
        columns=columns,
        vars={"": parts[first].vars[""], **{name: parts[name].vars[""] for name in others}},
        tables={
            name: replace(table, label=label, rows=mine, shape=(len(mine), *table.shape[1:]))
            for name, (table, mine) in tables.items()
        },
        unfit=unfit,
        raw=any(part.raw for part in parts.values()),
    )


def _hashes(index: Column) -> NDArray:
    starts = range(0, index.num_rows, _BLOCK)
    blocks = [hash_names(index.block(start, min(start + _BLOCK, index.num_rows))) for start in starts]
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint64)


def _rows_of(wanted: NDArray, held: NDArray) -> IntArray:
    order = np.argsort(held)
    rows: IntArray = order[np.searchsorted(held, wanted, sorter=order)]
    return rows


def _own_columns(whole: Any, label: str, known: dict[str, Column], wanted: NDArray) -> dict[str, Column]:
    """Columns of the MuData that are not copies of columns of its modalities."""
    if hasattr(whole, "obs_names"):
        index, columns = columns_of_frame(whole.obs, label)
    else:
        index, columns = open_columns(whole["obs"], label)
    mine = [column for name, column in columns.items() if ":" not in name and name not in known]
    if not mine:
        return {}
    held = _hashes(index)
    if len(np.unique(held)) < len(held) or not np.isin(wanted, held).all():
        warnings.warn(f"obs of {label} does not match the rows of its modalities; it is dropped", stacklevel=7)
        return {}
    return {column.name: replace(column, rows=_rows_of(wanted, held)) for column in mine}
