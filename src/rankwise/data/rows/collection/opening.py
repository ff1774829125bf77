"""From what a user calls a collection to its folder."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

from rankwise.data.rows.collection.interrupted import said_where_it_stands
from rankwise.data.rows.datasets import COLLECTION_TYPE
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError, DataError

__all__ = ["open_folder"]


def open_folder(group: Any, mode: str) -> tuple[Path, bool]:
    """Return the folder of a collection, as an absolute path, and whether it may only be read.

    Args:
        group: a Zarr group, or the path of one.
        mode: "a" makes it where there is none, "r+" and "r" want one.

    Raises:
        ConfigError: it is no Zarr v3 group of a local file system, or one that is something else than a collection.
        DataError: there is no group.
    """
    if isinstance(group, (str, os.PathLike)):
        place = os.fspath(group)
        if "://" in place and not place.startswith("file://"):
            raise ConfigError(_not_local(place))
        group = _open(Path(place.removeprefix("file://")), mode)
    if not hasattr(group, "store_path"):
        raise ConfigError(f"a collection wants a path or a Zarr group, got {type(group).__name__}")
    kind = dict(group.attrs).get("encoding-type")
    if kind not in {None, COLLECTION_TYPE}:
        raise ConfigError(
            f"{group.store_path} is a store of the type {kind!r} and no collection: give the collection a path of its "
            "own, and the store as an input of add_adatas (or, as it is, to a Loader)"
        )
    if group.metadata.zarr_format != 3:
        raise ConfigError(
            f"a collection wants a group of Zarr v3, got one of v{group.metadata.zarr_format}: give it a new path"
        )
    root = getattr(group.store, "root", None)
    if root is None:
        raise ConfigError(_not_local(group.store))
    return (Path(root) / group.path).absolute(), bool(group.store.read_only)  # the working folder may change


def _open(path: Path, mode: str) -> Any:
    if path.suffix != ".zarr":
        warnings.warn(f"collections want names that end in .zarr, got {path}", stacklevel=4)
    if path.is_file():
        raise ConfigError(
            f"{path} is a file, a collection is a folder: give it a path of its own, and the file as an input of "
            "add_adatas"
        )
    if mode != "a" and not path.is_dir():
        raise DataError(f"there is no collection at {path}; mode={mode!r} makes none, mode='a' does")
    zarr = load_zarr()
    if mode == "a" and not any((path / name).exists() for name in ("zarr.json", ".zgroup")):
        # another rank may be just about to make it
        with contextlib.suppress(zarr.errors.ContainsGroupError), said_where_it_stands(path):
            return zarr.create_group(str(path), zarr_format=3)
    try:
        return zarr.open_group(str(path), mode="r" if mode == "r" else "r+")
    except (zarr.errors.ContainsArrayError, FileNotFoundError) as error:
        raise DataError(f"{path} is no Zarr group, as a collection is: give it a path of its own ({error})") from error


def _not_local(place: Any) -> str:
    return (
        f"collections are written and verified in folders of a local file system, got {place}: write to a folder, and "
        "copy that there as it is. To read what lies behind a URL pass the URL itself: Loader(URL, ...), "
        "Order(URL, ...) or RowSource(URL)"
    )
