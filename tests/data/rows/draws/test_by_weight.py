"""Rows drawn by weight."""

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.rows import OrderedLoader, RowSource
from rankwise.data.rows.draws.row_draws import RowDraws
from rankwise.data.rows.draws.weights import DrawOptions, RowWeights
from rankwise.data.rows.obs import RowGroups
from rankwise.errors import ConfigError
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.row_stores import make_stores

WEIGHTS = np.array([0, 1, 2, 0, 0, 3, 0, 10, 4, 0], dtype=np.float64)


def draws(num, *, together=1, block_rows=4):
    weights = RowWeights(WEIGHTS.astype("f4"))
    options = DrawOptions(num_samples=num, weights=weights, together=together, block_rows=block_rows)
    return RowDraws(options=options, weights=weights, edges=np.array([0, len(WEIGHTS)]))


@pytest.mark.parametrize("together", [1, 4])
def test_rows_are_as_likely_as_their_weight(together):
    """Frequencies of 40,000 draws fit the weights (chi-square, alone or by blocks); weight zero never comes."""
    num = 40_000
    rows = draws(num, together=together).rows(np.arange(num), seed=3, epoch=1)
    counts = np.bincount(rows, minlength=10)
    assert not counts[WEIGHTS == 0].any()
    wanted = WEIGHTS[WEIGHTS > 0] / WEIGHTS.sum() * num
    chi = ((counts[WEIGHTS > 0] - wanted) ** 2 / wanted).sum()
    assert chi < 18.5 * together  # 99.9 % of 4 degrees of freedom; draws of a block depend on each other


def test_draws_are_pure():
    """A draw depends on seed, epoch and its number alone; draws of a group lie in one block."""
    drawn = draws(1000, together=5)
    ids = np.arange(1000)
    rows = drawn.rows(ids, seed=1, epoch=0)
    assert drawn.rows(ids[[700, 3]], seed=1, epoch=0).tolist() == rows[[700, 3]].tolist()
    assert all(len(set(group)) == 1 for group in (rows // 4).reshape(-1, 5).tolist())
    for seed, epoch in ((1, 1), (2, 0)):
        assert drawn.rows(ids, seed=seed, epoch=epoch).tolist() != rows.tolist()


def test_groups_are_balanced():
    """Every group has the same weight, rows of none have none."""
    groups = RowGroups(labels=("a", "b", "never"), codes=np.array([0, 0, 0, 1, -1]))
    weights = RowWeights.balanced(groups)
    assert np.diff(weights.before(np.arange(6))).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1, 0])


def test_what_makes_no_sense():
    """Weights of another length, negative ones, none; groups without rows; numbers below one."""
    for weights, said in (
        ([1.0], "one number for each of 2"),
        ([1, -1], "at least 0"),
        ([0, 0], "at least one above 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            RowWeights.checked(weights, 2)
    with pytest.raises(ConfigError, match="no row has a value"):
        RowWeights.balanced(RowGroups(labels=("a",), codes=np.array([-1])))
    with pytest.raises(ConfigError, match="together of drawn rows must be an integer of at least 1, got 0"):
        DrawOptions(num_samples=3, balance="kind", together=0)


def batches_of(source, place):
    loader = OrderedLoader(source, order=Order(source, batch_size=50), device=None, world=place)
    for number, (batch,) in enumerate(loader):
        step = batch.share.step
        rows = source.row_numbers(batch.ids, seed=step.resume.seed, epoch=step.epoch)
        yield from zip([number] * len(rows), rows.tolist(), batch["X"].toarray().tolist(), batch["n"], strict=True)


def test_balanced_batches_are_the_same_on_any_world(tmp_path):
    """Classes come equally often from a part of a split, every row with its own matrix and obs, at any world size."""
    held = make_stores(tmp_path)
    whole = RowSource(held.places, obs=("n", "kind"), threads=1)
    part, _ = whole.split(by="row", fractions=(0.8, 0.2), seed=2)
    source = part.drawn(balance="kind", num_samples=900, together=2)
    one = list(batches_of(source, RankPlace()))
    several = [row for rank in range(3) for row in batches_of(source, RankPlace(rank, 3))]
    assert sorted(several) == sorted(one)
    assert len(one) == 900
    inside = set(part.row_numbers(np.arange(len(part))).tolist())
    for _, row, x, n in one:
        assert row in inside
        assert x == held.dense("X")[row].tolist()
        assert n == held.obs["n"].iloc[row]
    kinds = held.obs["kind"].to_numpy()[[row for _, row, _, _ in one]]
    counts = [int((kinds == kind).sum()) for kind in ("a", "b", "c")]
    assert min(counts) > 240
    assert sum(counts) == 900
    for refused in (lambda: source.subset([1]), lambda: source.split(by="row", fractions=(0.5, 0.5)), part.drawn):
        with pytest.raises(ConfigError, match="draw"):
            refused()
    assert source.fingerprint != part.drawn(balance="kind", num_samples=900).fingerprint != part.fingerprint
