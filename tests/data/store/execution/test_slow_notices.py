"""Arrays that take the slower way, or lose something of their values, are named once."""

import logging

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.data.store.execution import failures


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr(failures, "_said", set())
    monkeypatch.setattr(failures, "_judged", set())


def plan(path, dtype=None, *, scale=None):
    array = read_meta(path)
    whole = BoxRequest(
        arrays=(array,),
        which=np.zeros(1, np.int64),
        starts=np.zeros((1, 2), np.int64),
        shape=array.shape,
        dtype=np.dtype(dtype or array.dtype),
        scale=None if scale is None else np.array([scale]),
        offset=None if scale is None else np.zeros(1),
    )
    with BoxReader(cache=0, threads=1) as reader:
        reader.plan(whole)


def write(path, codec, dtype="u2"):
    zarr.create_array(path, shape=(4, 4), chunks=(2, 2), dtype=dtype, compressors=codec)
    return str(path)


def test_each_kind_of_slow_array_is_named_once(tmp_path, caplog):
    """The first array of a kind with its codecs, before anything is read; further ones and fast ones are not."""
    paths = [write(tmp_path / f"{n}.zarr", codec) for n, codec in enumerate([ZstdCodec(), GzipCodec(), GzipCodec()])]
    with caplog.at_level(logging.WARNING, "rankwise"):
        for path in (*paths, *paths):
            plan(path)
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(f"{paths[1]} is decoded by zarr-python")
    assert "kernel: gzip" in text


def test_only_the_main_rank_says_it(tmp_path, caplog, monkeypatch):
    """Of several ranks one speaks."""
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "rankwise"):
        plan(write(tmp_path / "a.zarr", GzipCodec()))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("stored", "wanted", "loss"),
    [
        ("u2", "f2", "values beyond 65,504 become infinite"),
        ("f4", "f2", "values beyond 65,504 become infinite"),
        ("f4", "i4", "fractions are truncated towards zero"),
        ("i4", "?", "every element except 0 becomes True"),
        ("u4", "f4", "integers beyond 16,777,216 are rounded"),
        ("i8", "f8", "integers beyond 9,007,199,254,740,992 are rounded"),
        ("u2", "f4", ""),
        ("i2", "f2", ""),
        ("f8", "f4", ""),
        ("i8", "u1", ""),  # checked value by value: an error
    ],
)
def test_what_a_conversion_may_lose_is_said_once(tmp_path, caplog, stored, wanted, loss):
    """Judged by the dtypes, so that no element costs more; the place, both dtypes and the mend are named."""
    paths = [write(tmp_path / f"{n}.zarr", None, stored) for n in range(2)]
    with caplog.at_level(logging.WARNING, "rankwise"):
        for path in (*paths, *paths):
            plan(path, wanted)
            plan(path)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(loss)
    for text in said:
        assert text.startswith(f"{paths[0]} holds {np.dtype(stored)} and is read as {np.dtype(wanted)}: {loss}. ")


def test_scaled_elements_are_not_judged(tmp_path, caplog):
    """Nobody expects stored numbers of them."""
    with caplog.at_level(logging.WARNING, "rankwise"):
        plan(write(tmp_path / "a.zarr", None), "f2", scale=1 / 65535)
    assert caplog.records == []
