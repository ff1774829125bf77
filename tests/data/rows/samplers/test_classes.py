"""Rows by class."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.samplers import ClassSampler, DistributedSampler, WeightedClassSampler
from rankwise.testing.stores.small_rows import sampled_rows


def runs_of(lengths, names="abc"):
    """Runs of classes a, b, c, a, b, ... of these lengths."""
    values = np.concatenate([np.repeat(names[k % len(names)], n) for k, n in enumerate(lengths)])
    return pd.Categorical(values, categories=sorted(names))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(6, 20), min_size=1, max_size=8),
    st.sampled_from([(6, 4, 12), (6, 4, 8), (4, 6, 6), (5, 3, 15), (1, 8, 4)]),
    st.integers(1, 90),
    st.booleans(),
    st.integers(0, 99),
)
def test_batches_of_one_class(lengths, args, asked, drop_last, seed):
    """Every batch holds one class; as many rows as asked; the same seed draws the same."""
    classes = runs_of(lengths)
    options = {"classes": classes, "num_samples": asked, "drop_last": drop_last}
    sampler = ClassSampler(*args, rng=seed, **options)
    out = sampled_rows(sampler, len(classes))
    assert len(out) == sampler.n_batches(len(classes))
    assert sum(map(len, out)) == (asked // args[2] * args[2] if drop_last else asked)
    assert all(len(set(classes[rows])) == 1 for rows in out)
    again = sampled_rows(ClassSampler(*args, rng=seed, **options), len(classes))
    assert [b.tolist() for b in out] == [b.tolist() for b in again]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(6, 30), min_size=1, max_size=8),
    st.sampled_from([(6, 4, 12), (6, 4, 8), (5, 3, 15), (1, 8, 4)]),
    st.integers(1, 200),
    st.sampled_from([ClassSampler, WeightedClassSampler]),
    st.integers(0, 99),
)
def test_a_request_consists_of_whole_chunks(lengths, args, asked, kind, seed):
    """Each slice of a load request has chunk_size rows inside one run of one class; the last of a pass what is left."""
    classes = runs_of(lengths)
    edges = np.cumsum([0, *lengths])
    requests = list(kind(*args, classes=classes, num_samples=asked, rng=seed).sample(len(classes)))
    slices = [one for request in requests for one in request["requests"]]
    sizes = [one.stop - one.start for one in slices]
    assert sizes == [args[0]] * (asked // args[0]) + [asked % args[0]] * (asked % args[0] > 0)
    runs = [np.searchsorted(edges, [one.start, one.stop - 1], side="right") for one in slices]
    assert all(first == last for first, last in runs)


def test_weights_are_followed_and_rows_of_a_class_are_about_equally_likely():
    """Classes by weight; runs by their rows; inside a run rows near an edge 0.5 to 1.5 times as often as others."""
    classes = runs_of([12, 30, 25, 10])  # a: 12 + 10 rows
    sampler = WeightedClassSampler(
        10, 10, 50, classes=classes, num_samples=40_000, class_weights=np.array([3.0, 1.0, 0.0]), rng=0
    )
    out = sampled_rows(sampler, 77)
    counts = np.bincount(np.concatenate(out), minlength=77)
    held = pd.Series(counts).groupby(np.asarray(classes)).sum()
    assert held["c"] == 0
    assert abs(held["a"] / 40_000 - 0.75) < 0.03
    of_a = counts[np.asarray(classes) == "a"]
    assert abs(of_a[:12].mean() / of_a.mean() - 1) < 0.1  # 12 and 10 rows
    long = counts[12:42] / counts[12:42].mean()  # 30 rows of b, chunks of 10
    starts = np.r_[5.5, np.ones(19), 5.5]  # a chunk that would reach beyond an edge lies at one of the two instead
    wanted = np.convolve(starts, np.ones(10)) / 10
    assert (wanted.min(), wanted.max()) == (pytest.approx(0.55), pytest.approx(1.45))
    np.testing.assert_allclose(long * wanted[10:20].mean() / long[10:20].mean(), wanted, atol=0.3)
    assert np.mean([len(set(classes[rows])) for rows in out]) > 1.9  # batches are mixed


def test_masks():
    """Only rows of the range; weights are those of its classes; it does not move under a pass."""
    classes = runs_of([20, 20, 20, 20])
    sampler = ClassSampler(5, 4, 10, classes=classes, num_samples=200, mask=slice(20, 60), rng=0)
    rows = np.concatenate(sampled_rows(sampler, 80))
    assert set(rows) <= set(range(20, 60))
    assert set(classes[rows]) == {"b", "c"}
    passing = sampler.sample(80)
    next(passing)
    with pytest.raises(ValueError, match="while a pass is being iterated"):
        sampler.mask = slice(0, 20)
    passing.close()
    sampler.mask = slice(0, 20)
    assert set(classes[np.concatenate(sampled_rows(sampler, 80))]) == {"a"}


def test_ranks_cut_runs_where_they_must():
    """The parts of ranks need not fall on the edges of classes."""
    classes = runs_of([30, 30, 30])
    seen = []
    for rank in range(4):
        sampler = ClassSampler(10, 2, 10, classes=classes, num_samples=500, rng=0)
        shared = DistributedSampler(sampler, dist_info=lambda rank=rank: (rank, 4), enforce_equal_batches=False)
        out = sampled_rows(shared, 90)
        assert all(len(set(classes[rows])) == 1 for rows in out)
        seen.append(set(np.concatenate(out).tolist()))
    assert sorted(row for part in seen for row in part) == list(range(90))


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"classes": np.zeros(30)}, TypeError, "must be a pandas.Categorical"),
        ({"classes": pd.Categorical(["a", None] * 15)}, ValueError, "contains 15 NA values"),
        ({"classes": runs_of([10, 3, 17])}, ValueError, r"at least chunk_size \(5\) long, but 1 are shorter"),
        ({"num_samples": 0}, ValueError, "num_samples must be"),
        ({"class_weights": pd.Series([1, 1, 1])}, TypeError, "reindex"),
        ({"class_weights": [1, 1]}, ValueError, "one weight per class in classes.categories, 3; got"),
        ({"class_weights": [0, 0, -1]}, ValueError, "at least one positive"),
        ({"class_weights": [1, 0, 0], "mask": slice(10, 30)}, ValueError, "no class of positive weight"),
        ({"mask": slice(0, 40)}, ValueError, "exceeds the 30 rows"),
    ],
)
def test_what_cannot_work_says_what_to_change(options, kind, said):
    """Classes, weights and masks that do not fit are refused."""
    with pytest.raises(kind, match=said):
        ClassSampler(5, 2, 10, **{"classes": runs_of([10, 10, 10]), "num_samples": 20, **options})


def test_other_data_are_refused():
    """One class for each row of the loader. Runs of a class that is left out may be short."""
    sampler = ClassSampler(5, 2, 10, classes=runs_of([10, 2, 10]), num_samples=20, class_weights=[1, 0, 1], rng=0)
    with pytest.raises(ValueError, match=r"classes length \(22\) does not match the 30 rows"):
        list(sampler.sample(30))
    assert len(sampled_rows(sampler, 22)) == 2
