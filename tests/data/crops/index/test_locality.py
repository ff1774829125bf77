"""What the order of an index is for: chunks that are decoded once serve many crops. Counted, never timed."""

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline
from rankwise.world import World


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "volume.zarr"
    values = np.random.default_rng(1).integers(1, 60_000, (64, 128, 256)).astype("u2")
    zarr.create_array(path, data=values, chunks=(8, 8, 8), shards=(32, 64, 64))
    return path


def decoded_per_crop(index, order, cache):
    """Decoded chunks per crop of an epoch; the cache is small, as the volume is."""
    with IndexPipeline(index, order=order, world=World.single(), device=None, cache=cache) as pipeline:
        for _ in pipeline:
            pass
        return pipeline.stats.chunks_decoded / pipeline.stats.samples


@pytest.mark.parametrize("more", [{}, {"foreground": ("image", 0.5)}])
def test_a_neighbourhood_shares_chunks(volume, more):
    """Crops of one neighbourhood take at least half as many decoded chunks as independent ones, without any cache."""
    options = {"shape": (16, 32, 32), "num_random": 128, **more}
    alone, together = CropIndex(volume, **options), CropIndex(volume, neighbourhood=8, **options)
    apart = decoded_per_crop(alone, Order(alone, batch_size=16), 0)
    near = decoded_per_crop(together, Order(together, batch_size=16), 0)
    assert 2 * near <= apart


def test_aligned_crops_decode_no_chunk_in_part(volume):
    """Crops that begin at chunk borders decode what they hold and nothing else."""
    index = CropIndex(volume, shape=(16, 32, 32), num_random=64, align="chunk")
    assert decoded_per_crop(index, Order(index, batch_size=1), 0) == 32


def test_tiles_are_shuffled_where_their_chunks_are(volume):
    """An order by the index's regions decodes half as much of overlapping tiles as a global shuffle, cache alike."""
    index = CropIndex(volume, shape=(16, 32, 32), stride=(8, 16, 16), region_bytes=1 << 18)
    cache = 1 << 19
    local = decoded_per_crop(index, Order(index, batch_size=8, lanes=2, window=1), cache)
    everywhere = Order(index.num_samples, batch_size=8, fingerprint=index.fingerprint)
    assert 2 * local <= decoded_per_crop(index, everywhere, cache)
