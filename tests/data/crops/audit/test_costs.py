"""What a crop costs: predicted numbers against counted ones of real reads."""

import numpy as np
import pytest

from rankwise.data.crops.audit.costs import PAGE_BYTES, cost_of, mean_cost
from rankwise.data.crops.audit.stores import Rates, sample_sizes
from rankwise.data.store import BoxReader, BoxRequest, read_meta

CROP = (12, 20, 24)
NUM_CROPS = 400


def counts(paths, *, batch, aligned=False):
    """Chunks decoded, bytes read and bytes decoded per crop, counted over random crops that are really read."""
    metas = tuple(read_meta(path) for path in paths)
    rng = np.random.default_rng(7)
    room = np.array(metas[0].shape) - CROP
    found = []
    with BoxReader(cache=0, threads=1) as reader:
        out = np.zeros((batch, *CROP), dtype=np.float32)
        for _ in range(NUM_CROPS // batch):
            starts = rng.integers(0, room + 1, (batch, 3))
            if aligned:
                starts -= starts % metas[0].chunks
            which = rng.integers(0, len(metas), batch)
            plan = reader.plan(BoxRequest(arrays=metas, which=which, starts=starts, shape=CROP, dtype=out.dtype))
            [report] = reader.read([(plan, out)])
            assert report.valid.all()
            decoded = report.fast_chunks + report.slow_chunks
            assert decoded + report.fill_chunks == plan.num_chunks
            found.append((plan.num_chunks, plan.read_bytes, plan.decode_bytes))
    return np.sum(found, axis=0) / NUM_CROPS


def predicted(path, **options):
    meta = read_meta(path)
    return cost_of(meta, CROP, rates=Rates(), sizes=sample_sizes(meta, most_files=4), **options)


@pytest.mark.parametrize("shards", [(16, 32, 32), None], ids=["sharded", "unsharded"])
def test_single_crops(write, shards):
    """Chunks, read and decoded bytes per crop are within 5 % of what reads count."""
    path = write(shards=shards)
    chunks, read, decoded = counts([path], batch=1)
    cost = predicted(path)
    assert chunks == pytest.approx(cost.chunks, rel=0.05)
    assert decoded == pytest.approx(cost.decode_bytes, rel=0.05)
    # the prediction counts whole pages: n bytes at a random offset lie in pages of n + 4095 bytes, on average
    assert read == pytest.approx(cost.read_bytes - cost.chunks * (PAGE_BYTES - 1), rel=0.05)


def test_shared_chunks_of_a_batch(write):
    """Crops of one batch share chunks; they are predicted to be decoded once, within 5 % of the count."""
    paths = [write(f"{name}.zarr") for name in "ab"]
    chunks, _, decoded = counts(paths, batch=8)
    cost = predicted(paths[0], batch=8, num_arrays=2)
    assert cost.chunks_in_batch < 0.8 * cost.chunks
    assert chunks == pytest.approx(cost.chunks_in_batch, rel=0.05)
    assert decoded == pytest.approx(cost.decode_bytes, rel=0.05)


def test_aligned_crops(write):
    """Origins on the grid of chunks touch the fewest chunks, exactly."""
    path = write()
    chunks, _, _ = counts([path], batch=1, aligned=True)
    assert chunks == predicted(path, aligned=True).chunks == 2 * 2 * 2


def test_shared_chunks_of_aligned_crops(write):
    """Also crops on the grid share chunks, more of them."""
    path = write(shape=(43, 51, 71))  # every origin on the grid is as likely as any other
    chunks, _, _ = counts([path], batch=4, aligned=True)
    cost = predicted(path, aligned=True, batch=4)
    assert cost.chunks_in_batch < cost.chunks
    assert chunks == pytest.approx(cost.chunks_in_batch, rel=0.05)


def test_chunks_that_were_never_written(write):
    """Missing chunks are neither read nor decoded, and that is predicted from the sampled indexes."""
    data = np.zeros((40, 48, 56), dtype=np.uint16)
    data[:16] = 7
    path = write(data=data, fill_value=0, config={"write_empty_chunks": False}, shards=(40, 48, 64))
    cost = predicted(path)
    assert cost.decode_bytes == pytest.approx(cost.chunks * 8 * 16 * 16 * 2 * 2 / 5)


def test_without_sizes_nothing_is_made_up(write):
    """From metadata alone the bytes that are read are unknown; the waste of decoding is not."""
    meta = read_meta(write())
    cost = cost_of(meta, CROP, rates=Rates())
    assert cost.read_bytes is None
    assert cost.read_amplification is None
    assert cost.decode_waste > 1


def test_a_crop_longer_than_the_array(write):
    """It is cut to the array: all of the axis is read."""
    meta = read_meta(write())
    cost = cost_of(meta, (400, 16, 16), rates=Rates(), aligned=True)
    assert cost.chunks == 5


def test_mean(write):
    """The mean of equal costs is that cost; what is unknown of one is unknown of all."""
    meta = read_meta(write())
    known, unknown = predicted(meta.place), cost_of(meta, CROP, rates=Rates())
    assert mean_cost([known, known]) == known
    assert mean_cost([known, unknown]).read_bytes is None
