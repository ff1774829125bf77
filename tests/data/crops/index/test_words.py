"""Random numbers computed from keys."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.contract import sample_keys
from rankwise.data.crops.index.places import below, evenly, pick, uniform

KEYS = sample_keys(3, 1, np.arange(40_000))


def chi_square(counts, expected):
    """Pearson's statistic in standard deviations of its distribution: about 0, seldom beyond 5."""
    statistic, free = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    return (statistic - free) / np.sqrt(2 * free)


def test_numbers_are_uniform_and_do_not_depend_on_each_other():
    """Each draw is uniform; two draws of one key are independent; the same key gives the same number."""
    first, second = uniform(KEYS, 1), uniform(KEYS, 2)
    assert first.min() >= 0
    assert first.max() < 1
    table = np.histogram2d(first, second, bins=10)[0].ravel()
    assert abs(chi_square(table, len(KEYS) / 100)) < 5
    np.testing.assert_array_equal(first, uniform(KEYS, 1))


def test_whole_numbers_are_equally_likely():
    """Below a limit every number comes as often as any other, none beyond it."""
    counts = np.bincount(below(KEYS, 7, np.full(len(KEYS), 37)), minlength=37)
    assert len(counts) == 37
    assert abs(chi_square(counts, len(KEYS) / 37)) < 5
    assert below(KEYS[:5], 7, np.ones(5, dtype=np.int64)).tolist() == [0] * 5


@given(st.integers(0, 10**12), st.integers(1, 3000), st.floats(0.01, 0.99), st.integers(0, 2**64 - 1))
def test_even_numbers_hold_a_fraction_within_a_few(first, count, fraction, offset):
    """Of any run of numbers the asked-for fraction is hit, but for a few."""
    hits = int((evenly(np.arange(first, first + count), offset) < fraction).sum())
    assert abs(hits - fraction * count) <= 8


def test_intervals_are_picked_by_weight():
    """An interval is picked in proportion to its weight; one of weight zero never, wherever it stands."""
    bounds = np.cumsum([0.0, 1.0, 0.0, 3.0, 0.0])
    picked = pick(bounds, uniform(KEYS, 5))
    counts = np.bincount(picked, minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(counts[3] / len(KEYS) - 0.75) < 0.01
    assert pick(bounds, np.array([0.0, np.nextafter(1.0, 0.0)])).tolist() == [1, 3]
