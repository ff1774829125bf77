"""Random arrays as zarr-python writes them: shapes, grids, codecs, dtypes, fill values and missing chunks."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rankwise.data.contract import DType, NDArray
from rankwise.testing.stores.any_codecs import v2_codecs, v3_chain

DTYPES = tuple(map(np.dtype, ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")))
_KEYS = (("default", "/"), ("default", "."), ("v2", "."), ("v2", "/"))
_LONGEST = {1: 60, 2: 18, 3: 10, 4: 6}


class UnwritableError(Exception):
    """zarr-python itself cannot write such an array."""


def write_any(rng: Random, root: Path, *, ndim: int, dtypes: tuple[DType, ...] = DTYPES) -> None:
    """Write an array; some of its chunks may be missing.

    Args:
        rng: source of all random choices.
        root: folder of the array; must not exist.
        ndim: number of axes, 1 to 4.
        dtypes: dtypes to choose from.

    Raises:
        UnwritableError: zarr-python refuses the drawn array.
    """
    import zarr

    dtype = rng.choice(dtypes)
    shape = tuple(rng.randint(1, _LONGEST[ndim]) for _ in range(ndim))
    chunks = tuple(rng.randint(1, max(1, size // rng.choice((1, 2, 3)))) for size in shape)
    plain = np.random.default_rng(rng.getrandbits(32))
    try:
        make = _options_v2 if rng.random() < 0.25 else _options_v3
        options, tame = make(rng, dtype, chunks)
        array = zarr.create_array(root, shape=shape, fill_value=any_fill(rng, dtype, options), **options)
        _fill(rng, array, any_values(rng, plain, dtype, shape, tame=tame))
    except Exception as error:  # codecs raise any type
        raise UnwritableError(f"{type(error).__name__}: {error}") from error
    _delete_chunks(rng, root)


def any_fill(rng: Random, dtype: DType, options: dict[str, Any] | None = None) -> Any:
    """Return a fill value of a dtype, sometimes an extreme one; None if Zarr version 2 allows it."""
    if options is not None and options.get("zarr_format") == 2 and rng.random() < 0.3:
        return None
    if dtype.kind == "b":
        return rng.random() < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return dtype.type(rng.choice((0, 1, 7, int(info.min), int(info.max))))
    real = [rng.choice((0.0, -0.0, 1.5, math.nan, math.inf, -math.inf)) for _ in range(2)]
    return dtype.type(complex(*real) if dtype.kind == "c" else real[0])


def any_values(rng: Random, plain: np.random.Generator, dtype: DType, shape: tuple[int, ...], *, tame: bool) -> NDArray:
    """Return elements: small numbers if `tame`, else any bits."""
    small: NDArray = plain.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    if tame or dtype.kind == "b" or rng.random() < 0.4:
        return small
    if rng.random() < 0.6:
        words = np.frombuffer(plain.bytes(math.prod(shape) * dtype.itemsize), dtype=dtype)
        return words.reshape(shape).copy()
    special = np.array([any_fill(rng, dtype) for _ in range(4)], dtype=dtype)
    return np.where(plain.random(shape) < 0.3, special[plain.integers(0, 4, shape)], small)


def _options_v2(rng: Random, dtype: DType, chunks: tuple[int, ...]) -> tuple[dict[str, Any], bool]:
    filters, compressor, tame = v2_codecs(rng, dtype)
    return {
        "zarr_format": 2,
        "chunks": chunks,
        "dtype": dtype.newbyteorder(">" if rng.random() < 0.25 else "<"),
        "order": rng.choice("CCCF"),
        "filters": filters,
        "compressors": compressor,
        "chunk_key_encoding": {"name": "v2", "separator": rng.choice("./")},
    }, tame


def _options_v3(rng: Random, dtype: DType, chunks: tuple[int, ...]) -> tuple[dict[str, Any], bool]:
    outer, filters, serializer, compressors, tame = v3_chain(rng, dtype, chunks)
    name, separator = rng.choice(_KEYS)
    return {
        "chunks": outer,
        "dtype": dtype,
        "filters": filters,
        "serializer": serializer,
        "compressors": compressors,
        "chunk_key_encoding": {"name": name, "separator": separator},
    }, tame


def _fill(rng: Random, array: Any, values: NDArray) -> None:
    """Write the whole array, a part, or nothing."""
    how = rng.random()
    if how < 0.6:
        array[...] = values
    elif how < 0.9:
        region = tuple(slice(rng.randint(0, size - 1), None) for size in values.shape)
        array[region] = values[region]


def _delete_chunks(rng: Random, root: Path) -> None:
    """Delete some of the chunk files."""
    if rng.random() < 0.3:
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            if file.name not in ("zarr.json", ".zarray", ".zattrs") and rng.random() < 0.3:
                file.unlink()
