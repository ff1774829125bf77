"""Trees: taken apart and put together."""

from collections import OrderedDict, defaultdict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import ConfigError
from rankwise.world.collectives.tree import describe, flatten, rebuild

LEAVES = st.integers(-5, 5) | st.floats(allow_nan=False) | st.booleans() | st.none()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(TREES)
def test_rebuilding_with_the_own_values_gives_the_tree(tree):
    """Functions flatten and rebuild are inverse, key order included."""
    again = rebuild(tree, (leaf.value for leaf in flatten(tree)))
    assert again == tree
    assert repr(again) == repr(tree)


def test_key_order_does_not_matter():
    """Two ranks may have built their dict in another order: same description, same order of leaves."""
    one, two = {"b": 1, "a": 2.0}, {"a": 2.0, "b": 1}
    assert [leaf.value for leaf in flatten(one)] == [leaf.value for leaf in flatten(two)] == [2.0, 1]
    assert describe(one, flatten(one), ragged=False) == describe(two, flatten(two), ragged=False)
    assert list(rebuild(one, iter("xy"))) == ["b", "a"]


class Point(NamedTuple):
    x: object
    y: object


def test_containers_keep_their_kind():
    """Named tuples, ordered and default dicts come back as what they were."""
    tree = {"p": Point(1, 2), "o": OrderedDict(z=1, a=2), "d": defaultdict(list, k=1)}
    again = rebuild(tree, (leaf.value for leaf in flatten(tree)))
    assert again == tree
    assert type(again["p"]) is Point
    assert list(again["o"]) == ["z", "a"]
    assert again["d"].default_factory is list


def test_descriptions_tell_trees_apart():
    """Kind, dtype, shape and nesting are in the text; with ragged=True the first axis is not."""
    trees = [1, True, 1.0, 1j, None, [1], (1,), {"a": 1}, {"b": 1}, np.float32(1), np.zeros(2), np.zeros((2, 1))]
    trees += [np.zeros(2, np.float32), torch.zeros(2), torch.zeros(()), torch.zeros(2, dtype=torch.bfloat16), [[1], 1]]
    texts = [describe(tree, flatten(tree), ragged=False) for tree in trees]
    assert len(set(texts)) == len(trees)
    assert describe(np.zeros((2, 3)), flatten(np.zeros((2, 3))), ragged=True) == "numpy float64[?,3]"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": ["x"]}, r"tree\['a'\]\[0\] is a str; .* all_gather_object"),
        ([1, {1, 2}], r"tree\[1\] is a set"),
        ({(1, 2): 1}, r"tree has the key \(1, 2\)"),
        (np.array(["x"]), "NumPy array of <U1"),
        (np.zeros(1, np.longdouble), "float128|longdouble"),
        (torch.eye(2).to_sparse(), "plain dense tensors"),
        (torch.empty(2, device="meta"), "plain dense tensors"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(tree, message):
    """The error says where in the tree, what it is, and what to use instead."""
    with pytest.raises(ConfigError, match=message):
        flatten(tree)
