import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.order import shard
from rankwise.errors import ConfigError


@given(size=st.integers(0, 500), world=st.integers(1, 130), how=st.sampled_from(["contiguous", "strided"]))
@settings(max_examples=100, deadline=None)
def test_exactly_once_and_even(size, world, how):
    """Promise 2: over the ranks each item appears once, and sizes differ by at most one."""
    parts = [shard(size, rank=rank, world_size=world, how=how) for rank in range(world)]
    assert sorted(item for part in parts for item in part) == list(range(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_type_stays():
    """A part is a slice: lists give lists, arrays give arrays, numbers give ranges."""
    assert shard(["a", "b", "c"], rank=1, world_size=2) == ["b", "c"]
    assert shard(("a", "b", "c"), rank=0, world_size=2, how="strided") == ("a", "c")
    assert shard(10, rank=1, world_size=3) == range(3, 6)
    assert np.array_equal(shard(np.arange(7), rank=2, world_size=3, how="strided"), [2, 5])


@pytest.mark.parametrize(
    ("items", "options", "words"),
    [
        (5, {"rank": 2, "world_size": 2}, "rank 2 of 2"),
        (5, {"rank": 0, "world_size": 2, "how": "random"}, "contiguous"),
        (-1, {"rank": 0, "world_size": 2}, "-1"),
        ({1, 2}, {"rank": 0, "world_size": 2}, "list"),
        ({1: 2}, {"rank": 0, "world_size": 2}, "list"),
        (iter([1]), {"rank": 0, "world_size": 2}, "list"),
    ],
)
def test_errors_say_what_came(items, options, words):
    """What cannot be cut is refused with the mend."""
    with pytest.raises(ConfigError, match=words):
        shard(items, **options)
