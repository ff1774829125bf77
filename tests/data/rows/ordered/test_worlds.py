"""Drawn, mixed, split and chosen rows on real ranks: the global batches of one rank, stopped and continued."""

import json

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.rows import DatasetCollection, OrderedLoader, RowSource, log1p_cpm
from rankwise.testing import run_ranks
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.row_stores import make_stores
from rankwise.world import World

BATCH = 16
CASES = ("plain", "balance", "weights", "mix", "balanced mix", "split", "subset", "drawn split")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    held = make_stores(tmp_path_factory.mktemp("stores"), (70, 40), chunk=20)
    whole = DatasetCollection(tmp_path_factory.mktemp("whole") / "cells.zarr").add_adatas(held.places, rng=0)
    return [str(whole.path), *held.places]


DRAWS = {
    "plain": {},
    "balance": {"balance": "kind", "together": 3},
    "weights": {"weights": np.arange(110), "num_samples": 90},
    "mix": {"mix": [0.3, 0.7], "num_samples": 150},
    "balanced mix": {"mix": [0.3, 0.7], "balance": "kind", "together": 2},
    "drawn split": {"balance": "kind"},
}


def case_of(places, case):
    """A collection, and an order of it."""
    whole, *stores = places
    rows = stores if "mix" in case else whole
    collection = DatasetCollection(whole, mode="r")
    if case == "subset":
        rows = collection.subset(collection.obs(["n"])["n"].to_numpy() % 3 > 0)
    elif "split" in case:
        rows, _ = collection.split(by="donor", fractions=(0.6, 0.4), seed=2)
    return rows, Order(rows, batch_size=BATCH, **DRAWS.get(case, {}))


def noisy(fields, keys):
    """A transform of whole batches that is random by key."""
    return {**fields, "noise": keys % 1000}


def batches_of(world, places, case, *, state=None, steps=None):
    """What each step brings to this rank, and where the loader stands after it."""
    rows, order = case_of(places, case)
    loader = OrderedLoader(rows, order=order, obs=["n"], dense=True, world=world, micro_batch=5, batch_transform=noisy)
    if state is not None:
        loader.load_state_dict(state)
    seen = []
    for number, batches in enumerate(loader):
        for batch in batches:
            held = [batch["X"], batch["n"], batch["noise"]]
            seen += [(batch.share.step.start, *(field[at].tolist() for field in held)) for at in range(len(batch))]
        loader.mark_done(batches[-1].resume)
        if number + 1 == steps:
            break
    return seen, loader.state_dict()


def all_cases(world, places, states=None, steps=None):
    return [
        batches_of(world, places, case, state=None if states is None else states[case], steps=steps) for case in CASES
    ]


def test_one_order_at_every_world_size(places):
    """Three ranks see together, step by step, what one sees; so do two that go on where three were stopped.

    Matrices, obs and what a transform keyed by the sample makes of them, for every way of choosing rows.
    """
    alone = [seen for seen, _ in all_cases(World.single(), places)]
    by_rank = run_ranks(all_cases, 3, places)
    for number, case in enumerate(CASES):
        assert sorted(row for rank in by_rank for row in rank[number][0]) == sorted(alone[number]), case
    stopped = run_ranks(all_cases, 3, places, None, 3)
    states = {case: json.loads(json.dumps(stopped[0][number][1])) for number, case in enumerate(CASES)}
    rest = all_cases(World.single(), places, states)
    for number, case in enumerate(CASES):
        before = [row for rank in stopped for row in rank[number][0]]
        assert sorted(before + rest[number][0]) == sorted(alone[number]), case
        assert len({rank[number][1]["position"] for rank in stopped}) == 1
    sizes = {case: len(seen) for case, seen in zip(CASES, alone, strict=True)}
    assert (sizes["plain"], sizes["weights"], sizes["mix"]) == (110, 90, 150)
    assert sorted(n for _, _, n, _ in alone[CASES.index("plain")]) == sorted([*range(70), *range(1000, 1040)])


def test_a_mix_goes_on_with_another_batch_size(places):
    """The samples that are left are the same ones, whatever the size of the batches that they come in."""
    _, *stores = places
    orders = [Order(stores, mix=[0.3, 0.7], num_samples=150, batch_size=size) for size in (16, 7)]
    loaders = [OrderedLoader(stores, order=order, obs=["n"], device=None) for order in orders]
    first, whole = [], []
    for number, (batch,) in enumerate(loaders[0]):
        whole += batch["n"].tolist()
        if number < 4:
            first += batch["n"].tolist()
            loaders[0].mark_done(batch.resume)
    loaders[1].load_state_dict(loaders[0].state_dict())
    rest = [n for (batch,) in loaders[1] for n in batch["n"].tolist()]
    assert len(rest) == 150 - 64
    assert sorted(first + rest) == sorted(whole)


def test_every_batch_holds_its_shares(places):
    """Of a mix each global batch has the asked share of each store, within two rows."""
    _, *stores = places
    seen, _ = batches_of(World.single(), places, "mix")
    counts = np.zeros((10, 2))
    for start, _, n, _ in seen:
        counts[start // BATCH, int(n >= 1000)] += 1
    assert np.abs(counts[:9] - BATCH * np.array([0.3, 0.7])).max() <= 2
    source = RowSource(stores)
    ranked = [len(source.drawn(mix=[0.3, 0.7])), len(source)]
    assert ranked == [110, 110]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_mix_reads_chunks_about_once(tmp_path, world_size):
    """A mix decodes about what an order of the same stores does, on several ranks too: they read lanes of their own."""
    stores = make_stores(tmp_path, (1600, 800), chunk=40).places

    def decoded(order):
        total = 0
        for rank in range(world_size):
            loader = OrderedLoader(stores, order=order, device=None, world=RankPlace(rank, world_size), threads=1)
            assert sum(len(batch) for (batch,) in loader) == 2400 // world_size
            total += loader.source.stats.chunks_decoded
        return total

    plain, mixed = (Order(stores, batch_size=64, **mix) for mix in ({}, {"mix": [2, 1]}))
    assert decoded(mixed) < 1.2 * decoded(plain)


def test_log1p_is_the_same_on_any_world(places):
    """A shipped transform over drawn rows, ragged at the end: rows depend on themselves alone."""
    order = Order(places[0], batch_size=BATCH, balance="kind", num_samples=50)
    loader = OrderedLoader(places[0], order=order, device=None, dense=True, batch_transform=log1p_cpm)
    sizes = [len(batch) for (batch,) in loader]
    assert sizes == [16, 16, 16, 2]
