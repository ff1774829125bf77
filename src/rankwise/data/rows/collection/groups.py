"""Open the datasets of a collection, and take them in groups."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray, NDArray
from rankwise.data.rows.collection.buckets import Text
from rankwise.data.rows.collection.columns import ObsColumn
from rankwise.data.rows.collection.journal import said_where_it_stands
from rankwise.data.rows.collection.union import Joined
from rankwise.data.rows.datasets import COLLECTION_TYPE
from rankwise.data.store import load_zarr
from rankwise.errors import ConfigError, DataError

__all__ = ["group_ranks"]


def group_ranks(joined: Joined, names: Sequence[str], block_rows: int) -> IntArray:
    """Return the rank of the group of each row of all inputs, int32[rows]: by the first column, then the next ones.

    Categories rank in their order, numbers and texts by value; missing ones come last.

    Args:
        joined: the inputs.
        names: columns of obs.
        block_rows: rows that are read at once.

    Raises:
        ConfigError: a column is missing in an input.
    """
    columns = [_column(joined, name) for name in names]
    ranks = np.zeros(joined.num_rows, dtype=np.int64)
    for column in columns:
        mine = _ranks(joined, column, block_rows)
        _, ranks = np.unique(ranks * (int(mine.max(initial=0)) + 1) + mine, return_inverse=True)
    return ranks.astype(np.int32)


def _column(joined: Joined, name: str) -> ObsColumn:
    found = next((column for column in joined.columns if column.name == name), None)
    if found is None:
        held = ", ".join(repr(column.name) for column in joined.columns)
        raise ConfigError(f"groupby wants columns of obs; no input has {name!r}, they have {held}")
    lacking = [held.label for held, part in zip(joined.inputs, found.parts, strict=True) if part is None]
    if lacking:
        raise ConfigError(
            f"groupby wants columns that all inputs have; {name!r} is missing in {', '.join(lacking)}: add it there "
            "with load_adata, or choose another column"
        )
    return found


def _ranks(joined: Joined, column: ObsColumn, block_rows: int) -> IntArray:
    blocks: list[Any] = [
        column.block(number, start, min(start + block_rows, held.num_rows))
        for number, held in enumerate(joined.inputs)
        for start in range(0, held.num_rows, block_rows)
    ]
    if column.kind == "category":
        codes = np.concatenate(blocks).astype(np.int64)
        return np.where(codes < 0, len(column.categories), codes)
    if column.kind == "text":
        return _text_ranks(blocks)
    values: NDArray = np.concatenate(blocks)
    if column.kind == "masked":
        _, ranks = np.unique(values["value"], return_inverse=True)
        return np.where(values["missing"], len(values), ranks)
    _, ranks = np.unique(values, return_inverse=True)  # NaN come last
    return ranks.astype(np.int64)


def _text_ranks(blocks: Sequence[Text]) -> IntArray:
    """Texts by value, of which each is kept once."""
    known: dict[str | None, int] = {}
    codes = [
        np.array([known.setdefault(text, len(known)) for text in block.objects()], dtype=np.int64) for block in blocks
    ]
    order = sorted(known, key=lambda text: (text is None, text or ""))
    rank = np.empty(len(known), dtype=np.int64)
    rank[[known[text] for text in order]] = np.arange(len(known))
    found: IntArray = rank[np.concatenate(codes)]
    return found


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
