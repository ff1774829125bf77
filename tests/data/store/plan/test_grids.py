"""Arithmetic on grids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.store.plan.grids import distinct, grid_of, ravel


def test_parts_along_each_axis():
    """The last part may be shorter; an axis without elements has none."""
    assert grid_of((10, 9, 1, 0), (3, 3, 5, 2)) == (4, 3, 1, 0)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(0, 2**32))
def test_places_are_those_of_numpy(sizes, seed):
    """C order, each row in a grid of its own."""
    coords = np.random.default_rng(seed).integers(0, sizes, (9, len(sizes)))
    expected = np.ravel_multi_index(tuple(coords.T), sizes)
    np.testing.assert_array_equal(ravel(coords, np.tile(sizes, (9, 1))), expected)


@pytest.mark.parametrize("size", [5, 2**40, 2**62, 2**63 - 1])
def test_different_rows(size):
    """The same answer by marking, by sorting, and where the numbers of all arrays do not fit into 64 bits together."""
    rng = np.random.default_rng(size % 97)
    array, number = rng.integers(0, 4, 60), rng.choice([0, 1, 2, size // 2, size - 2, size - 1], 60)
    numbers, first, which = distinct(array, number[:, None], [(size,)] * 4)
    assert (numbers == number).all()
    pairs = list(zip(array.tolist(), number.tolist(), strict=True))
    assert [pairs[at] for at in first] == sorted(set(pairs))
    assert [pairs[first[at]] for at in which] == pairs
