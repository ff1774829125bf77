"""Uniformity: of orders over collections, of the writer's shuffle, and of draws; each beside NumPy's own.

Bounds come from the chi-square distribution. Where many statistics are looked at, the largest must stay below what all
of them stay below together but for a chance of 10^-4, however they depend on each other (Bonferroni's inequality). All
seeds are fixed.
"""

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy import stats

from rankwise.data.rows import DatasetCollection, RowSource
from rankwise.testing.stores.small_rows import write_anndata

CHANCE = 1e-4


def chi_squares(counts, expected):
    """One statistic for each row of a table of counts."""
    return ((counts - expected) ** 2 / expected).sum(axis=-1)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Where rows of the inputs came to lie, for several seeds: as is the default, and with runs of 1,000 rows."""
    num, folder = 6_000, tmp_path_factory.mktemp("written")
    values = np.zeros((num, 200), dtype="f4")  # 4.8 MB: several buckets for each dataset
    source = anndata.AnnData(X=values, obs=pd.DataFrame(index=[str(row) for row in range(num)]))

    def places(name, **options):
        collection = DatasetCollection(folder / f"{name}.zarr")
        collection.add_adatas([source], dataset_size=2_000, n_obs_per_chunk=64, memory_budget="1MB", **options)
        return np.argsort(collection.obs(["src_row"])["src_row"].to_numpy())

    uniform = [places(f"uniform {seed}", rng=seed) for seed in range(3)]
    return uniform, places("runs", rng=0, shuffle_chunk_size=1_000)


def table_of_places(places, size=20):
    """How many rows of each stretch of the inputs lie in each stretch of the collection."""
    part = np.arange(len(places)) * size // len(places)
    return np.bincount(part * size + part[places], minlength=size * size).reshape(size, size)


def test_written_rows_lie_anywhere(written):
    """Stretches of the inputs against stretches of the collection, which is no table of chance with runs of rows."""
    uniform, runs = written
    rng = np.random.default_rng(2)
    tables = [table_of_places(places) for places in (*uniform, *(rng.permutation(6_000) for _ in range(3)))]
    # sums of rows and columns are given: (20 - 1)^2 degrees of freedom
    bounds = stats.chi2.isf([1 - CHANCE / 6, CHANCE / 6], 19**2)
    for table in tables:
        assert table.sum(axis=0).tolist() == table.sum(axis=1).tolist() == [300] * 20
        assert bounds[0] < chi_squares(table.ravel(), 15) < bounds[1]
    assert chi_squares(table_of_places(runs).ravel(), 15) > 10 * bounds[1]


def test_neighbours_of_the_inputs_share_a_written_chunk_by_chance(written):
    """Rows that were neighbours lie in one chunk as seldom as those of NumPy's permutation; runs of rows do not."""
    uniform, runs = written

    def shared(places):
        chunk = places // 2_000 * 32 + places % 2_000 // 64  # of each dataset of 2,000 rows
        return int((np.diff(chunk) == 0).sum())

    # 31 chunks of 64 rows in each dataset, and one of 16
    chance = 3 * (31 * 64 * 63 + 16 * 15) / 6_000
    low, high = stats.poisson.ppf([CHANCE / 12, 1 - CHANCE / 12], chance)  # few of many pairs: a Poisson number
    rng = np.random.default_rng(2)
    for places in (*uniform, *(rng.permutation(6_000) for _ in range(3))):
        assert low < shared(places) < high
    assert shared(runs) > 1.5 * high


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A store of 300 rows of three kinds, one of them rare."""
    kinds = np.repeat(["common", "some", "rare"], [220, 70, 10])
    obs = pd.DataFrame({"kind": pd.Categorical(np.random.default_rng(0).permutation(kinds))})
    obs.index = obs.index.astype(str)
    made = anndata.AnnData(X=sp.random(300, 5, density=0.5, format="csr", dtype="f4", rng=1), obs=obs)
    return write_anndata(made, tmp_path_factory.mktemp("labelled") / "a.zarr"), obs["kind"].to_numpy()


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("by", ["weights", "balance"])
def test_draws_follow_the_weights(labelled, together, by):
    """Each row is drawn as often as its weight says and NumPy draws it, at each place of a group of draws.

    Draws at one place of all groups are independent of each other, so their counts have a chi-square distribution.
    """
    place, kinds = labelled
    weights = np.random.default_rng(4).gamma(1.0, size=300) * (np.arange(300) % 7 > 0)
    if by == "balance":
        weights = 1 / pd.Series(kinds).map(pd.Series(kinds).value_counts()).to_numpy(dtype=float)
    num = 50_000
    with RowSource(place, threads=1) as rows:
        chosen = {"balance": "kind"} if by == "balance" else {"weights": weights}
        drawn = rows.drawn(num_samples=num * together, together=together, **chosen)
        samples = drawn.row_numbers(np.arange(num * together), seed=7, epoch=2).reshape(num, together)
    theirs = np.random.default_rng(9).choice(300, size=num, p=weights / weights.sum())
    wanted = weights / weights.sum() * num
    tiny = wanted < 5  # the distribution needs counts that are not: these rows count together
    pooled = np.where(tiny, np.flatnonzero(~tiny)[0], np.arange(300))
    expected = np.bincount(pooled, weights=wanted)
    expected = expected[expected > 0]
    low, high = stats.chi2.isf([1 - CHANCE / 5, CHANCE / 5], len(expected) - 1)
    for column in (*samples.T, theirs):
        assert (weights[column] > 0).all()
        counts = np.bincount(pooled[column], minlength=pooled.max() + 1)
        assert low < chi_squares(counts[np.unique(pooled)], expected) < high


def test_draws_of_one_sample_vary_over_epochs(labelled):
    """The same sample of many epochs is any row, as likely as its weight says."""
    place, kinds = labelled
    with RowSource(place, threads=1) as rows:
        drawn = rows.drawn(balance="kind", num_samples=8, together=4)
        seen = [drawn.row_numbers(np.array([5]), seed=1, epoch=epoch)[0] for epoch in range(1_500)]
    counts = pd.Series(kinds[seen]).value_counts()
    assert chi_squares(counts.to_numpy(), 1_500 / 3) < stats.chi2.isf(CHANCE, 2)
    rare = np.bincount(seen, minlength=300)[kinds == "rare"]
    assert chi_squares(rare, rare.sum() / 10) < stats.chi2.isf(CHANCE, 9)
