"""Collated batches as trees."""

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch

from rankwise.data.samples.dataset_batch import first_twice, map_tree, move_tree, no_rows
from rankwise.errors import ConfigError

Pair = namedtuple("Pair", "a b")  # noqa: PYI024


def test_containers_keep_their_kind():
    """Dicts, lists, tuples and named tuples are rebuilt as what they were; a defaultdict keeps its default."""
    tree = OrderedDict(x=[1, (2, 3)], y=Pair(4, 5))
    doubled = map_tree(lambda leaf: 2 * leaf, tree)
    assert doubled == OrderedDict(x=[2, (4, 6)], y=Pair(8, 10))
    assert type(doubled) is OrderedDict
    assert type(doubled["y"]) is Pair
    counts = map_tree(lambda leaf: 2 * leaf, defaultdict(list, x=1))
    assert counts == {"x": 2}
    assert counts["new"] == []
    most = torch.zeros(2, 2).max(dim=1)  # of torch's own kind of tuple
    assert type(move_tree(most, "cpu", non_blocking=False)) is type(most)


def test_moving_leaves_what_has_no_device():
    """Tensors move, texts and arrays stay as they are."""
    moved = move_tree({"x": torch.ones(2), "y": "text", "z": np.ones(1)}, "meta", non_blocking=False)
    assert moved["x"].device.type == "meta"
    assert moved["y"] == "text"
    assert isinstance(moved["z"], np.ndarray)


def test_no_rows_keep_shapes_and_kinds():
    """Zero samples of a batch have its structure, with an empty batch axis."""
    batch = {"x": torch.ones(3, 2), "n": np.ones((3, 4)), "t": ["a", "b"], "p": Pair(torch.ones(3), None)}
    cut = no_rows(batch | {"of_tuples": [torch.ones(2), ("a", "b")]})  # torch collates texts of tuples to a tuple
    assert cut["x"].shape == (0, 2)
    assert cut["n"].shape == (0, 4)
    assert cut["t"] == []
    assert cut["p"].a.shape == (0,)
    assert cut["p"].b is None
    assert cut["of_tuples"][1] == ()
    with pytest.raises(ConfigError):
        no_rows(Pair("two", "texts"))


@pytest.mark.parametrize("leaf", [3, torch.tensor(1.0), "text"])
def test_what_has_no_batch_axis_is_refused(leaf):
    """A number, a tensor without axes or a single text cannot be cut; the message says how to go on."""
    with pytest.raises(ConfigError, match="zero samples cannot be cut"):
        no_rows({"x": leaf})


def test_first_twice_keeps_the_first_sample():
    """Each leaf with a batch axis holds its first sample twice, in memory of its own; texts too."""
    images = torch.arange(6.0).reshape(3, 2)
    doubled = first_twice(
        {"x": images, "names": ["a", "b", "c"], "pair": (np.arange(3), None), "of_tuples": ("a", "b", "c")}
    )
    images.zero_()
    assert doubled["x"].tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert doubled["names"] == ["a", "a"]
    assert doubled["of_tuples"] == ("a", "a")
    assert doubled["pair"][0].tolist() == [0, 0]
    assert doubled["pair"][1] is None


def test_first_twice_keeps_the_whole_where_samples_cannot_be_told_apart():
    """A scalar has no batch axis: the batch stands in as it is."""
    batch = {"x": torch.zeros(3), "total": 4.0}
    assert first_twice(batch) is batch


@pytest.mark.parametrize("beside", [torch.tensor([3, 5]), np.array([3, 5]), ["abc", "defgh"]])
def test_first_twice_keeps_the_whole_where_samples_lie_end_to_end(beside):
    """Eight tokens of two documents, beside something of each document: the first row of each is no document."""
    packed = {"token": torch.arange(8), "none": None, "of_each": [beside]}
    assert first_twice(packed) is packed
