"""The two pipelines: what each takes, and what it says to who came for the other."""

import inspect

import numpy as np
import pytest
import zarr

import rankwise
from rankwise.data.crops import Config, CropIndex, IndexPipeline, Pipeline
from rankwise.errors import ConfigError

CONFIG = Config(samples_per_batch=3, sample_shape=(4, 4))


@pytest.fixture
def index(tmp_path):
    zarr.create_array(str(tmp_path / "v.zarr"), data=np.zeros((8, 8), dtype="u1"), chunks=(4, 4))
    return CropIndex(str(tmp_path / "v.zarr"), shape=(4, 4))


def test_a_constructor_returns_its_own_class(index):
    """Each is what its name says, whatever it is given."""
    with Pipeline(CONFIG) as pushed, IndexPipeline(index, order=rankwise.Order(index, batch_size=2)) as ordered:
        assert type(pushed) is Pipeline
        assert isinstance(ordered, IndexPipeline)
    assert next(iter(inspect.signature(Pipeline).parameters)) == "config"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Pipeline, r"got CropIndex\(.*use IndexPipeline\(CropIndex\(URIs, shape=...\), order=Order\("),
        (
            lambda index: Pipeline(CONFIG, order=rankwise.Order(index, batch_size=2)),
            "and an order. For the crops of an index",
        ),
        (lambda _: Pipeline("v.zarr"), "needs a Config, for pushed samples, got 'v.zarr'"),
        (
            lambda index: IndexPipeline(CONFIG, order=rankwise.Order(index, batch_size=2)),
            r"needs a CropIndex, got Config\(.*use Pipeline\(Config",
        ),
    ],
)
def test_what_belongs_to_the_other_is_refused(index, make, said):
    """Every wrong beginning says what to write instead."""
    with pytest.raises(ConfigError, match=said):
        make(index)
