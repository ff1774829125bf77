import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.order.permutation import MAX_SIZE, mix_words, permute

FROZEN = {
    5: [4, 2, 0, 3, 1],
    100: [83, 38, 12, 88, 71, 54],
    10000: [3391, 1678, 4303, 9557, 1002, 8208],
    1000000000000: [375638333150, 664069765403, 527927534976, 361057215724],
}
WORDS = st.integers(0, 2**64 - 1)


def many_keys(count, salt=0):
    return mix_words(np.arange(count, dtype=np.uint64) + np.uint64(salt << 40))


def chi_square_per_df(counts, expected, df):
    return ((counts - expected) ** 2 / expected).sum() / df


@given(size=st.integers(1, 5000), key=WORDS)
@settings(max_examples=40, deadline=None)
def test_it_is_a_bijection_and_has_an_inverse(size, key):
    """Promise 2: every element is hit once, for any size and key; backward undoes it."""
    elements = np.arange(size)
    moved = permute(elements, size, np.uint64(key))
    assert np.array_equal(np.sort(moved), elements)
    assert np.array_equal(permute(moved, size, np.uint64(key), backward=True), elements)


@pytest.mark.parametrize("size", [1, 2, 3, 15, 16, 17, 255, 256, 257, 65535, 65536, 65537, 250_000])
def test_the_edges_of_the_tiers_are_bijections(size):
    """The sizes at which the number of rounds changes are permuted like any other."""
    moved = permute(np.arange(size), size, np.uint64(99))
    assert np.array_equal(np.sort(moved), np.arange(size))


@given(size=st.integers(2**40, MAX_SIZE), key=WORDS, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_huge_sizes_stay_inside_and_are_undone(size, key, seed):
    """Up to 2**62 elements nothing overflows: images lie inside, differ, and lead back."""
    elements = np.unique(np.random.default_rng(seed).integers(0, size, 200))
    elements[-1] = size - 1
    elements = np.unique(elements)
    moved = permute(elements, size, np.uint64(key))
    assert moved.min() >= 0
    assert moved.max() < size
    assert len(np.unique(moved)) == len(elements)
    assert np.array_equal(permute(moved, size, np.uint64(key), backward=True), elements)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_an_element_does_not_depend_on_the_rest_of_the_call(data):
    """Elements with sizes and keys of their own, from all tiers in one call, move as they do alone."""
    sizes = np.array(
        data.draw(st.lists(st.sampled_from([1, 2, 9, 16, 17, 300, 70_000, 2**40]), min_size=1, max_size=8))
    )
    elements = np.array([data.draw(st.integers(0, int(size) - 1)) for size in sizes])
    keys = np.array([data.draw(WORDS) for _ in sizes], dtype=np.uint64)
    together = permute(elements, sizes, keys)
    alone = [permute(elements[[i]], int(sizes[i]), keys[i])[0] for i in range(len(sizes))]
    assert together.tolist() == alone
    assert permute(together, sizes, keys, backward=True).tolist() == elements.tolist()


def test_keys_broadcast_against_elements():
    """A column of elements and a row of keys give the table that single calls give."""
    keys = many_keys(5)
    table = permute(np.arange(40)[:, None], 40, keys)
    assert table.shape == (40, 5)
    for column in range(5):
        assert np.array_equal(table[:, column], permute(np.arange(40), 40, keys[column]))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_permutations_of_a_few_elements_are_equally_likely(size):
    """Over keys, each of the size! permutations comes up equally often (chi-square)."""
    num_keys = 40_000
    moved = permute(np.arange(size)[None, :], size, many_keys(num_keys, size)[:, None])
    _, counts = np.unique((moved * size ** np.arange(size)).sum(axis=1), return_counts=True)
    kinds = math.factorial(size)
    assert len(counts) == kinds
    deviation = (chi_square_per_df(counts, num_keys / kinds, kinds - 1) - 1) * math.sqrt((kinds - 1) / 2)
    assert abs(deviation) < 5


@pytest.mark.parametrize("size", [17, 20, 64, 100, 256, 257])
def test_places_and_pairs_are_uniform(size):
    """Over keys, each element goes everywhere equally often, and neighbours go to independent places (chi-square)."""
    num_keys = 20_000 if size < 200 else 6_000
    moved = permute(np.arange(size)[None, :], size, many_keys(num_keys, size)[:, None])
    places = np.stack([np.bincount(column, minlength=size) for column in moved.T])
    df = (size - 1) ** 2
    ratio = chi_square_per_df(places, num_keys / size, df) * (size - 1) / size
    assert abs(ratio - 1) * math.sqrt(df / 2) < 5
    for one, other in ((0, 1), (1, size - 1), (size // 2, size // 2 + 1)):
        apart = np.bincount((moved[:, other] - moved[:, one]) % size, minlength=size)[1:]
        ratio = chi_square_per_df(apart, num_keys / (size - 1), size - 2)
        assert abs(ratio - 1) * math.sqrt((size - 2) / 2) < 5


@pytest.mark.parametrize("size", [65_536, 65_537, 300_000])
def test_it_spreads_like_numpys_permutation(size):
    """Dispersion of batches over shards and of steps between neighbours match numpy's shuffle within noise."""
    shards, batch, bins = 32, 128, 256

    def quality(moved):
        rows = moved[: size // batch * batch].reshape(-1, batch) * shards // size
        counts = np.stack([(rows == shard).sum(axis=1) for shard in range(shards)])
        steps = np.bincount(np.diff(moved) % size * bins // size, minlength=bins)
        return chi_square_per_df(counts, batch / shards, counts.size), chi_square_per_df(steps, size / bins, bins - 1)

    ours = np.array([quality(permute(np.arange(size), size, key)) for key in many_keys(12)])
    numpys = np.array([quality(np.random.default_rng(seed).permutation(size)) for seed in range(12)])
    noise = np.sqrt((ours.var(axis=0) + numpys.var(axis=0)) / 12)
    assert np.all(np.abs(ours.mean(axis=0) - numpys.mean(axis=0)) < 5 * noise + 1e-3)


def test_keys_give_independent_permutations():
    """Two keys, even neighbouring ones, agree in about one place: what chance gives."""
    size = 10_000
    moved = [permute(np.arange(size), size, np.uint64(key)) for key in range(12)]
    agreeing = [(a == b).sum() for i, a in enumerate(moved) for b in moved[:i]]
    assert max(agreeing) <= 8
    assert 0.5 < np.mean(agreeing) < 1.6


def test_the_arithmetic_is_frozen():
    """A saved run must find its order again: these images belong to algorithm version 1."""
    assert permute(np.arange(5), 5, np.uint64(7)).tolist() == FROZEN[5]
    assert permute(np.arange(6), 100, np.uint64(7)).tolist() == FROZEN[100]
    assert permute(np.arange(6), 10_000, np.uint64(7)).tolist() == FROZEN[10_000]
    assert permute(np.arange(4), 10**12, np.uint64(7)).tolist() == FROZEN[10**12]
