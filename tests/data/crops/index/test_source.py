"""The crops of an index as a source."""

import warnings

import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline


@pytest.fixture
def empty(tmp_path):
    """An array of which nothing was ever written."""
    path = tmp_path / "empty.zarr"
    zarr.create_array(path, shape=(16, 8), chunks=(4, 4), shards=(8, 8), dtype="f4", fill_value="NaN")
    return path


def test_a_batch_of_nothing_but_fill_is_said_once(empty):
    """Whole batches where nothing was written are seldom wanted: one warning, with the image; the fill is counted."""
    index = CropIndex(empty, shape=(4, 4))
    with IndexPipeline(index, order=Order(index, batch_size=2), device=None) as pipeline:
        with pytest.warns(UserWarning, match=r"all 2 crops of a batch are where nothing .*'empty.zarr'") as caught:
            seen = [np.isnan(batch["image"]).all() for step in pipeline for batch in step]
        assert seen == [True] * 4
        assert len(caught) == 1
        assert pipeline.stats.fill_chunks == len(index)


def test_some_values_are_enough(empty):
    """A batch that holds a chunk that was written warns of nothing; nor does one of labels alone, which reads none."""
    labelled = CropIndex(empty, shape=(4, 4), labels={"scan": lambda image: len(image.name)})
    with warnings.catch_warnings(), IndexPipeline(labelled, order=Order(8, batch_size=2), fields=["scan"]) as pipeline:
        warnings.simplefilter("error")
        assert [batch["scan"].tolist() for (batch,) in pipeline] == [[10, 10]] * 4
    zarr.open_array(empty, mode="r+")[:8] = 1.0
    index = CropIndex(empty, shape=(16, 4))
    with warnings.catch_warnings(), IndexPipeline(index, order=Order(index, batch_size=2), device=None) as pipeline:
        warnings.simplefilter("error")
        assert sum(len(batch.ids) for step in pipeline for batch in step) == 2


@pytest.mark.parametrize(("fields", "said"), [(["nothing"], "asked for"), ([], "asked for")])
def test_unknown_fields_are_refused(empty, fields, said):
    """With the ones there are."""
    from rankwise.data.crops.index.pipeline import CropSource
    from rankwise.errors import ConfigError

    with CropSource(CropIndex(empty, shape=(4, 4))) as source, pytest.raises(ConfigError, match=said):
        source.select(fields)


@pytest.mark.parametrize(("codec", "slow"), [("zstd", 0), ("gzip", 8)])
def test_statistics_tell_the_slow_way(tmp_path, codec, slow):
    """Chunks that only zarr-python decodes are counted beside all that were decoded."""
    from zarr.codecs import GzipCodec, ZstdCodec

    path = tmp_path / "a.zarr"
    compressors = {"zstd": ZstdCodec(), "gzip": GzipCodec()}[codec]
    zarr.create_array(path, data=np.ones((16, 8), "u1"), chunks=(4, 4), compressors=compressors)
    index = CropIndex(path, shape=(4, 4))
    with IndexPipeline(index, order=Order(index, batch_size=2), device=None) as pipeline:
        assert len(list(pipeline)) == 4
        assert (pipeline.stats.chunks_decoded, pipeline.stats.slow_chunks) == (8, slow)
