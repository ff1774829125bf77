"""Weights of rows in little memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.draws.row_draws import RowDraws
from rankwise.data.rows.draws.weights import DrawOptions, RowWeights
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError


@settings(max_examples=30, deadline=None)
@given(num=st.integers(1, 700), seed=st.integers(0, 99))
def test_places_belong_to_the_rows_that_own_them(num, seed):
    """Each row owns a piece as long as its weight, those of weight zero none: as sums over all rows say."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 4, num).astype(np.float32)
    values[rng.integers(num)] = 2
    weights, ends = RowWeights(values), np.cumsum(values.astype("f8"))
    places = rng.random(300) * ends[-1]
    assert weights.pick(places).tolist() == np.searchsorted(ends, places, side="right").tolist()
    rows = np.arange(num)
    assert weights.before(rows).tolist() == [0.0, *ends[:-1].tolist()]
    held = rows[values > 0]
    assert weights.pick(weights.before(held)).tolist() == held.tolist()
    end = weights.pick(np.array([ends[-1], np.nextafter(ends[-1], 0)]))
    assert end.tolist() == [held[-1]] * 2


def held_bytes(weights):
    return weights.values.nbytes + weights._ends.nbytes


@pytest.mark.parametrize(("num_groups", "most"), [(20, 1.1), (1000, 2.1)])
def test_memory_of_balanced_rows(num_groups, most):
    """A byte for each row, two for hundreds of groups, and a sixteenth for sums."""
    codes = (np.arange(100_000) % num_groups).astype(np.int8 if num_groups < 128 else np.int16)
    groups = RowGroups(labels=tuple(map(str, range(num_groups))), codes=codes)
    assert held_bytes(RowWeights.balanced(groups)) <= most * len(codes)
    assert held_bytes(RowWeights.checked(np.ones(100_000), 100_000)) <= 4.1 * 100_000


def test_draws_take_little_on_their_way():
    """Making and drawing rows by class takes a fifth of a byte a row and some MiB beside the byte of each row."""
    num = 4_000_000
    groups = RowGroups(labels=tuple("abcd"), codes=(np.arange(num, dtype="u4") % 5).astype("i1") - np.int8(1))
    ids = np.arange(4096)
    tracemalloc.start()
    try:
        options = DrawOptions(num_samples=num, balance="kind", together=4, block_rows=64)
        draws = RowDraws.of(options, edges=np.array([0, num]), groups_of=lambda _: groups)
        rows = draws.rows(ids, seed=1, epoch=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < num / 5 + 40 * 2**20
    assert held_bytes(draws.weights) < 1.07 * num
    assert abs(np.bincount(groups.codes[rows]) / len(ids) - 0.25).max() < 0.05


def test_groups_are_balanced_inside_parts():
    """With parts each group of each part weighs the same; a part without groups is refused."""
    groups = RowGroups(labels=("a", "b"), codes=np.array([0, 0, 1, 0, 1, 1, -1], dtype="i1"))
    weights = RowWeights.balanced(groups, np.array([0, 3, 7]))
    assert np.diff(weights.before(np.arange(8).clip(0, 7))[:7]).tolist() == [0.5, 0.5, 1, 1, 0.5, 0.5]
    assert groups.codes.tolist() == [0, 0, 1, 0, 1, 1, -1]
    with pytest.raises(ConfigError, match="no row has a value"):
        RowWeights.balanced(groups, np.array([0, 6, 7]))


def test_weights_of_a_user_are_kept_small():
    """float32 as they are, in a copy; others in relation to the largest."""
    mine = np.array([1, 2], dtype="f4")
    kept = RowWeights.checked(mine, 2)
    mine[0] = 99
    assert kept.before(np.array([2])) == 3
    assert RowWeights.checked(kept, 2) is kept
    assert RowWeights.checked([1e300, 5e299], 2).before(np.array([2])) == 1.5
    assert (
        RowWeights.checked(np.array([1, 2, 1]), 3).fingerprint != RowWeights.checked(np.array([1, 2, 2]), 3).fingerprint
    )
