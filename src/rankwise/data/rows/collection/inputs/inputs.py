"""`Input`: a source of rows for a collection, also several modalities of a MuData."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.columns import Column, columns_of_frame, index_of_frame, open_columns, taken
from rankwise.data.rows.collection.inputs.parts import (
    Parts,
    content_stamp,
    file_stamp,
    parts_in_memory,
    parts_of_member,
    stored_parts,
)
from rankwise.data.rows.collection.inputs.tables import Columnwise, Table, table_of
from rankwise.data.rows.collection.places import hash_names
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError, DataError, RankwiseError

__all__ = ["Input", "join_modalities", "open_input"]

_BLOCK = 2**16


def join_modalities(parts: Sequence[Parts], names: Sequence[str], whole: Any, label: str) -> Parts:
    """Combine modalities side by side.

    Rows are the observations that all modalities have, by name, in the order of the first one. The columns of the first
    come first, then those of the MuData itself, then those of the others as `modality:column`.

    Raises:
        DataError: a modality has duplicate names of observations.
    """
    hashes = [_unique(part.index, f"{label}/mod/{name}") for part, name in zip(parts, names, strict=True)]
    common = reduce(np.intersect1d, hashes)
    rows = [_rows_of(common, held) for held in hashes]
    order = np.argsort(rows[0])  # as in the first one
    rows = [held[order] for held in rows]
    if len(common) < max(len(held) for held in hashes):
        counts = ", ".join(f"{len(held)} in {name}" for held, name in zip(hashes, names, strict=True))
        warnings.warn(f"{label}: {len(common)} observations are in all of its modalities ({counts})", stacklevel=6)
    first, vars_ = parts[0], {"": parts[0].vars[""]}
    columns = {name: taken(column, rows[0]) for name, column in first.columns.items()}
    columns |= _own_columns(whole, label, columns, np.sort(common), hashes[0][rows[0]])
    matrices = {name: (held, rows[0]) for name, (held, _) in first.matrices.items()}
    for part, name, chosen in zip(parts[1:], names[1:], rows[1:], strict=True):
        vars_[name] = part.vars[""]
        for column in part.columns.values():
            columns[f"{name}:{column.name}"] = replace(taken(column, chosen), name=f"{name}:{column.name}")
        matrices |= {f"mod/{name}/{matrix}": (held, chosen) for matrix, (held, _) in part.matrices.items()}
    return Parts(taken(first.index, rows[0]), columns, vars_, matrices, any(part.raw for part in parts))


def _unique(index: Column, label: str) -> NDArray:
    found = _hashes(index)
    if len(np.unique(found)) < len(found):
        raise DataError(f"{label} has duplicate observation names: its rows cannot be found by name")
    return found


def _hashes(index: Column) -> NDArray:
    starts = range(0, index.num_rows, _BLOCK)
    blocks = [hash_names(index.block(start, min(start + _BLOCK, index.num_rows))) for start in starts]
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint64)


def _rows_of(wanted: NDArray, held: NDArray) -> IntArray:
    order = np.argsort(held)
    rows: IntArray = order[np.searchsorted(held, wanted, sorter=order)]
    return rows


def _own_columns(
    whole: Any, label: str, known: dict[str, Column], common: NDArray, wanted: NDArray
) -> dict[str, Column]:
    """Columns of the MuData that are not copies of columns of its modalities."""
    if hasattr(whole, "obs_names"):
        index, columns = index_of_frame(whole.obs), columns_of_frame(whole.obs, label)
    else:
        index, columns = open_columns(whole["obs"], label)
    mine = [column for name, column in columns.items() if ":" not in name and name not in known]
    if not mine:
        return {}
    held = _hashes(index)
    if len(np.unique(held)) < len(held) or not np.isin(common, held).all():
        warnings.warn(f"obs of {label} does not match the rows of its modalities; it is dropped", stacklevel=7)
        return {}
    rows = _rows_of(wanted, held)
    return {column.name: taken(column, rows) for column in mine}


_IN_MEMORY = "in memory "
_VCF_ENDINGS = (".vcf", ".vcf.gz", ".vcf.bgz", ".bcf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Input:
    """One AnnData, or some modalities of a MuData; from a file, a store or memory."""

    label: str  # its origin, for the column src_path
    # returns a value that changes with the content, as far as the file system and a sample of rows tell
    stamp: Callable[[], Any]
    index: Column
    columns: dict[str, Column]
    vars: dict[str, Any]  # tables of variables, in memory: the first modality under "", others under their names
    tables: dict[str, Table]
    close: Callable[[], None]  # closes its file; nothing can be read afterwards

    @property
    def in_memory(self) -> bool:
        """Whether it has no path by which it could be recognised."""
        return self.label.startswith(_IN_MEMORY)

    @property
    def num_rows(self) -> int:
        """Number of observations."""
        return self.index.num_rows


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
        held = source
        if load_adata is not None and not hasattr(source, "obs_names"):
            held = _loaded(load_adata, source, label)
        elif not hasattr(source, "obs_names"):
            held = _open_group(source, label)
            if held is not source and hasattr(held, "close"):  # an HDF5 file
                stack.callback(held.close)
        with _named(label):
            parts = parts_of_member(held, label) if member else _parts(held, label, modalities)
            parts = replace(
                parts,
                index=replace(parts.index, label=label),
                columns={name: replace(column, label=label) for name, column in parts.columns.items()},
            )
            tables = _tables(parts, label, matrices)
        if parts.raw and matrices is None:
            warnings.warn(f"raw of {label} is dropped; move it to a layer with load_adata to keep it", stacklevel=4)
        _check_rows(parts, tables, label)
        _check_names(parts, label)
        return Input(
            label=label,
            stamp=cache(lambda: _stamp(source, parts, tables, turned=load_adata is not None)),
            index=parts.index,
            columns=parts.columns,
            vars=parts.vars,
            tables=tables,
            close=stack.pop_all().close,
        )


@contextlib.contextmanager
def _named(label: str) -> Iterator[None]:
    """Add the name of the file to any error of a file format."""
    try:
        yield
    except (RankwiseError, Warning):
        raise
    except Exception as error:
        raise DataError(f"{label} is damaged or not an AnnData: {error}. Copy or write it again") from error


def _check_names(parts: Parts, label: str) -> None:
    columns = {"obs": list(parts.columns), "var": [str(name) for var in parts.vars.values() for name in var.columns]}
    for table, names in columns.items():
        odd = [name for name in names if "/" in name]
        if odd:
            raise ConfigError(
                f"{table} of {label} has columns with a slash in their names, which Zarr treats as folders: "
                f"{', '.join(map(repr, odd[:5]))}; rename them with load_adata="
            )


def _check_rows(parts: Parts, tables: dict[str, Table], label: str) -> None:
    for table in tables.values():
        if table.shape[0] != parts.index.num_rows:
            raise DataError(
                f"{table.name} of {label} has {table.shape[0]} rows, but there are {parts.index.num_rows} observations"
            )


def _parts(source: Any, label: str, modalities: Sequence[str]) -> Parts:
    """Return the parts of an AnnData, or of some modalities of a MuData."""
    memory = hasattr(source, "obs_names")
    if memory:
        held = source.mod if hasattr(source, "mod") else None
    else:
        kind = dict(source.attrs).get("encoding-type")
        if kind not in {"anndata", "MuData"}:
            raise DataError(f"{label} is not an AnnData store")
        held = source["mod"] if kind == "MuData" else None
    read = parts_in_memory if memory else stored_parts
    if held is None:
        if modalities:
            raise ConfigError(f"{label} is an AnnData without modalities; modalities={list(modalities)} needs a MuData")
        return read(source, label)
    names = sorted(held.keys())
    unknown = [name for name in modalities if name not in names]
    if unknown or not modalities:
        what = f"has no {', '.join(map(repr, unknown))}" if unknown else "is a MuData"
        raise ConfigError(f"{label} {what}: choose from {', '.join(names)} with modalities= (--modality)")
    parts = [read(held[name], f"{label}/mod/{name}") for name in modalities]
    return join_modalities(parts, modalities, source, label)


def _label(source: Any, number: int) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if hasattr(source, "obs_names"):
        return f"{_IN_MEMORY}{number}"
    if hasattr(source, "store_path"):
        return str(source.store_path)
    return f"{getattr(getattr(source, 'file', None), 'filename', source)}{getattr(source, 'name', '')}"


def _stamp(source: Any, parts: Parts, tables: dict[str, Table], *, turned: bool) -> Any:
    known = file_stamp(source)
    if known is not None and not turned:
        return known
    return known, content_stamp([parts.index, *parts.columns.values()], parts.vars, tables)


def _open_group(source: Any, label: str) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        return source
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


def _loaded(load_adata: Callable[[Any], Any], source: Any, label: str) -> Any:
    made = load_adata(source)
    if not hasattr(made, "obs_names"):
        raise ConfigError(f"load_adata= must return an AnnData, but for {label} it returned {type(made).__name__}")
    return made


def _tables(parts: Parts, label: str, matrices: Iterable[str] | None) -> dict[str, Table]:
    found = parts.matrices
    names = list(found) if matrices is None else list(matrices)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ConfigError(f"{label} has no {', '.join(map(repr, unknown))}; it has {', '.join(found) or 'no matrix'}")
    tables = {name: table_of(name, *found[name]) for name in names}
    odd = [name for name, table in tables.items() if table is None]
    if odd:
        warnings.warn(f"{', '.join(odd)} of {label} hold no rows of numbers and are dropped", stacklevel=5)
    return {name: _labelled(table, label) for name, table in tables.items() if table is not None}


def _labelled(table: Table, label: str) -> Table:
    held = table.held
    held = replace(held, label=f"{label}/{table.name}") if isinstance(held, Columnwise) else held
    return replace(table, held=held, label=label)
