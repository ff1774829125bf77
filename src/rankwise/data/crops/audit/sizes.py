"""Sizes of stored chunks, and rates of reading and decoding."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rankwise.data.contract import FloatArray, IntArray
from rankwise.data.store.meta import ArrayMeta
from rankwise.data.store.shard import read_index
from rankwise.errors import ConfigError

__all__ = ["Rates", "StoredSizes", "load_rates", "num_files", "rates_file", "sample_sizes", "save_rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSizes:
    """What a few files of an array say about its chunks.

    Attributes:
        files_sampled: files that were looked at.
        files_found: those of them that exist; the others stand for the fill value.
        chunks_sampled: chunks in all of them.
        chunks_written: those of them that are stored.
        whole_chunks: the same, where a chunk that reaches past the array counts by its part inside.
        chunk_bytes: mean encoded bytes of a whole chunk; 0 if none is stored.
        file_bytes: mean bytes of a file that exists; 0 if none does.
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
        """Share of the chunks that was never written, 0 to 1."""
        return 1 - self.chunks_written / self.chunks_sampled

    @classmethod
    def together(cls, seen: Sequence[StoredSizes]) -> StoredSizes:
        """Return one view of what several files or arrays say; at least one."""
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
    """Return how many files an array has when all of it is written."""
    return math.prod(_file_grid(meta))


def sample_sizes(meta: ArrayMeta, *, most_files: int) -> StoredSizes | None:
    """Look at files of a local array, spread evenly over it.

    Args:
        meta: the array.
        most_files: files to look at; 0 looks at none.

    Returns:
        None where nothing can be said: behind a URL, no file asked for, or shards with an unusual index.

    Raises:
        DataError: the index of a shard is damaged.
    """
    if meta.is_remote or most_files < 1 or (meta.index is None and meta.sharded):
        return None
    grid = _file_grid(meta)
    total = math.prod(grid)
    picks = min(most_files, total)
    picked = (np.arange(picks, dtype=np.int64) * 2 + 1) * total // (2 * picks)
    coords = np.stack(np.unravel_index(picked, grid), axis=1).tolist()
    return StoredSizes.together([_look(meta, place) for place in coords])


def _file_grid(meta: ArrayMeta) -> tuple[int, ...]:
    return tuple(max(1, -(-size // file)) for size, file in zip(meta.shape, meta.files, strict=True))


def _look(meta: ArrayMeta, file: list[int]) -> StoredSizes:
    """Return what one file says."""
    path = Path(meta.place, meta.keys.key(tuple(file)))
    inside = _parts_inside(meta, file)
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


def _parts_inside(meta: ArrayMeta, file: list[int]) -> FloatArray:
    """Which part of each chunk of a file lies inside the array; a shard at the edge has room for more chunks."""
    parts: FloatArray = np.ones(())
    for size, extent, chunk, place in zip(meta.shape, meta.files, meta.chunks, file, strict=True):
        begins = np.arange(place * extent, min((place + 1) * extent, size), chunk)
        parts = np.multiply.outer(parts, np.minimum(size - begins, chunk) / chunk)
    return parts


def _lengths(path: Path, meta: ArrayMeta, grid: tuple[int, ...]) -> IntArray:
    """Encoded bytes of the chunks that a file holds, -1 for those that were never written."""
    if meta.index is not None:
        index = read_index(path, meta.index)[tuple(slice(count) for count in grid)]
        lengths: IntArray = np.where(index[..., 0] >= 0, index[..., 1], -1)
        return lengths
    try:
        return np.full(grid, path.stat().st_size, dtype=np.int64)
    except FileNotFoundError:
        return np.full(grid, -1, dtype=np.int64)


# Decoded bytes per CPU second of one core: "none", "zstd-1", "zstd-3", "blosc-zstd" and "blosc-lz4" as `bench/crops.py`
# measured them on 16-bit images in chunks of 256 KiB; the others are their neighbours' or rough.
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
_SLOW = 0.35e9  # through zarr-python, whatever the codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Costs of one core.

    Attributes:
        origin: where the numbers come from, in words.
        decode: decoded bytes per second for each codec.
        chunk_s: seconds per chunk, whatever its size: planning, the read call, the start of a decoder.
        read_bytes_per_s: encoded bytes copied out of the page cache per second.
        cast_s: seconds per element cast into the batch.
    """

    origin: str = "built-in table (a core of an AMD EPYC server)"
    decode: Mapping[str, float] = field(default_factory=lambda: dict(_DECODE))
    chunk_s: float = 10e-6
    read_bytes_per_s: float = 8e9
    cast_s: float = 0.6e-9

    def decode_bytes_per_s(self, codec: str, *, fast: bool) -> float:
        """Return the speed of a codec; of a zstd level that is not listed, that of the nearest one below."""
        if codec in self.decode:
            return self.decode[codec]
        if not fast:
            return self.decode.get("slow path", _SLOW)
        if codec.startswith("zstd"):
            return self.decode["zstd-1" if codec.removeprefix("zstd").removeprefix("-") in {"0", "2"} else "zstd-3"]
        return self.decode.get(codec, self.decode["blosc-zstd"])


def rates_file() -> Path:
    """Return where this machine's own speeds are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home:
        folder = Path(home)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    else:
        folder = Path.home() / ".cache"
    return folder / "rankwise" / "rates.json"


def load_rates(path: Path | None = None) -> Rates:
    """Return the table, with this machine's own speeds in it where they were measured.

    Raises:
        ConfigError: the file of own speeds cannot be understood.
    """
    path = path or rates_file()
    try:
        kept = json.loads(path.read_text())
        own = {str(codec): float(speed) for codec, speed in kept["decode"].items()}
    except FileNotFoundError:
        return Rates()
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is no table of decoding speeds ({error}): delete it, or measure again") from error
    return replace(
        Rates(), decode={**_DECODE, **own}, origin=f"table measured here ({', '.join(sorted(own))}; else built-in)"
    )


def save_rate(codec: str, bytes_per_s: float, path: Path | None = None) -> Path:
    """Keep the speed of a codec on this machine; return the file."""
    path = path or rates_file()
    own: dict[str, float] = {}
    if path.exists():
        load_rates(path)  # says what is wrong with it
        own = json.loads(path.read_text())["decode"]
    own[codec] = bytes_per_s
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps({"decode": own}, indent=1))
    partial.replace(path)
    return path
