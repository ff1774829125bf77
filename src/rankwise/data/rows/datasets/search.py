"""Finds datasets below a path, and modalities; imports anndata."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rankwise.data.store import load_zarr
from rankwise.data.store.meta.nodes import resolve_place
from rankwise.data.store.meta.tree import STORES
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import ConfigError, DataError, needs_extra

COLLECTION_TYPE = "annbatch-preshuffled"
MANIFEST = "rankwise"

MEMBER = re.compile(r"dataset_(\d+)")


def member_names(names: Iterable[str]) -> list[str]:
    """Return those names that a collection gives to its datasets, sorted by number."""
    return sorted(filter(MEMBER.fullmatch, names), key=lambda name: int(name.removeprefix("dataset_")))


def find_datasets(uris: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the places of the AnnData stores at URIs, in their order; datasets of a collection are sorted by number.

    Raises:
        ConfigError: the list is empty.
        DataError: there is nothing at a URI, or something else.
    """
    listed = [uris] if isinstance(uris, (str, os.PathLike)) else list(uris)
    if not listed:
        raise ConfigError("rows need at least one AnnData store or collection, got none")
    return tuple(place for uri in listed for place in _at(resolve_place(uri)))


def _at(place: str) -> list[str]:
    node = STORES.node(place)
    if node is None:
        raise DataError(_unfit(place)) if Path(place).is_file() else STORES.missing(place)
    kind = node.attributes.get("encoding-type")
    if kind == "anndata":
        return [place]
    if kind is None and node.kind != "array" and not STORES.inside(place, node):
        raise DataError(f"{place} is an empty Zarr group; add rows to a collection with its add_adatas([...])")
    if kind != COLLECTION_TYPE:
        what = "a Zarr array" if node.kind == "array" else f"a Zarr group of the type {kind!r}"
        raise DataError(
            f"{place} is {what}; rows are read from AnnData stores and collections (for plain arrays, whose "
            "samples are array[i], use rankwise.data.samples.ArraySource)"
        )
    listed = node.attributes.get(MANIFEST, {}).get("datasets")  # others were left by a write that was killed
    members = member_names(STORES.inside(place, node) if listed is None else listed)
    if not members:
        raise DataError(
            f"the collection {place} is empty: add data with DatasetCollection({place!r}).add_adatas([...])"
        )
    return [f"{place}/{name}" for name in members]


def _unfit(place: str) -> str:
    """Say what to do with a file that is not a Zarr store."""
    written = "write it to a Zarr collection first (rankwise rows write COLLECTION.zarr FILE)"
    if place.endswith((".h5ad", ".h5", ".hdf5")):
        return (
            f"{place} is an HDF5 file: {written}; an ordered loader reads small ones into memory, "
            "OrderedLoader(FILE, order=Order(FILE, batch_size=...))"
        )
    if place.endswith(".h5mu"):
        return f"{place} is a MuData file: {written}, with --modality NAME for each modality to keep"
    return (
        f"{place} is a file; rows are read from AnnData stores, collections and h5ad files: make an AnnData of it "
        "(anndata.io reads loom, csv and mtx files; of a table anndata.AnnData(frame)) and pass that or its file, or "
        "wrap it as a torch Dataset in rankwise.data.samples.DatasetLoader(dataset, order=...)"
    )


def open_group(place: str) -> Any:
    """Open the Zarr group in a folder or at a URL, for reading."""
    store = RemoteFiles().zarr_store(place) if "://" in place else place
    return load_zarr().open_group(store, mode="r")


def known_columns(columns: Sequence[str] | None, known: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Return columns of the table of observations; None = all."""
    wanted = known if columns is None else tuple(columns)
    unknown = [column for column in wanted if column not in known]
    if unknown:
        held = ", ".join(map(repr, known)) or "none"
        raise ConfigError(f"{place} has no obs columns {', '.join(map(repr, unknown))}; it has {held}")
    return wanted


def load_anndata() -> Any:
    """Return the anndata module.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needs_extra("rows of AnnData stores need anndata: pip install 'rankwise[rows]'"):
        import anndata
    return anndata


def split_modality(name: str) -> tuple[str, str]:
    """Split "mod/protein/X" into ("protein", "X"); the first modality is ""."""
    if not name.startswith("mod/"):
        return "", name
    _, modality, inner = name.split("/", 2)
    return modality, inner


def stored_name(name: str) -> str:
    """Return the path of "mod", a modality or a matrix in the store: further modalities are AnnData inside uns."""
    return f"uns/{name}" if name.partition("/")[0] == "mod" else name
