"""The order of rows in a collection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rankwise import Order
from rankwise.data.rows.collection.buckets import Placing, cut_datasets

CHANCE = 1e-4


def order_of(edges, **options):
    """The input row of every place."""
    places = Placing(edges, **options).places(np.arange(edges[-1]))
    assert sorted(places.tolist()) == list(range(edges[-1]))
    return np.argsort(places)


def chi_squares(counts, expected):
    """One statistic for each row of a table of counts."""
    return ((counts - expected) ** 2 / expected).sum(axis=-1)


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
    seeds = {1: 2_000, 10: 200}
    orders = {run: np.stack([order_of(edges, seed=seed, run=run) for seed in range(seeds[run])]) for run in seeds}
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


def largest_by_chance(num, degrees):
    """What the largest of so many statistics seldom is above."""
    return stats.chi2.isf(CHANCE / num, degrees)


NUM_ROWS, NUM_EPOCHS, NUM_PARTS = 4_099, 400, 8


def parts_of_epochs(epoch_of):
    """How often each row comes in each eighth of an epoch, [rows, eighths], and how often it should."""
    part = np.arange(NUM_ROWS) * NUM_PARTS // NUM_ROWS
    counts = np.zeros((NUM_ROWS, NUM_PARTS))
    for epoch in range(NUM_EPOCHS):
        counts[epoch_of(epoch), part] += 1
    return counts, np.bincount(part) * NUM_EPOCHS / NUM_ROWS


def check_parts_of_epochs(epoch_of):
    """Each row is as likely in each eighth of an epoch, as far as chance allows."""
    found = chi_squares(*parts_of_epochs(epoch_of))
    assert found.max() < largest_by_chance(len(found), NUM_PARTS - 1)
    # the mean of a chi-square is its degrees of freedom, whatever others it depends on
    assert found.mean() == pytest.approx(NUM_PARTS - 1, rel=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"lanes": 4, "window": 8},
        pytest.param({"lanes": 16, "window": 2}, marks=pytest.mark.slow),
        pytest.param({"lanes": 1, "window": 30}, marks=pytest.mark.slow),
    ],
)
def test_a_row_comes_at_any_time_of_an_epoch(options):
    """In a window order over a collection each row is as likely in each eighth of an epoch.

    The collection ends in a chunk that is not full.
    """
    collection = order_of(cut_datasets(NUM_ROWS, 1_500), seed=3)
    order = Order(NUM_ROWS, batch_size=64, seed=11, chunk_samples=4, **options)
    places = np.arange(NUM_ROWS)
    check_parts_of_epochs(lambda epoch: collection[order.ids(places, epoch)])


def test_so_does_a_row_of_a_permutation():
    """NumPy's permutations are held to the same bounds."""
    rng = np.random.default_rng(5)
    check_parts_of_epochs(lambda _: rng.permutation(NUM_ROWS))


def together_in_batches(epoch, batch_size):
    """How many pairs of neighbouring rows of the inputs share a batch of an epoch."""
    batch = np.empty(len(epoch), dtype=np.int64)
    batch[epoch] = np.arange(len(epoch)) // batch_size
    return int((batch[1:] == batch[:-1]).sum())


def test_neighbours_of_the_inputs_meet_in_batches_by_chance():
    """Rows that were neighbours before the shuffle share a global batch as often as NumPy's permutation puts them."""
    num, batch_size, trials = 2_000, 50, 150
    chance = (num - 1) * (batch_size - 1) / (num - 1)  # pairs, each with (batch - 1) of (rows - 1) places to meet at
    edges, rng = cut_datasets(num, 900), np.random.default_rng(1)

    def score(of_trial):
        """Standard errors between the mean of the trials and chance."""
        seen = np.array([together_in_batches(of_trial(trial), batch_size) for trial in range(trials)])
        return (seen.mean() - chance) / (seen.std() / np.sqrt(trials))

    def ours(trial, *, shuffle=True):
        order = Order(num, batch_size=batch_size, seed=trial, chunk_samples=8, lanes=5, window=4)
        return order_of(edges, seed=trial, shuffle=shuffle)[order.ids(np.arange(num), 0)]

    bound = stats.norm.isf(CHANCE / 2)
    assert abs(score(ours)) < bound
    assert abs(score(lambda _: rng.permutation(num))) < bound
    assert score(lambda trial: ours(trial, shuffle=False)) > 20 * bound  # the window alone keeps neighbours together
