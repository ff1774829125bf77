"""The order of rows in a collection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.rows.collection.places import Placing, cut_datasets


def order_of(edges, **options):
    """The input row of every place."""
    places = Placing(edges, **options).places(np.arange(edges[-1]))
    assert sorted(places.tolist()) == list(range(edges[-1]))
    return np.argsort(places)


def chi_square(orders):
    """Sum over (row, place) of the squared deviation from equal shares, divided by the degrees of freedom."""
    num_rows = orders.shape[1]
    counts = np.zeros((num_rows, num_rows))
    for order in orders:
        counts[order, np.arange(num_rows)] += 1
    expected = len(orders) / num_rows
    return ((counts - expected) ** 2 / expected).sum() / (num_rows - 1) ** 2


def test_every_row_is_as_likely_at_every_place():
    """Chi-square of rows against places over many seeds is that of numpy's permutations; runs of 10 rows are not."""
    edges = cut_datasets(60, 20)
    orders = {run: np.stack([order_of(edges, seed=seed, run=run) for seed in range(2_000)]) for run in (1, 10)}
    rng = np.random.default_rng(0)
    theirs = chi_square(np.stack([rng.permutation(60) for _ in range(2_000)]))
    spread = np.sqrt(2 / 59**2)
    assert abs(chi_square(orders[1]) - 1) < 5 * spread
    assert abs(theirs - 1) < 5 * spread
    neighbours = {run: np.mean(np.abs(place_of(order, 0) - place_of(order, 1)) < 20) for run, order in orders.items()}
    assert neighbours[1] == pytest.approx(20 / 60 * (2 - 20 / 60), abs=0.05)  # of two random places of 60
    assert neighbours[10] == 1  # rows of a run share their dataset


def place_of(orders, row):
    return np.nonzero(orders == row)[1]


@pytest.mark.parametrize(("num_rows", "most"), [(1, 5), (10, 5), (11, 5), (7, 100)])
def test_datasets_are_of_equal_size(num_rows, most):
    """None is larger than asked, and their sizes differ by at most one row."""
    sizes = np.diff(cut_datasets(num_rows, most))
    assert sizes.sum() == num_rows
    assert sizes.max() <= most
    assert np.ptp(sizes) <= 1


def test_groups_keep_their_random_order_inside():
    """Sorting by groups is stable: rows of a group stay as the shuffle left them."""
    edges, groups = cut_datasets(30, 15), np.arange(30) % 3
    free = order_of(edges, seed=1)
    grouped = order_of(edges, seed=1, groups=groups)
    for start in (0, 15):
        mine, theirs = grouped[start : start + 15], free[start : start + 15]
        assert mine.tolist() == sorted(theirs.tolist(), key=lambda row: row % 3)


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 50), st.integers(0, 2**40), st.booleans())
def test_every_row_has_a_place_of_its_own(num_rows, run, most, seed, shuffle):
    """Places are a permutation, for any rows, runs and datasets."""
    edges = cut_datasets(num_rows, most)
    order = order_of(edges, seed=seed, run=run, shuffle=shuffle)
    if not shuffle:
        assert order.tolist() == list(range(num_rows))
