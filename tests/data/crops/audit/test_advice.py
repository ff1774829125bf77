"""Advice about chunks and shards, and warnings."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.crops.audit.costs import cost_of
from rankwise.data.crops.audit.judgement import advise, better_layout, warn
from rankwise.data.crops.audit.stores import Rates
from rankwise.data.store import ChunkCodec, read_meta

KIB, MIB = 2**10, 2**20


@pytest.fixture
def base(write):
    """Metadata of an array, to be varied without writing it."""
    return read_meta(write())


def stored(base, *, shape=(512, 512, 512), chunks=(32, 64, 64), files=(256, 256, 512), names=None, **more):
    names = names or (None,) * len(shape)
    return replace(base, shape=shape, chunks=chunks, files=files, dimension_names=names, **more)


def layout_for(meta, crop):
    now = cost_of(meta, crop, rates=Rates())
    return now, better_layout(meta, crop, now, Rates(), None)


@given(st.lists(st.integers(1, 300), min_size=3, max_size=3), st.sampled_from([1, 2, 4, 8]))
def test_chunks_have_a_good_size(crop, itemsize):
    """64 KiB to 1 MiB (or all of a small crop), never longer than the crop along any axis."""
    meta = VARIED[itemsize]
    _, layout = layout_for(meta, tuple(crop))
    num_bytes = math.prod(layout.chunks) * itemsize
    powers = math.prod(2 ** (extent.bit_length() - 1) for extent in crop) * itemsize
    assert min(64 * KIB, powers) <= num_bytes <= MIB
    assert all(chunk <= extent for chunk, extent in zip(layout.chunks, crop, strict=True))


@pytest.fixture(autouse=True, scope="module")
def varied(tmp_path_factory):
    """One array of each size of elements."""
    import numpy as np
    import zarr

    for itemsize in (1, 2, 4, 8):
        path = tmp_path_factory.mktemp("varied") / "a"
        zarr.create_array(path, shape=(8, 8, 8), chunks=(8, 8, 8), dtype=np.dtype(f"u{itemsize}"))
        VARIED[itemsize] = replace(read_meta(path), shape=(1024, 1024, 1024))


VARIED = {}


def test_time_and_channels_stay_flat(base):
    """Chunks and crops along time and channels do not mix: one element, by name, or else along all but 3 axes."""
    for names in (("t", "c", "z", "y", "x"), None):
        meta = stored(base, shape=(9, 3, 64, 999, 999), chunks=(3, 3, 4, 99, 99), files=(3, 3, 4, 99, 99), names=names)
        _, layout = layout_for(meta, (1, 2, 16, 256, 256))
        assert layout.chunks[:2] == (1, 1)
        assert math.prod(layout.chunks) > 1


def test_shards_of_a_gigabyte(base):
    """Shards are whole numbers of chunks and hold at least 1 GB, or the whole array."""
    large = stored(base, shape=(5000, 4096, 4096))
    _, layout = layout_for(large, (64, 128, 128))
    assert math.prod(layout.shards) * 2 >= 10**9
    assert all(shard % chunk == 0 for shard, chunk in zip(layout.shards, layout.chunks, strict=True))
    small = stored(base, shape=(100, 200, 300))
    _, layout = layout_for(small, (64, 128, 128))
    assert all(shard >= size for shard, size in zip(layout.shards, small.shape, strict=True))


def test_a_good_layout_needs_no_advice(base):
    """Crops of several chunks out of large shards: only aligning is left to say."""
    meta = stored(base, shape=(4096, 4096, 4096), chunks=(32, 32, 64), files=(1024, 1024, 1024))
    now, layout = layout_for(meta, (128, 128, 128))
    assert [line.split()[0] for line in advise(meta, now, layout, None)] == ["crop"]
    assert warn(meta, (128, 128, 128), now, num_arrays=1) == []


def test_advice_pays(base):
    """Whole planes as chunks: the advice is cheaper by its own estimate, and decodes less."""
    meta = stored(base, chunks=(1, 512, 512), files=(1, 512, 512), index=None)
    crop = (32, 64, 64)
    now, layout = layout_for(meta, crop)
    then = cost_of(replace(meta, chunks=layout.chunks, files=layout.shards), crop, rates=Rates())
    assert layout.decode_waste == then.decode_waste < now.decode_waste / 5
    assert now.cpu_s / then.cpu_s == pytest.approx(layout.speedup)
    said = " ".join(advise(meta, now, layout, None))
    assert "write chunks of" in said
    assert "write shards of" in said


def test_warnings(base):
    """What makes crops slow is named, with the axis."""
    meta = stored(
        base, chunks=(1, 512, 512), files=(1, 512, 512), index=None, codec=ChunkCodec(kind="zarr", why="gzip")
    )
    said = "\n".join(warn(meta, (600, 64, 64), cost_of(meta, (600, 64, 64), rates=Rates()), num_arrays=40))
    for words in ("zarr-python decodes this array (gzip)", "axis 1 (512), axis 2 (512)", "needs pad=", "20,480 files"):
        assert words in said
    assert "one crop opens 512 files" in said
