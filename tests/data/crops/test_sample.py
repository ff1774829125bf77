"""`Sample`: boxes in every form that users write them in, one canonical form inside."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwise.data.crops import Crop, InvalidArgument, Sample, Take


@pytest.mark.parametrize(
    "aabb",
    [
        np.s_[0:4, 5:9],
        np.s_[:4, 5:9],
        ((0, 4), (5, 9)),
        [(0, 4), [5, 9]],
        [slice(0, 4), (5, 9)],
        np.array([[0, 4], [5, 9]]),
        torch.tensor([[0, 4], [5, 9]]),
    ],
)
def test_boxes_have_one_form(aabb):
    """Slices, pairs, arrays: the same box is the same sample, and hashes alike."""
    sample = Sample("a.zarr", aabb)
    assert sample.aabb == ((0, 4), (5, 9))
    assert sample.shape == (4, 4)
    assert sample == Sample("a.zarr", ((0, 4), (5, 9)))
    assert hash(sample) == hash(Sample(Path("a.zarr"), ((0, 4), (5, 9))))


@pytest.mark.parametrize(
    ("aabb", "message"),
    [
        (5, "one .start, stop. or slice"),
        ((3, 4), "axis 0 .* is 3"),
        ("0:4", "one .start, stop. or slice"),
        ((), "at least one axis"),
        (np.s_[4:, 0:2], "axis 0 .* needs a stop"),
        (np.s_[0:8:2,], "no step"),
        (((4, 4),), "runs from 4 to 4"),
        (((0.5, 4),), "integers"),
        (((0, 4, 8),), "pass .start, stop."),
    ],
)
def test_what_is_no_box_is_refused(aabb, message):
    """The message names the axis, what came and what is wanted; the error is a ValueError too."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        Sample("a.zarr", aabb)
    assert isinstance(caught.value, ValueError)


def test_boxes_may_begin_before_the_array():
    """Negative starts are boxes that stick out (for pad=), not counts from the end."""
    assert Sample("a", ((-2, 2),)).aabb == ((-2, 2),)


def test_labels_are_plain_and_meta_is_anything():
    """Labels of any array type hash; what travels as meta does not decide who a sample is."""
    box = np.s_[0:4,]
    sample = Sample("a", box, label=np.array([1, 0], "u1"), meta={"who": []}, also={"seg": Crop("b", box)})
    assert sample.label == (1, 0)
    assert sample.also == (("seg", Crop("b", box)),)
    assert sample == Sample("a", box, label=torch.tensor([1, 0]), meta=None, also=[("seg", Crop("b", box))])
    assert hash(sample) == hash(Sample("a", box, label=[1, 0], also={"seg": Crop("b", box)}))
    assert sample != Sample("a", box, label=[0, 1], also={"seg": Crop("b", box)})
    assert Sample("a", box, label=np.float32(2.5)).label == 2.5
    assert pickle.loads(pickle.dumps(sample)) == sample


@pytest.mark.parametrize(
    "wrong",
    [
        {"uri": 5, "aabb": np.s_[0:4,]},
        {"uri": "a", "aabb": np.s_[0:4,], "also": {"seg": "b"}},
        {"uri": "a", "aabb": np.s_[0:4,], "channel": ()},
        {"uri": "a", "aabb": np.s_[0:4,], "level": 1.5},
        {"uri": "a", "aabb": np.s_[0:4,], "key": "seven"},
    ],
)
def test_other_values_are_refused(wrong):
    """A sample that cannot be read is refused where it is made."""
    with pytest.raises(InvalidArgument):
        Sample(**wrong)


def test_channels_and_levels_are_part_of_a_crop():
    """One channel, several, a level: all of it is in the crop that is read."""
    sample = Sample("a", np.s_[0:4,], level=2, channel=["dapi", 3], key=7)
    assert sample.crop == Crop("a", np.s_[0:4,], level=2, channel=("dapi", 3))
    assert Crop("a", np.s_[0:4,], channel=np.int64(3)).channel == 3
    assert Crop("a", np.s_[0:4,], channel=np.arange(2)).channel == (0, 1)
    assert Take(channel=np.int64(3)).channel == 3
    assert Take(channel=np.arange(2)).channel == Take(channel=[0, 1]).channel
    assert sample.key == 7


@pytest.mark.parametrize("channel", [1.5, [0.5], [None]])
def test_what_is_no_channel(channel):
    """A fraction is neither a name nor a number."""
    for make in (lambda: Take(channel=channel), lambda: Crop("a", ((0, 4),), channel=channel)):
        with pytest.raises(InvalidArgument, match="channel= must be names or whole numbers"):
            make()
