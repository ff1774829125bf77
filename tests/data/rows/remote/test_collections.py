"""Collections in an object store."""

from pathlib import Path

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.rows import DatasetCollection, Loader, OrderedLoader, RowSource, describe_rows, verify_rows
from rankwise.data.rows.samplers import RandomSampler
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.stores.small_rows import small_anndata

pytest.importorskip("obstore")
pytest.importorskip("moto")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A collection of two datasets, whose files are several chunks."""
    folder = tmp_path_factory.mktemp("cells") / "cells.zarr"
    parts = [small_anndata(120, seed=number) for number in range(2)]
    DatasetCollection(folder).add_adatas(parts, rng=0, dataset_size=150, n_obs_per_chunk=8, shard_size=32)
    return folder


@pytest.fixture
def url(folder, bucket, s3_port, s3_keys, monkeypatch):
    """A copy of it in the store, which the environment says how to reach."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        bucket.put(f"cells.zarr/{path.relative_to(folder).as_posix()}", path.read_bytes())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")
    for name, value in s3_keys.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    return "s3://bucket/cells.zarr"


def epoch(loader):
    """All that the steps of an epoch bring."""
    return [(batch.ids, batch["X"].toarray(), batch["obsm/pca"].copy(), batch["kind"].copy()) for (batch,) in loader]


def test_an_order_reads_the_same_rows_from_there(folder, url):
    """Byte for byte what it reads from the folder; one order serves both, and a position goes on in either."""
    fields = {"matrices": ("X", "obsm/pca"), "obs": ("kind",), "device": None}
    order = Order(folder, batch_size=32, balance="kind")
    with OrderedLoader(url, order=order, **fields) as there, OrderedLoader(folder, order=order, **fields) as here:
        for one, other in zip(epoch(there), epoch(here), strict=True):
            for got, wanted in zip(one, other, strict=True):
                np.testing.assert_array_equal(got, wanted)
        there.set_epoch(1)
        for number, (batch,) in enumerate(there, start=1):
            there.mark_done(batch.resume)
            if number == 3:
                break
        here.load_state_dict(there.state_dict())
        assert len(epoch(here)) == len(there) == 8 - 3
    assert Order(url, batch_size=32, balance="kind").recipe == order.recipe


def test_a_sampler_reads_the_same_rows_from_there(folder, url):
    """Matrix and observations; a position goes on too."""

    def loader(place):
        return Loader(place, batch_sampler=RandomSampler(8, 4, 16, rng=0), return_index=True)

    there, here = loader(url), loader(folder)
    for number, (one, other) in enumerate(zip(there, here, strict=True), start=1):
        np.testing.assert_array_equal(one["X"].toarray(), other["X"].toarray())
        np.testing.assert_array_equal(one["index"], other["index"])
        assert one["obs"].equals(other["obs"])
        if number == 4:
            break
    again = loader(folder)
    again.load_state_dict(there.state_dict())
    assert len(list(again)) == len(here) - 4


def test_what_is_gone_there_is_a_damaged_row(folder, url, bucket):
    """As of a folder: the rows of the file are named, with its URL, and may be left out."""
    lost = next(path for path in sorted(folder.glob("dataset_1/X/data/c/*")))
    bucket.delete(f"cells.zarr/{lost.relative_to(folder).as_posix()}")
    source = RowSource(url, threads=1)
    order = Order(source, batch_size=32)
    with pytest.raises(SampleError, match=r"s3://bucket/cells\.zarr/dataset_1"):
        list(OrderedLoader(source, order=order, device=None))
    skipping = OrderedLoader(source, order=order, device=None, on_bad_sample=240)
    num_rows = sum(len(batch) for (batch,) in skipping)
    assert 150 <= num_rows == 240 - skipping.stats.skipped < 240


def test_it_is_described_from_there(folder, url):
    """Reading metadata only; what it says is what it says of the folder."""
    here, there = describe_rows(str(folder)), describe_rows(url)
    assert there["num_rows"] == here["num_rows"] == 240
    for one, other in zip(there["datasets"], here["datasets"], strict=True):
        assert {**one, "place": ""} == {**other, "place": ""}


def test_nothing_is_written_there(tmp_path, monkeypatch):
    """A URL is no folder, and none of its name is made; what to do instead."""
    monkeypatch.chdir(tmp_path)
    store = zarr.storage.MemoryStore()
    places = ["s3://bucket/cells.zarr", zarr.open_group(store, mode="w", zarr_format=3)]
    for place in places:
        with pytest.raises(ConfigError, match=r"write to a folder and copy it there .* pass the URL itself"):
            DatasetCollection(place)
    with pytest.raises(ConfigError, match="verified in folders of a local file system, got s3://bucket"):
        verify_rows("s3://bucket/cells.zarr")
    assert not list(Path().iterdir())
