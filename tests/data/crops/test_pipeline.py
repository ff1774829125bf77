"""The one name for both kinds of pipelines, and what it refuses."""

import numpy as np
import pytest
import zarr

import rankwise
from rankwise.data.crops import Config, CropIndex, Pipeline
from rankwise.errors import ConfigError


@pytest.fixture
def index(tmp_path):
    zarr.create_array(str(tmp_path / "v.zarr"), data=np.zeros((8, 8), dtype="u1"), chunks=(4, 4))
    return CropIndex(str(tmp_path / "v.zarr"), shape=(4, 4))


def test_both_kinds_are_pipelines(index):
    """Either way the result is a Pipeline."""
    config = Config(samples_per_batch=1, sample_shape=(4, 4))
    for pipeline in (Pipeline(config), Pipeline(index, order=rankwise.Order(index, batch_size=2), device=None)):
        with pipeline:
            assert isinstance(pipeline, Pipeline)


def test_two_batch_sizes_show_the_arithmetic(index):
    """A batch size per rank beside one of all ranks is refused, with both counted."""
    order = rankwise.Order(index, batch_size=4)
    said = r"samples_per_batch=3 counts the crops of one rank \(on 1 rank 3 per step\).*that is 4 per step"
    with pytest.raises(ConfigError, match=said):
        Pipeline(Config(samples_per_batch=3, sample_shape=(4, 4)), order=order)
    with pytest.raises(ConfigError, match=said):
        Pipeline(index, order=order, samples_per_batch=3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Pipeline, r"wants order=Order\(index, batch_size="),
        (lambda _: Pipeline(), "wants a Config, for samples that are pushed, or a CropIndex"),
        (lambda _: Pipeline("v.zarr"), r"got 'v.zarr'. The crops of stored arrays are CropIndex\("),
        (
            lambda _: Pipeline(Config(samples_per_batch=1, sample_shape=(4, 4)), device="cpu"),
            "all its settings from the Config, got also device",
        ),
    ],
)
def test_what_is_missing_is_told(index, make, said):
    """Every wrong beginning says what to write instead."""
    with pytest.raises(ConfigError, match=said):
        make(index)
