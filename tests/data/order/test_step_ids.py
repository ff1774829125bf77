"""A rank computes the ids of its own share only, and they are those that a cut of the whole step gives."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.contract import ListedIds, shares

RANKS = 16_384


def cut_whole(step, **cut):
    """The shares of a step of which every id is computed and sorted."""
    listed = ListedIds(ids=step.ids, lanes=step.lanes)
    return shares(replace(step, members=listed), **cut)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3000),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["split", "drop", "pad"]),
    st.data(),
)
def test_shares_are_those_of_the_whole_step(samples, chunk, lanes, remainder, data):
    """At any world size, batch size, grid and position, with padding and speeds, in whatever order steps are asked."""
    batch = data.draw(st.integers(1, min(700, samples)))
    kind = data.draw(st.sampled_from(["shuffle", "sequential"]))
    grid = {"lanes": min(lanes, samples)} if kind == "shuffle" else {}
    order = Order(
        samples,
        batch_size=batch,
        chunk_samples=chunk,
        seed=data.draw(st.integers(0, 2**32)),
        kind=kind,
        remainder=remainder,
        **grid,
    )
    world = data.draw(st.sampled_from([1, 2, 3, 8, 9, 64, 300]))
    rank = data.draw(st.integers(0, world - 1))
    cut = {"rank": rank, "world_size": world, "num_micro": data.draw(st.integers(1, 3))}
    if data.draw(st.booleans()):
        cut["speeds"] = data.draw(st.lists(st.integers(1, 64), min_size=world, max_size=world))
    for _ in range(4):
        step = order.step(order.state_at(epoch=1, position=data.draw(st.integers(0, samples))))
        for ours, slow in zip(shares(step, **cut), cut_whole(step, **cut), strict=True):
            assert np.array_equal(ours.ids, slow.ids)
            assert np.array_equal(ours.positions, slow.positions)
            assert (ours.weights is None) == (slow.weights is None)
            assert ours.weights is None or np.array_equal(ours.weights, slow.weights)


def test_a_share_is_its_holders():
    """What is written into a share's ids is not seen by the next one who asks."""
    order = Order(100_000, batch_size=2048, chunk_samples=16, seed=3)
    step = order.step(order.start())
    cut = {"rank": 5, "world_size": 64, "num_micro": 1}
    kept = shares(step, **cut)[0].ids.copy()
    shares(step, **cut)[0].ids[:] = -1
    shares(step, **cut)[0].positions[:] = -1
    assert np.array_equal(shares(step, **cut)[0].ids, kept)


def test_a_step_costs_what_the_rank_reads(monkeypatch):
    """Of half a million ids a step, one of 16,384 ranks computes its 32, and a block of those that follow at a time."""
    computed = []
    from rankwise.data.order import lanes

    whole, some = lanes.run_of_samples, lanes.samples_at
    monkeypatch.setattr(lanes, "run_of_samples", lambda *a: computed.append(a[-1]) or whole(*a))
    monkeypatch.setattr(lanes, "samples_at", lambda *a: computed.append(len(a[-1])) or some(*a))
    order = Order(100 * 32 * RANKS, batch_size=32 * RANKS, chunk_samples=64, seed=4)
    state = order.start()
    for _ in range(100):
        step = order.step(state)
        (share,) = shares(step, rank=RANKS - 3, world_size=RANKS, num_micro=1)
        assert len(share.ids) == 32
        state = step.resume
    assert sum(computed) == 100 * 32
