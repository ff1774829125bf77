"""Samplers on several ranks."""

import copy
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.samplers import ClassSampler, DistributedSampler, RandomSampler, SequentialSampler
from rankwise.errors import ConfigError, WorldError
from rankwise.testing import run_ranks
from rankwise.testing.stores.small_rows import sampled_rows


def on_ranks(world, make, **options):
    return [DistributedSampler(make(), dist_info=lambda rank=rank: (rank, world), **options) for rank in range(world)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 50), st.booleans(), st.booleans())
def test_ranks_share_the_mask(world, size, start, shuffle, equal):
    """Disjoint parts of the mask; equal batches where promised; two epochs show every row."""
    batch = 8
    mask, n_obs = slice(start, start + size), start + size + 13

    def make():
        return RandomSampler(4, 4, batch, mask=mask, rng=4) if shuffle else SequentialSampler(4, 4, batch, mask=mask)

    ranks = on_ranks(world, make, enforce_equal_batches=equal)
    if size // world < (batch if equal else 1):
        with pytest.raises(ValueError, match=f"{world} ranks share {size} rows"):
            [list(rank.sample(n_obs)) for rank in ranks]
        return
    shown = set()
    for _ in range(2):
        out = [sampled_rows(rank, n_obs) for rank in ranks]
        assert [len(b) for b in out] == [rank.n_batches(n_obs) for rank in ranks]
        rows = np.concatenate([np.concatenate(b) for b in out]).tolist()
        assert len(rows) == len(set(rows))
        assert set(rows) <= set(range(start, start + size))
        if equal:
            assert {len(b) for b in out} == {size // world // batch}
            assert {len(rows) for b in out for rows in b} == {batch}
        else:
            assert len(rows) == size
        shown.update(rows)
    assert shown == set(range(start, start + size))


def test_a_training_split_stays_one():
    """Rows of a validation split do not leak to any rank."""
    ranks = on_ranks(2, lambda: RandomSampler(64, 4, 128, mask=slice(0, 5000), rng=0))
    rows = np.concatenate([np.concatenate(sampled_rows(rank, 10_000)) for rank in ranks])
    assert rows.max() < 5000
    ranks[0].mask = slice(5000, None)
    assert np.concatenate(sampled_rows(ranks[0], 10_000)).min() >= 5000


@pytest.mark.parametrize("equal", [True, False])
def test_more_ranks_than_rows_fail_together(equal):
    """Every rank refuses, those that would have had a row too: none is left waiting for the others."""
    for rank in range(3):
        sampler = DistributedSampler(
            RandomSampler(1, 1, 1), dist_info=lambda rank=rank: (rank, 3), enforce_equal_batches=equal
        )
        with pytest.raises(ConfigError, match="3 ranks share 2 rows"):
            next(sampler.sample(2))


@pytest.mark.parametrize("equal", [False, True])
def test_parts_without_a_class_fail_together(equal):
    """Rows of a weight above 0 are missing on one rank: all ranks say which, in epochs of either parity."""
    classes = pd.Categorical.from_codes([0] * 30 + [1] * 30, ["B", "T"])

    def make(weights):
        return ClassSampler(4, 2, 8, classes=classes, class_weights=weights, num_samples=16, rng=0)

    for epoch in range(2):
        for sampler in on_ranks(3, partial(make, [1, 0]), enforce_equal_batches=equal):
            sampler.set_epoch(epoch)
            with pytest.raises(
                ConfigError, match=r"rank 2 of 3 has the rows 40 to 5\d, of which no class has a positive"
            ):
                next(sampler.sample(60))
    drawn = [np.concatenate(sampled_rows(sampler, 60)) for sampler in on_ranks(2, partial(make, [1, 1]))]
    assert (drawn[0].max() < 30, drawn[1].min() >= 30, [len(rows) for rows in drawn]) == (True, True, [16, 16])


def test_the_callers_sampler_is_left_alone():
    """Its mask, generator and epoch are as before; changes to it do not reach the copy."""
    sampler = RandomSampler(4, 4, 8, mask=slice(0, 60), rng=0)
    state = copy.deepcopy(sampler.rng.bit_generator.state)
    shared = DistributedSampler(sampler, dist_info=lambda: (0, 2))
    first = [b.tolist() for b in sampled_rows(shared, 100)]
    assert (sampler.mask, sampler.epoch) == (slice(0, 60), 0)
    assert sampler.rng.bit_generator.state == state
    sampler.mask = slice(0, 8)
    again = DistributedSampler(RandomSampler(4, 4, 8, mask=slice(0, 60), rng=0), dist_info=lambda: (0, 2))
    assert [b.tolist() for b in sampled_rows(again, 100)] == first
    assert [b.tolist() for b in sampled_rows(again, 100)] == [b.tolist() for b in sampled_rows(shared, 100)] != first


def test_epochs_are_reached_without_those_before():
    """set_epoch(3) is the fourth pass, rows left out included; counting goes on from there."""
    counted, chosen = (on_ranks(3, lambda: RandomSampler(4, 4, 8, rng=7))[1] for _ in range(2))
    passes = [[b.tolist() for b in sampled_rows(counted, 100)] for _ in range(5)]
    chosen.set_epoch(3)
    assert [b.tolist() for b in sampled_rows(chosen, 100)] == passes[3]
    passing = chosen.sample(100)
    next(passing)
    assert chosen.n_batches(100) == len(passes[4])
    passing.close()
    chosen.set_epoch(4)
    assert [b.tolist() for b in sampled_rows(chosen, 100)] == passes[4]
    chosen.rng = counted.rng = np.random.default_rng(1)
    assert chosen.epoch == counted.epoch == 0


def test_who_the_ranks_are(monkeypatch):
    """Something else, impossible ranks, and frameworks that do not know yet are told; JAX's answer is taken."""
    known = SimpleNamespace(is_initialized=lambda: False)
    jax = SimpleNamespace(distributed=known, process_index=lambda: 1, process_count=lambda: 3)
    monkeypatch.setitem(sys.modules, "jax", jax)
    sampler = SequentialSampler(4, 4, 8)
    with pytest.raises(ValueError, match="dist_info must be 'torch', 'jax'"):
        DistributedSampler(sampler, dist_info="mpi")
    with pytest.raises(ValueError, match="0 <= rank < ranks"):
        DistributedSampler(sampler, dist_info=lambda: (2, 2))
    with pytest.raises(WorldError, match=r"torch\.distributed is not initialized"):
        DistributedSampler(sampler, dist_info="torch")
    with pytest.raises(RuntimeError, match="JAX distributed is not initialized"):
        DistributedSampler(sampler, dist_info="jax")
    known.is_initialized = lambda: True
    assert sampled_rows(DistributedSampler(sampler, dist_info="jax"), 24)[0].tolist() == [*range(8, 16)]


def _rows_of_rank(world):
    import torch.distributed as dist

    sampler = DistributedSampler(RandomSampler(8, 4, 16, rng=0), dist_info="torch")
    out = [np.concatenate(sampled_rows(sampler, 1001)).tolist() for _ in range(2)]
    dist.barrier()
    assert world.world_size == dist.get_world_size()
    return dist.get_rank(), out


def test_two_real_ranks():
    """The group's ranks are found: disjoint rows, and all of them after two epochs."""
    (rank_0, first), (rank_1, second) = run_ranks(_rows_of_rank, 2)
    assert (rank_0, rank_1) == (0, 1)
    for mine, others in zip(first, second, strict=True):
        assert not set(mine) & set(others)
        assert len(mine) == len(others) == 496
    assert {row for part in (*first, *second) for row in part} == set(range(1001))


def test_every_rank_refuses_what_one_of_them_cannot_draw():
    """19 rows are 10 for one rank and 9 for the other, below a chunk of 10: both say so, and nobody waits."""
    for rank in range(2):
        sampler = RandomSampler(10, 2, 5, replacement=True, num_samples=20, rng=0)
        shared = DistributedSampler(sampler, dist_info=lambda rank=rank: (rank, 2), enforce_equal_batches=False)
        with pytest.raises(ValueError, match=r"the 9 rows of the range .* smaller than chunk_size"):
            list(shared.sample(19))
