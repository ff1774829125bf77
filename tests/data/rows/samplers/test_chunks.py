"""Rows in chunks, shuffled or in order."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.samplers import RandomSampler, SequentialSampler
from rankwise.testing.stores.small_rows import sampled_rows


@st.composite
def sizes(draw):
    """chunk_size, preload_nchunks, batch_size that fit together; rows; a mask of them."""
    chunk, count = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    batch = draw(st.sampled_from([n for n in range(1, chunk * count + 1) if chunk * count % n == 0]))
    n_obs = draw(st.integers(1, 150))
    start = draw(st.integers(0, n_obs - 1))
    stop = draw(st.one_of(st.none(), st.integers(start + 1, n_obs)))
    return (chunk, count, batch), n_obs, slice(start, stop)


@settings(max_examples=80, deadline=None)
@given(sizes(), st.booleans(), st.integers(0, 2**40), st.integers(0, 3))
def test_each_row_of_the_mask_once(given_sizes, drop_last, seed, epoch):
    """A pass covers the range exactly once, in full batches but the last, as many as it says; seeds reproduce it."""
    args, n_obs, mask = given_sizes
    batch = args[2]
    for sampler in (
        RandomSampler(*args, drop_last=drop_last, mask=mask, rng=np.random.default_rng(seed)),
        SequentialSampler(*args, drop_last=drop_last, mask=mask),
    ):
        sampler.set_epoch(epoch)
        out = sampled_rows(sampler, n_obs)
        wanted = np.arange(n_obs)[mask]
        assert len(out) == sampler.n_batches(n_obs)
        assert all(len(b) == batch for b in out[:-1])
        rows = np.concatenate([[], *out])
        kept = len(wanted) // batch * batch if drop_last else len(wanted)
        assert len(rows) == kept == len(set(rows.tolist()))
        assert set(rows.tolist()) <= set(wanted.tolist())
        if not sampler.shuffle:
            np.testing.assert_array_equal(rows, wanted[:kept])
    again = RandomSampler(*args, drop_last=drop_last, mask=mask, rng=seed)
    again.set_epoch(epoch)
    first = RandomSampler(*args, drop_last=drop_last, mask=mask, rng=np.random.default_rng(seed))
    for _ in range(epoch):
        list(first.sample(n_obs))
    assert [b.tolist() for b in sampled_rows(first, n_obs)] == [b.tolist() for b in sampled_rows(again, n_obs)]


@settings(max_examples=60, deadline=None)
@given(sizes(), st.booleans(), st.booleans(), st.data())
def test_num_samples_is_what_was_asked(given_sizes, replacement, drop_last, data):
    """Exactly so many rows of the range come, each once unless drawn with replacement."""
    args, n_obs, mask = given_sizes
    size = len(range(n_obs)[mask])
    asked = data.draw(st.integers(1, 3 * size if replacement and size >= args[0] else size))
    sampler = RandomSampler(*args, replacement=replacement, num_samples=asked, drop_last=drop_last, mask=mask, rng=1)
    out = sampled_rows(sampler, n_obs)
    rows = np.concatenate([[], *out]).astype(int).tolist()
    assert len(rows) == (asked // args[2] * args[2] if drop_last else asked)
    assert len(out) == sampler.n_batches(n_obs)
    assert set(rows) <= set(range(n_obs)[mask])
    assert replacement or len(set(rows)) == len(rows)


@pytest.mark.parametrize(
    "options", [{"replacement": True}, {"replacement": True, "num_samples": 90}, {"num_samples": 25}]
)
def test_every_row_is_equally_likely(options):
    """Rows at the edges of the range are drawn as often as those in the middle."""
    sampler = RandomSampler(16, 2, 4, mask=slice(7, 57), rng=0, **options)
    counts = np.zeros(60)
    for _ in range(3000):
        for rows in sampled_rows(sampler, 60):
            np.add.at(counts, rows, 1)
    drawn = counts[7:57]
    assert counts.sum() == drawn.sum()
    # rows of a chunk are drawn together: the spread of their counts is that of 16 times fewer draws
    assert abs(drawn / drawn.mean() - 1).max() < 6 * np.sqrt(16 / drawn.mean())
    assert abs(drawn[:8].mean() / drawn.mean() - 1) < 0.05


def test_epochs():
    """They differ, count themselves, and do not depend on whether one was left early."""
    whole, left = RandomSampler(8, 4, 16, rng=3), RandomSampler(8, 4, 16, rng=3)
    first, second, third = ([b.tolist() for b in sampled_rows(whole, 100)] for _ in range(3))
    assert first != second != third
    assert whole.epoch == 3
    sampled_rows(left, 100)
    passing = left.sample(100)
    next(passing)
    passing.close()
    assert [b.tolist() for b in sampled_rows(left, 100)] == third
    left.set_epoch(1)
    assert [b.tolist() for b in sampled_rows(left, 100)] == second
    left.rng = np.random.default_rng(3)  # begins anew
    assert [b.tolist() for b in sampled_rows(left, 100)] == first


def test_generators():
    """0 is a seed; a generator of the caller is drawn from once; without one, orders differ."""
    rng = np.random.default_rng(5)
    untouched = copy.deepcopy(rng)
    assert (
        sampled_rows(RandomSampler(4, 4, 4, rng=0), 64)[0].tolist()
        == sampled_rows(RandomSampler(4, 4, 4, rng=0), 64)[0].tolist()
    )
    assert (
        sampled_rows(RandomSampler(1, 64, 64), 64)[0].tolist() != sampled_rows(RandomSampler(1, 64, 64), 64)[0].tolist()
    )
    sampled_rows(RandomSampler(4, 4, 4, rng=rng), 64)
    untouched.integers(2**63)
    assert rng.bit_generator.state == untouched.bit_generator.state
    with pytest.raises(TypeError, match="rng must be a numpy"):
        RandomSampler(4, 4, 4, rng=np.random.RandomState(0))


def test_the_short_chunk_comes_last_from_anywhere():
    """25 rows in chunks of 10: the chunk of 5 is the last one, and begins at 0, 10 or 20."""
    starts = set()
    sampler = RandomSampler(10, 1, 10, rng=0)
    for _ in range(40):
        *_, last = sampler.sample(25)
        (run,) = last["requests"]
        assert run.stop - run.start == 5
        starts.add(run.start)
    assert starts == {0, 10, 20}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomSampler(0, 1, 1), "chunk_size must be an integer of at least 1, got 0"),
        (lambda: RandomSampler(4, 0, 1), "preload_nchunks must be"),
        (lambda: SequentialSampler(4, 2, 9), r"batch_size cannot exceed .* use preload_nchunks=3 or more"),
        (lambda: SequentialSampler(4, 2, 3), r"must be divisible by batch_size.* use batch_size=2"),
        (lambda: RandomSampler(4, 2, 4, num_samples=0), "num_samples must be an integer of at least 1, got 0"),
        (lambda: RandomSampler(4, 2, 4, num_samples=8.0), "num_samples must be an integer of at least 1, got 8.0"),
        (lambda: RandomSampler(4, 2, 4, mask=slice(0, 10, 2)), r"mask\.step must be 1"),
        (lambda: RandomSampler(4, 2, 4, mask=slice(-3, None)), "must be >= 0"),
        (lambda: RandomSampler(4, 2, 4, mask=slice(5, 5)), r"must be < mask\.stop"),
        (lambda: list(RandomSampler(4, 2, 4, mask=slice(0, 50)).sample(20)), r"mask.stop \(50\) exceeds the 20 rows"),
        (lambda: list(RandomSampler(4, 2, 4, mask=slice(30, None)).sample(20)), "leaves no row"),
        (lambda: list(RandomSampler(4, 2, 4).sample(0)), "has no rows: add data first, with use_collection"),
        (lambda: list(RandomSampler(4, 2, 4, num_samples=21).sample(20)), "cannot exceed the 20 rows"),
        (lambda: RandomSampler(4, 2, 4).set_epoch(-1), "an epoch must be an integer"),
    ],
)
def test_what_cannot_work_says_what_to_change(make, said):
    """Wrong sizes, masks and numbers are refused with the mend."""
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(("mask", "n_obs"), [(None, 5), (slice(50, 55), 100)])
def test_more_draws_than_a_range_that_holds_no_chunk(mask, n_obs):
    """With replacement, too, a range below chunk_size gives no more than its rows; as many as these it does."""
    options = {"replacement": True, "mask": mask, "rng": 0}
    with pytest.raises(ValueError, match=r"the 5 rows .* smaller than chunk_size \(10\), but num_samples \(15\)"):
        list(RandomSampler(10, 2, 5, num_samples=15, **options).sample(n_obs))
    assert sum(map(len, sampled_rows(RandomSampler(10, 2, 5, num_samples=5, **options), n_obs))) == 5
    assert sum(map(len, sampled_rows(RandomSampler(10, 2, 5, **options), n_obs))) == 5
