import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.contract import (
    ListedIds,
    OrderState,
    Step,
    num_micro_batches,
    sample_keys,
    shares,
    smallest_share,
    whole_number,
    whole_speeds,
)
from rankwise.errors import ConfigError


def make_step(count, *, lanes=1, start=0, padded=None):
    state = OrderState(seed=1, epoch=0, position=start + count, recipe="r")
    total = padded or count
    ids = 1000 + np.resize(np.arange(count), total)
    lane = (start + np.resize(np.arange(count), total)) % lanes
    members = ListedIds(ids=ids, lanes=lane)
    return Step(epoch=0, index=0, start=start, count=count, size=len(ids), members=members, resume=state)


@given(
    count=st.integers(1, 600),
    world=st.one_of(st.integers(1, 130), st.sampled_from([40, 48, 56, 72])),
    num_micro=st.integers(1, 9),
    lanes=st.integers(1, 70),
    start=st.integers(0, 1000),
)
@settings(max_examples=120, deadline=None)
def test_shares_cut_a_step_exactly(count, world, num_micro, lanes, start):
    """Promise 2: over ranks and micro-batches each id once, with its position; sizes differ by at most one."""
    step = make_step(count, lanes=lanes, start=start)
    by_rank = [shares(step, rank=rank, world_size=world, num_micro=num_micro) for rank in range(world)]
    every = [share for parts in by_rank for share in parts]
    ids = np.concatenate([share.ids for share in every])
    positions = np.concatenate([share.positions for share in every])
    assert np.array_equal(ids, step.ids[positions - start])
    assert np.array_equal(np.sort(ids), step.ids)
    # Ranks take runs of the lane-sorted batch: in the order of ranks the lanes never fall.
    assert np.all(np.diff(step.lanes[positions - start]) >= 0)
    totals = [sum(share.num_samples for share in parts) for parts in by_rank]
    assert max(totals) - min(totals) <= 1
    for rank, parts in enumerate(by_rank):
        sizes = [share.num_samples for share in parts]
        assert max(sizes) - min(sizes) <= 1
        assert [share.micro for share in parts] == list(range(num_micro))
        assert {(share.rank, share.world_size, share.num_micro) for share in parts} == {(rank, world, num_micro)}
        assert all(share.weights is None for share in parts)


@given(count=st.integers(1, 100), more=st.integers(1, 100), world=st.integers(1, 20), num_micro=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_padding_has_weight_zero(count, more, world, num_micro):
    """Padding is shared out like samples, with weight 0; the entries of weight 1 are the real ids, once each."""
    step = make_step(count, lanes=5, padded=count + more)
    every = [s for r in range(world) for s in shares(step, rank=r, world_size=world, num_micro=num_micro)]
    weights = np.concatenate([share.weights for share in every])
    assert len(weights) == count + more
    assert weights.sum() == count
    ids = np.concatenate([share.ids for share in every])
    assert np.array_equal(np.sort(ids[weights == 1]), step.ids[:count])


@given(count=st.integers(1, 2000), world=st.integers(1, 130), micro=st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_micro_batches_are_few_enough_and_small_enough(count, world, micro):
    """No pass of any rank exceeds micro_batch, and one micro-batch fewer would."""
    num_micro = num_micro_batches(count, world_size=world, micro_batch=micro)
    largest = -(-count // world)
    assert -(-largest // num_micro) <= micro
    assert num_micro == 1 or -(-largest // (num_micro - 1)) > micro
    assert num_micro_batches(count, world_size=world, micro_batch=None) == 1


def test_shares_and_micro_batches_refuse_nonsense():
    """Ranks outside the world and micro-batches below one are refused with the numbers."""
    step = make_step(4)
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match=f"rank {rank} of {world}"):
            shares(step, rank=rank, world_size=world, num_micro=1)
    with pytest.raises(ConfigError, match="num_micro >= 1"):
        shares(step, rank=0, world_size=1, num_micro=0)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        num_micro_batches(4, world_size=1, micro_batch=0)


@given(
    seed=st.integers(-(2**80), 2**80),
    epoch=st.integers(0, 2**40),
    position=st.integers(0, 2**62),
    recipe=st.text(max_size=30),
)
def test_a_state_goes_through_json(seed, epoch, position, recipe):
    """A state comes back from its JSON text unchanged, whatever the seed."""
    state = OrderState(seed=seed, epoch=epoch, position=position, recipe=recipe)
    assert OrderState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_state_is_a_few_dozen_bytes():
    """A state is small enough to be sent with every batch."""
    state = OrderState(seed=1889, epoch=3, position=10**9, recipe="v1.shuffle.L64.W16.0123456789abcdef")
    assert len(json.dumps(state.to_json())) < 130


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"epoch": -1}, "epoch >= 0"),
        ({"position": -5}, "-5"),
        ({"extra": 1}, "needs the fields"),
        ({"seed": None}, "seed"),
        ({"position": "12"}, "position"),
        ({"position": 1.5}, "position"),
        ({"recipe": 5}, "recipe"),
    ],
)
def test_a_damaged_state_is_refused(change, words):
    """A missing, unknown or impossible value is a ConfigError that names it, never a guess."""
    good = OrderState(seed=1, epoch=2, position=3, recipe="r").to_json()
    with pytest.raises(ConfigError, match=words):
        OrderState.from_json({**good, **change})


def test_a_state_with_a_missing_field_is_refused():
    """The message lists what a state has and what came."""
    with pytest.raises(ConfigError, match=r"epoch.*got.*seed"):
        OrderState.from_json({"seed": 1})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "n must be an integer from 1 to 5, got 0"),
        (6, "n must be an integer from 1 to 5, got 6"),
        (3.0, "n must be an integer from 1 to 5, got 3.0"),
        (True, "n must be an integer from 1 to 5, got True"),
        ("3", "n must be an integer from 1 to 5, got '3'"),
        (np.array([3]), r"n must be an integer from 1 to 5, got array\(\[3\]\)"),
    ],
)
def test_counts_are_integers(value, said):
    """Any integer type passes, as Python's own; fractions, truth values and numbers out of range do not."""
    for three in (3, np.int32(3), np.uint64(3), np.array(3)):
        assert type(whole_number("n", three, least=1, most=5)) is int
    with pytest.raises(ConfigError, match=f"^{said}: the mend$"):
        whole_number("n", value, least=1, most=5, mend=": the mend")


@given(
    ids=st.lists(st.integers(0, 2**62), max_size=50),
    seed=st.integers(-(2**65), 2**65),
    epoch=st.integers(0, 2**33),
    cut=st.integers(0, 50),
)
def test_keys_do_not_depend_on_the_split(ids, seed, epoch, cut):
    """Promise 1: a sample has the same key in whatever batch, share or position it comes."""
    whole = sample_keys(seed, epoch, np.array(ids, dtype=np.int64))
    assert whole.dtype == np.int64
    parts = [sample_keys(seed, epoch, np.array(part, dtype=np.int64)) for part in (ids[:cut], ids[cut:])]
    assert np.array_equal(np.concatenate(parts), whole)


def test_keys_are_spread():
    """Samples, epochs and seeds all give different keys; each bit is set in about half of them."""
    keys = np.concatenate([sample_keys(seed, epoch, np.arange(2000)) for seed in range(4) for epoch in range(4)])
    assert len(np.unique(keys)) == len(keys)
    bits = (keys.view(np.uint64)[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 5 * 0.5 / np.sqrt(len(keys)))


@given(
    count=st.integers(1, 300),
    speeds=st.lists(st.floats(0.01, 1000), min_size=1, max_size=9),
    micro=st.integers(1, 40),
)
@settings(max_examples=100, deadline=None)
def test_shares_by_speed_cut_a_step_exactly(count, speeds, micro):
    """Every sample once, in the same order; nobody is left without one; no pass exceeds micro_batch; equal is even."""
    step, size = make_step(count), len(speeds)
    whole = whole_speeds(speeds, world_size=size)
    num_micro = num_micro_batches(count, world_size=size, micro_batch=micro, speeds=whole)
    every = [shares(step, rank=r, world_size=size, num_micro=num_micro, speeds=whole) for r in range(size)]
    ids = np.concatenate([share.ids for parts in every for share in parts])
    even = [shares(step, rank=r, world_size=size, num_micro=1)[0].ids for r in range(size)]
    assert np.array_equal(ids, np.concatenate(even))
    sizes = [sum(share.num_samples for share in parts) for parts in every]
    assert min(sizes) == smallest_share(every[0][0])
    assert min(sizes) >= int(count >= size)
    assert max(share.num_samples for parts in every for share in parts) <= micro
    assert all(abs(n - count * s / sum(whole)) < 2 + size for n, s in zip(sizes, whole, strict=True))
    same = [shares(step, rank=r, world_size=size, num_micro=1, speeds=(64,) * size)[0].ids for r in range(size)]
    assert all(np.array_equal(a, b) for a, b in zip(same, even, strict=True))
