"""`Input`: what rows of a collection are made from."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.data.rows.collection.tables import Table, table_of
from rankwise.data.rows.datasets import load_anndata
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError, DataError

__all__ = ["Input", "open_input"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Input:
    """One AnnData, of a file, a store or in memory.

    Attributes:
        label: where it comes from, for the column src_path.
        stamp: what changes when its content does, as far as the file system tells.
        obs: table of observations, in memory.
        var: table of variables, in memory.
        tables: its matrices by name.
    """

    label: str
    stamp: tuple[int, ...]
    obs: Any
    var: Any
    tables: dict[str, Table]

    @property
    def num_rows(self) -> int:
        """Observations."""
        return len(self.obs)


def open_input(
    source: Any, number: int, *, load_adata: Callable[[Any], Any] | None = None, matrices: Sequence[str] | None = None
) -> Input:
    """Open an input; its tables are read into memory, its matrices stay where they are.

    Args:
        source: path of an h5ad file or a Zarr store, a group of Zarr or h5py, or an AnnData.
        number: its place in the list, for the label of an AnnData in memory.
        load_adata: turns the path or group into an AnnData; None = all of it.
        matrices: names to take; None = all.

    Raises:
        ConfigError: a matrix of that name is not there.
        DataError: it is no AnnData, or cannot be read.
    """
    label, stamp = _label(source, number), _stamp(source)
    if hasattr(source, "obs_names"):
        obs, var, found, raw = _parts(source)
    elif load_adata is not None:
        obs, var, found, raw = _parts(load_adata(source))
    else:
        obs, var, found, raw = _stored(source, label)
    if raw and matrices is None:
        warnings.warn(f"raw of {label} is left out; move it to a layer with load_adata to keep it", stacklevel=4)
    tables = _tables(found, label, matrices)
    for table in tables.values():
        if table.shape[0] != len(obs):
            raise DataError(f"{table.name} of {label} has {table.shape[0]} rows, its observations are {len(obs)}")
    return Input(label=label, stamp=stamp, obs=obs, var=var, tables=tables)


def _label(source: Any, number: int) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if hasattr(source, "obs_names"):
        return f"in memory {number}"
    if hasattr(source, "store_path"):
        return str(source.store_path)
    return f"{getattr(getattr(source, 'file', None), 'filename', source)}{getattr(source, 'name', '')}"


def _stamp(source: Any) -> tuple[int, ...]:
    path = Path(source) if isinstance(source, (str, os.PathLike)) else None
    if path is None or not path.exists():
        return ()
    if path.is_dir() and (path / "zarr.json").exists():
        path = path / "zarr.json"
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


def _parts(adata: Any) -> tuple[Any, Any, dict[str, Any], bool]:
    found = {"X": adata.X} if adata.X is not None else {}
    for table in ("layers", "obsm"):
        found |= {f"{table}/{name}": held for name, held in getattr(adata, table).items()}
    return _in_memory(adata.obs), _in_memory(adata.var), found, adata.raw is not None


def _in_memory(frame: Any) -> Any:
    return frame.to_memory() if hasattr(frame, "to_memory") else frame.copy()


def _stored(source: Any, label: str) -> tuple[Any, Any, dict[str, Any], bool]:
    group, read = _open_group(source, label), load_anndata().io.read_elem
    if dict(group.attrs).get("encoding-type") != "anndata":
        raise DataError(f"{label} is no AnnData store")
    found = {"X": group["X"]} if _holds(group, "X") else {}
    for table in ("layers", "obsm"):
        if table in group:
            found |= {f"{table}/{name}": group[table][name] for name in sorted(group[table].keys())}
    try:
        obs, var = read(group["obs"]), read(group["var"])
    except Exception as error:  # whatever a file format raises
        raise DataError(f"the tables obs and var of {label} cannot be read: {error}") from error
    return obs, var, {name: _sliceable(held) for name, held in found.items()}, _holds(group, "raw")


def _holds(group: Any, name: str) -> bool:
    return name in group and dict(group[name].attrs).get("encoding-type") != "null"


def _open_group(source: Any, label: str) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        return source
    path = Path(source)
    if "://" not in str(source) and not path.exists():
        raise DataError(f"there is nothing at {label}")
    try:
        if path.is_file():
            import h5py

            return h5py.File(path, "r")
        return load_zarr().open_group(os.fspath(source), mode="r")
    except Exception as error:
        raise DataError(f"{label} cannot be opened as an h5ad file or a Zarr store: {error}") from error


def _sliceable(held: Any) -> Any:
    kind = dict(held.attrs).get("encoding-type")
    return load_anndata().io.sparse_dataset(held) if kind in {"csr_matrix", "csc_matrix"} else held


def _tables(found: dict[str, Any], label: str, matrices: Iterable[str] | None) -> dict[str, Table]:
    names = list(found) if matrices is None else list(matrices)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ConfigError(f"{label} has no {', '.join(map(repr, unknown))}; it has {', '.join(found) or 'no matrix'}")
    tables = {name: table_of(name, found[name]) for name in names}
    odd = [name for name, table in tables.items() if table is None]
    if odd:
        warnings.warn(f"{', '.join(odd)} of {label} hold no rows of numbers and are left out", stacklevel=5)
    return {name: table for name, table in tables.items() if table is not None}
