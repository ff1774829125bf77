"""Parts by hashes: fixed for ever, as long as asked for, without gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.order import part_at, place_of_group, place_of_samples
from rankwise.errors import ConfigError


def test_the_hash_is_what_it_was():
    """Where a group or a sample falls is fixed for ever: a split of old must come out again."""
    assert [place_of_group("plate1", seed) for seed in (0, 1)] == [0.5387270505024315, 0.07219172492463799]
    assert place_of_group("plate1", 0) != place_of_group("plate2", 0)
    assert place_of_samples(np.arange(2), 0).tolist() == [0.13870941014555427, 0.18436667429957676]
    assert place_of_samples(np.array([1]), 0)[0] == place_of_samples(np.arange(2), 0)[1]


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_fractions_of_one_leave_no_gap(weights):
    """However the sum of the fractions is rounded, the last place belongs to the last part."""
    fractions = [weight / sum(weights) for weight in weights]
    ends = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert part_at(ends, fractions).tolist() == [0, len(fractions) - 1]


def test_parts_are_stretches_of_their_fractions():
    """A place lies in the part whose stretch holds it, beginnings included; what fractions leave is in none."""
    assert part_at(np.array([0.0, 0.19, 0.2, 0.49, 0.5, 0.99]), (0.2, 0.3)).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("fractions", [(), (0.0, 1.0), (0.6, 0.5), (-0.1,), (float("nan"),)])
def test_fractions_that_cannot_be_meant(fractions):
    """Nothing, nothing of something, and more than all are refused."""
    with pytest.raises(ConfigError, match="fractions are above 0 and at most 1 together"):
        part_at(np.array([0.5]), fractions)
