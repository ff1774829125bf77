"""The arrays below URIs that a crop fits, the sizes of their stored chunks, and speeds of reading and decoding."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from rankwise._files import user_folder, write_whole
from rankwise.data.contract import FloatArray, IntArray
from rankwise.data.crops.index.image import Level, image_levels, plain_level
from rankwise.data.store.catalogue.lookup import Catalogue
from rankwise.data.store.meta.nodes import read_node, resolve_place
from rankwise.data.store.meta.tree import STORES, Nodes, list_arrays, read_meta
from rankwise.data.store.meta.values import ArrayMeta
from rankwise.data.store.ngff.images import image_of
from rankwise.data.store.plan.grids import grid_of
from rankwise.data.store.shard import read_index
from rankwise.errors import ConfigError, DataError

_ABOVE = 3  # an image that names an array may be this many groups above it, as in image/scale0/array

# An array, and which level of an OME-Zarr image it is, 0 is the finest; None = it is a plain array.
Found: TypeAlias = tuple[Level, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """An array with the crop extended to all of its axes.

    Attributes:
        meta: the array.
        crop: extent along each axis; of axes that the crop does not name, channels are taken as asked, others one by
            one.
        level: its level in an OME-Zarr image, 0 is the finest; None = it is a plain array.
    """

    meta: ArrayMeta
    crop: tuple[int, ...]
    level: int | None = None

    @property
    def name(self) -> str:
        """The array and its level, in words."""
        return self.meta.place if self.level is None else f"{self.meta.place} (level {self.level})"


def gather(uris: Iterable[str | os.PathLike[str]]) -> tuple[list[Found], list[str]]:
    """Return every array at or below URIs, without duplicates, and a line about each that cannot be read.

    A URI is an array, a group (an image, a plate), a local folder of them, or a catalogue file.

    Raises:
        DataError: there is nothing at a URI, or its own node cannot be read.
    """
    found: dict[str, Found] = {}
    bad: dict[str, DataError] = {}
    for uri in uris:
        for metas, nodes in _arrays(resolve_place(uri), bad):
            levels: dict[str, dict[str, Found]] = {}
            for meta in metas:
                if meta.place not in found:
                    found[meta.place] = _role(meta, nodes, levels)
    return list(found.values()), [str(error) for error in bad.values()]


def _arrays(place: str, bad: dict[str, DataError]) -> Iterable[tuple[list[ArrayMeta], Nodes]]:
    """Return the arrays at a place, and where to look up the groups that contain them."""
    if "://" not in place and Path(place).is_file():
        catalogue = Catalogue.load(place)
        yield [read_meta(array, nodes=catalogue) for array in catalogue.arrays()], catalogue
        return
    for store in _places(place):
        node = read_node(store)
        if node is not None and node.kind == "group":
            yield list(list_arrays(store, bad=bad).values()), STORES
        else:
            yield [read_meta(store)], STORES


def _places(place: str) -> list[str]:
    """Return the place itself, or the stores in it if it is a plain folder."""
    if read_node(place) is not None or "://" in place:
        return [place]
    folder = Path(place)
    inside = sorted(str(child) for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
    stores = [child for child in inside if read_node(child) is not None]
    return stores or [place]  # nothing there: reading it raises the error


def _role(meta: ArrayMeta, nodes: Nodes, levels: dict[str, dict[str, Found]]) -> Found:
    """Return which level of an image an array is; `levels` keeps those of each group, which is opened once."""
    group = meta.place
    for _ in range(_ABOVE):
        group = group.rpartition("/")[0]
        if not group or group.endswith("/"):
            break
        if group not in levels:
            with suppress(DataError):  # not an image, or a damaged one: its arrays count as plain ones
                node = nodes.node(group)
                image = None if node is None or node.kind != "group" else image_of(node, nodes)
                found = () if image is None else image_levels(image)
                levels[group] = {level.array.place: (level, number) for number, level in enumerate(found)}
        if meta.place in levels.setdefault(group, {}):
            return levels[group][meta.place]
    return plain_level(meta), None


def fit(
    arrays: Iterable[Found], crop: tuple[int, ...], *, channels: int | None = None
) -> tuple[list[Fitting], list[str]]:
    """Return the arrays that have enough axes for a crop, and a line about each of the others.

    As in a `CropIndex`, a crop names the last axes that are not channels, or all axes. If it does not name channels,
    all are taken, or as many as given.

    Raises:
        ConfigError: the crop has an extent below 1, or no array has enough axes.
    """
    if not crop or min(crop) < 1:
        raise ConfigError(f"a crop needs an extent >= 1 for each axis, such as 16,128,128; got {list(crop)}")
    fitting, others = [], []
    for level, number in arrays:
        meta = level.array
        if meta.ndim < len(crop):
            others.append(f"{meta.place} has {meta.ndim} axes, the crop {len(crop)}")
        elif 0 in meta.shape:
            others.append(f"{meta.place} is empty: its shape is {list(meta.shape)}")
        else:
            fitting.append(Fitting(meta=meta, crop=_whole_crop(level, crop, channels), level=number))
    if not fitting:
        listing = "; ".join(others[:4]) or "there is no array"
        raise ConfigError(f"a crop of {list(crop)} needs non-empty arrays of at least {len(crop)} axes: {listing}")
    return fitting, others


def _whole_crop(level: Level, crop: tuple[int, ...], channels: int | None) -> tuple[int, ...]:
    meta, axis = level.array, level.channel_axis
    if len(crop) == meta.ndim or axis is None:
        return (1,) * (meta.ndim - len(crop)) + crop
    others = (1,) * (meta.ndim - 1 - len(crop)) + crop
    taken = meta.shape[axis] if channels is None else min(channels, meta.shape[axis])
    return (*others[:axis], taken, *others[axis:])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSizes:
    """Facts about an array's chunks from a few of its files.

    Attributes:
        files_sampled: files that were checked.
        files_found: those of them that exist; the others stand for the fill value.
        chunks_sampled: chunks in all of them.
        chunks_written: those of them that are stored.
        whole_chunks: the same, where a chunk that extends beyond the array counts by its fraction inside.
        chunk_bytes: mean encoded bytes of a whole chunk; 0 if none is stored.
        file_bytes: mean bytes of an existing file; 0 if there is none.
    """

    files_sampled: int
    files_found: int
    chunks_sampled: int
    chunks_written: int
    whole_chunks: float
    chunk_bytes: float
    file_bytes: float

    @property
    def missing_share(self) -> float:
        """Fraction of the chunks that were never written, 0 to 1."""
        return 1 - self.chunks_written / self.chunks_sampled

    @classmethod
    def together(cls, seen: Sequence[StoredSizes]) -> StoredSizes:
        """Return combined facts from several files or arrays; at least one."""
        found = sum(sizes.files_found for sizes in seen)
        whole = sum(sizes.whole_chunks for sizes in seen)
        return cls(
            files_sampled=sum(sizes.files_sampled for sizes in seen),
            files_found=found,
            chunks_sampled=sum(sizes.chunks_sampled for sizes in seen),
            chunks_written=sum(sizes.chunks_written for sizes in seen),
            whole_chunks=whole,
            chunk_bytes=sum(sizes.chunk_bytes * sizes.whole_chunks for sizes in seen) / whole if whole else 0.0,
            file_bytes=sum(sizes.file_bytes * sizes.files_found for sizes in seen) / max(found, 1),
        )


def num_files(meta: ArrayMeta) -> int:
    """Return the number of files of an array when completely written."""
    return math.prod(grid_of(meta.shape, meta.files))


def sample_sizes(meta: ArrayMeta, *, most_files: int) -> StoredSizes | None:
    """Check at most `most_files` files of a local array, spread evenly over it.

    Returns:
        None if nothing is known: behind a URL, with no files to check, or for shards with an unusual index.

    Raises:
        DataError: the index of a shard is damaged.
    """
    if meta.is_remote or most_files < 1 or (meta.index is None and meta.sharded):
        return None
    grid = grid_of(meta.shape, meta.files)
    total = math.prod(grid)
    picks = min(most_files, total)
    picked = (np.arange(picks, dtype=np.int64) * 2 + 1) * total // (2 * picks)
    coords = np.stack(np.unravel_index(picked, grid), axis=1).tolist()
    return StoredSizes.together([_look(meta, place) for place in coords])


def _look(meta: ArrayMeta, file: list[int]) -> StoredSizes:
    """Return the facts from one file."""
    path = Path(meta.place, meta.keys.key(tuple(file)))
    inside: FloatArray = np.ones(())  # fraction of each chunk inside; a shard at the edge has room for more chunks
    for size, extent, chunk, place in zip(meta.shape, meta.files, meta.chunks, file, strict=True):
        begins = np.arange(place * extent, min((place + 1) * extent, size), chunk)
        inside = np.multiply.outer(inside, np.minimum(size - begins, chunk) / chunk)
    lengths = _lengths(path, meta, inside.shape)
    written = lengths >= 0
    whole = float(inside[written].sum())
    exists = path.is_file()
    return StoredSizes(
        files_sampled=1,
        files_found=int(exists),
        chunks_sampled=inside.size,
        chunks_written=int(written.sum()),
        whole_chunks=whole,
        chunk_bytes=float(lengths[written].sum()) / whole if whole else 0.0,
        file_bytes=float(path.stat().st_size) if exists else 0.0,
    )


def _lengths(path: Path, meta: ArrayMeta, grid: tuple[int, ...]) -> IntArray:
    """Return the encoded bytes of the chunks in a file, -1 for those that were never written."""
    if meta.index is not None:
        index = read_index(path, meta.index)[tuple(slice(count) for count in grid)]
        return np.where(index[..., 0] >= 0, index[..., 1], -1)
    try:
        return np.full(grid, path.stat().st_size, dtype=np.int64)
    except FileNotFoundError:
        return np.full(grid, -1, dtype=np.int64)


# Decoded bytes per CPU second of one core. `bench/crops.py` measured "none", "zstd-1", "zstd-3", "blosc-zstd" and
# "blosc-lz4" on 16-bit images in chunks of 256 KiB; the others are taken from similar codecs, or rough.
_DECODE = {
    "none": 100e9,
    "blosc-lz4": 9e9,
    "blosc-lz4hc": 9e9,
    "blosc-blosclz": 5e9,
    "blosc-zstd": 1.8e9,
    "blosc-zlib": 0.5e9,
    "lz4": 3e9,
    "zstd-1": 1.45e9,
    "zstd-3": 0.85e9,
    "zstd": 0.85e9,
}
_SLOW = 0.35e9  # through zarr-python, for any codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Costs of one core.

    Attributes:
        origin: source of the numbers, in words.
        decode: decoded bytes per second for each codec.
        chunk_s: seconds per chunk of any size: planning, the read call, the start of a decoder.
        read_bytes_per_s: encoded bytes copied from the page cache per second.
        cast_s: seconds per element cast into the batch.
    """

    origin: str = "built-in table (a core of an AMD EPYC server)"
    decode: Mapping[str, float] = field(default_factory=lambda: dict(_DECODE))
    chunk_s: float = 10e-6
    read_bytes_per_s: float = 8e9
    cast_s: float = 0.6e-9

    def decode_bytes_per_s(self, codec: str, *, fast: bool) -> float:
        """Return the speed of a codec; for an unlisted zstd level, that of the nearest lower one."""
        if codec in self.decode:
            return self.decode[codec]
        if not fast:
            return self.decode.get("slow path", _SLOW)
        if codec.startswith("zstd"):
            level = codec.removeprefix("zstd").removeprefix("-")  # 0 is zstd's default, which is level 3
            return self.decode["zstd-1" if level == "2" or level.startswith("-") else "zstd-3"]
        return self.decode.get(codec, self.decode["blosc-zstd"])


def rates_file() -> Path:
    """Return the path of the file with this machine's own speeds."""
    below_home = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return user_folder("XDG_CACHE_HOME", below_home) / "rates.json"


def load_rates(path: Path | None = None) -> Rates:
    """Return the table, with this machine's own speeds if measured.

    Raises:
        ConfigError: the file of own speeds is invalid.
    """
    try:
        path = path or rates_file()
        kept = json.loads(path.read_text())
        own = {str(codec): float(speed) for codec, speed in kept["decode"].items()}
    except FileNotFoundError:
        return Rates()
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is not a table of decoding speeds ({error}): delete it or measure again") from error
    return replace(
        Rates(), decode={**_DECODE, **own}, origin=f"table measured here ({', '.join(sorted(own))}; else built-in)"
    )


def save_rates(speeds: Mapping[str, float], path: Path | None = None) -> Path:
    """Save the speeds of codecs on this machine, in decoded bytes per CPU second of one core; return the file."""
    path = path or rates_file()
    if not speeds:
        return path
    own: dict[str, float] = {}
    if path.exists():
        load_rates(path)  # raises if the file is invalid
        own = json.loads(path.read_text())["decode"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"decode": {**own, **speeds}}, indent=1).encode(), durable=False)
    return path
