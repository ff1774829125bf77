"""The one name for both kinds of pipelines, and what it refuses."""

import inspect
import pydoc

import numpy as np
import pytest
import zarr

import rankwise
from rankwise.data.crops import Config, CropIndex, Pipeline
from rankwise.data.crops.stream.pipeline import StreamPipeline
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


def test_the_signature_says_what_it_takes(index):
    """`help` and editors see every argument by name with its default, and each of them is taken."""
    parameters = inspect.signature(Pipeline).parameters
    assert all(each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD} for each in parameters.values())
    assert {"source", "order", "micro_batch", "device", "cache", "transform", "on_bad_sample"} <= parameters.keys()
    defaults = {name: each.default for name, each in parameters.items() if name not in {"source", "order"}}
    with Pipeline(index, **{**defaults, "device": None}, order=rankwise.Order(index, batch_size=2)) as pipeline:
        assert len(pipeline) == 2
    text = pydoc.render_doc(Pipeline)
    assert "*args" not in text.split("|", maxsplit=1)[0]
    assert "micro_batch" in text
    assert list(inspect.signature(StreamPipeline).parameters)[-1] == "config"


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
