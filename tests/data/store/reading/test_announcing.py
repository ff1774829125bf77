"""Arrays that take the slower way are named once."""

import logging

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.data.store.reading import announcing


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr(announcing, "_said", set())


def plan(path):
    array = read_meta(path)
    whole = BoxRequest(
        arrays=(array,),
        which=np.zeros(1, np.int64),
        starts=np.zeros((1, 2), np.int64),
        shape=array.shape,
        dtype=array.dtype,
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
