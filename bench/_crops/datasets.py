"""The data sets: NGFF 0.5 images of random values in sharded Zarr, one store per codec, kept between runs.

Layout, seeds and values follow damacy's benchmark: one single-scale image ``z%03d/scale0/image`` per array, from
``numpy.random.default_rng(42 + array)``. "noise" has uniform values where a second uniform draw is below one half, else
0. "blobs" resembles microscopy: a smooth field with shot noise.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

SEED = 42
CODECS = ("zstd-1", "zstd-3", "blosc-zstd", "blosc-lz4", "none")
_BLOSC_LEVEL = 3
_ENTROPY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of a data set and of what is read from it by default."""

    num_arrays: int
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    crops: tuple[tuple[int, ...], ...]
    batch: int


SCALES = {
    "tiny": Scale(
        num_arrays=2, shape=(64, 96, 96), chunk=(8, 32, 32), shard=(32, 64, 96), crops=((24, 48, 48),), batch=4
    ),
    "scaled": Scale(
        num_arrays=8,
        shape=(256, 256, 256),
        chunk=(32, 64, 64),
        shard=(128, 128, 256),
        crops=((128, 128, 128), (16, 128, 128)),
        batch=8,
    ),
    "full": Scale(
        num_arrays=8,
        shape=(512, 512, 512),
        chunk=(32, 64, 64),
        shard=(256, 256, 512),
        crops=((128, 128, 128), (64, 256, 256), (16, 128, 128)),
        batch=8,
    ),
}


def arrays_of(folder: Path, scale_name: str, values: str, codec: str, dtype: str = "uint16") -> list[str]:
    """Return the paths of the arrays of a data set, which is written first if it is not there yet."""
    scale = SCALES[scale_name]
    store = folder / f"{scale_name}-{values}-{dtype}-{codec}.zarr"
    wanted = json.loads(json.dumps({**asdict(scale), "values": values, "codec": codec, "dtype": dtype, "made": 1}))
    for unread in ("crops", "batch"):
        del wanted[unread]
    finished = store / "finished.json"
    if not finished.exists() or json.loads(finished.read_text()) != wanted:
        shutil.rmtree(store, ignore_errors=True)
        _write(store, scale, values, codec, dtype)
        finished.write_text(json.dumps(wanted))
    return [str(store / f"z{index:03d}" / "scale0" / "image") for index in range(scale.num_arrays)]


def stored_bytes(arrays: list[str]) -> int:
    """Bytes that arrays take on disk."""
    return sum(file.stat().st_size for array in arrays for file in Path(array).rglob("*") if file.is_file())


def raw_bytes(scale_name: str, dtype: str = "uint16") -> int:
    """Bytes of a data set without compression."""
    scale = SCALES[scale_name]
    return scale.num_arrays * math.prod(scale.shape) * np.dtype(dtype).itemsize


def _write(store: Path, scale: Scale, values: str, codec: str, dtype: str) -> None:
    import zarr

    root = zarr.open_group(store, mode="w", zarr_format=3)
    make = {"noise": _noise, "blobs": _blobs}[values]
    for index in range(scale.num_arrays):
        image = root.create_group(f"z{index:03d}")
        image.attrs["ome"] = _multiscales()
        array = image.create_group("scale0").create_array(
            "image",
            shape=scale.shape,
            chunks=scale.chunk,
            shards=scale.shard,
            dtype=dtype,
            compressors=_codec(codec),
            dimension_names=("z", "y", "x"),
        )
        array[:] = make(scale.shape, np.dtype(dtype), np.random.default_rng(SEED + index))


def _codec(name: str):
    from zarr.codecs import BloscCodec, ZstdCodec

    kind, _, detail = name.partition("-")
    if kind == "zstd":
        return ZstdCodec(level=int(detail), checksum=False)
    if kind == "blosc":
        return BloscCodec(cname=detail, clevel=_BLOSC_LEVEL, shuffle="shuffle")
    return None


def _multiscales() -> dict[str, object]:
    scale = [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    datasets = [{"path": "scale0/image", "coordinateTransformations": scale}]
    return {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}


def _noise(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    values = rng.integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    values[rng.random(shape, dtype=np.float32) >= _ENTROPY] = 0
    return values


def _blobs(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    coarse = rng.standard_normal([-(-extent // 16) + 1 for extent in shape]).astype(np.float32)
    for axis, extent in enumerate(shape):
        places = np.arange(extent, dtype=np.float32) / 16
        low = places.astype(np.int64)
        share = (places - low).reshape([-1 if other == axis else 1 for other in range(len(shape))])
        coarse = coarse.take(low, axis) * (1 - share) + coarse.take(low + 1, axis) * share
    light = 100 + 400 * np.clip(coarse, 0, None) ** 2
    light += np.sqrt(light) * rng.standard_normal(shape, dtype=np.float32)
    return np.clip(light, 0, np.iinfo(dtype).max).astype(dtype)
