"""Rows in the order that is the same at every world size, on one rank and on several."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rankwise import Order
from rankwise.data.rows import OrderedLoader, RowSource
from rankwise.errors import SampleError
from rankwise.testing import run_ranks
from rankwise.testing.new_threads import threads_since
from rankwise.testing.shares import RankPlace
from rankwise.testing.shares import loader_of as rank_loader_of
from rankwise.testing.stores.row_stores import NUM_COLS, make_stores
from rankwise.testing.stores.small_rows import csr_parts
from rankwise.train import ExactStep, prepare
from rankwise.world import World

BATCH = 10
FIELDS = {"matrices": ("X", "layers/counts", "obsm/pca"), "obs": ("n", "donor")}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


def loader_of(places, world, *, batch_size=BATCH, source=None, **options):
    source = RowSource(places, threads=1, **(source or FIELDS))
    return OrderedLoader(source, order=Order(source, batch_size=batch_size), world=world, **options)


def array_of(field):
    parts = csr_parts(field)
    if parts is None:
        return field.numpy()
    return scipy.sparse.csr_matrix(tuple(part.numpy() for part in parts), shape=tuple(field.shape)).toarray()


def seen_by(loader, steps=None):
    """What each step brought, in the order of ids; marks the steps done."""
    seen = []
    for number, batches in enumerate(loader):
        for batch in batches:
            rows = loader.source.row_numbers(batch.ids)
            seen += [(number, int(row), array_of(batch["X"])[at].tolist()) for at, row in enumerate(rows)]
        loader.mark_done(batches[-1].resume)
        if steps is not None and number + 1 == steps:
            break
    return seen


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_each_row_once_and_right(held, world_size, micro_batch):
    """All fields of all ranks: exactly once, each with its own matrices and obs, a smaller last batch, empty shares."""
    rows, sizes = [], []
    for rank in range(world_size):
        loader = loader_of(held.places, RankPlace(rank, world_size), micro_batch=micro_batch)
        categories = loader.source.categories["donor"]
        for number, batches in enumerate(loader):
            for batch in batches:
                ids = batch.ids
                np.testing.assert_array_equal(array_of(batch["X"]), held.dense("X")[ids])
                np.testing.assert_array_equal(array_of(batch["layers/counts"]), held.dense("layers/counts")[ids])
                np.testing.assert_array_equal(array_of(batch["obsm/pca"]), held.dense("obsm/pca")[ids])
                assert batch["n"].tolist() == held.obs["n"].to_numpy()[ids].tolist()
                assert [categories[code] for code in batch["donor"]] == held.obs["donor"].to_numpy()[ids].tolist()
                rows += ids.tolist()
                sizes += [number] * len(ids)
    assert sorted(rows) == list(range(93))
    assert np.bincount(sizes).tolist() == [BATCH] * 9 + [3]


def test_the_same_batches_at_every_world_size(held):
    """Step by step the ranks of any world together see the rows that one rank sees."""
    one = seen_by(loader_of(held.places, RankPlace()))
    for size in (2, 4):
        several = [row for rank in range(size) for row in seen_by(loader_of(held.places, RankPlace(rank, size)))]
        assert sorted(several) == sorted(one)


def test_it_continues_at_another_world_size(held):
    """A state of the middle of an epoch, saved by two ranks, goes on with three: what is left, once."""
    whole = seen_by(loader_of(held.places, RankPlace()))
    first = loader_of(held.places, RankPlace(0, 2))
    seen_by(first, steps=4)
    state = json.loads(json.dumps(first.state_dict()))
    rest = []
    for rank in range(3):
        later = loader_of(held.places, RankPlace(rank, 3))
        later.load_state_dict(state)
        rest += [(number + 4, *row) for number, *row in seen_by(later)]
    assert sorted(rest) == sorted(row for row in whole if row[0] >= 4)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_stores_orders_and_worlds(tmp_path, data):
    """Random sizes, dtypes, chunks, batches, worlds and epochs, sparse and dense: each row once, and itself."""
    draw = data.draw
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    dtype, chunk = draw(st.sampled_from(["f4", "f8", "i4", "u1"])), draw(st.integers(1, 60))
    stores = make_stores(folder, sizes, dtype=dtype, chunk=chunk)
    world_size, batch_size = draw(st.integers(1, 5)), draw(st.integers(1, 30))
    source = RowSource(stores.places, obs=("n",), dense=draw(st.booleans()), threads=1, cache=2**12)
    order = Order(source, batch_size=batch_size, seed=draw(st.integers(0, 9)), window=draw(st.integers(1, 4)))
    assert source.locality.chunk_samples <= max(1, sum(sizes))
    seen = []
    for rank in range(world_size):
        loader = rank_loader_of(
            source, order, rank=rank, world_size=world_size, micro_batch=draw(st.none() | st.just(3))
        )
        loader.set_epoch(draw(st.integers(0, 3)) if world_size == 1 else 2)
        for batches in loader:
            for batch in batches:
                rows = batch["X"].toarray() if hasattr(batch["X"], "toarray") else batch["X"]
                np.testing.assert_array_equal(rows, stores.dense("X")[batch.ids])
                assert rows.dtype == np.dtype(dtype)
                assert batch["n"].tolist() == stores.obs["n"].to_numpy()[batch.ids].tolist()
                seen += batch.ids.tolist()
    assert sorted(seen) == list(range(sum(sizes)))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_batches_lie_in_reused_memory(held, device):
    """SciPy without a device, torch with one, both over the loader's memory; a detached batch stays as it was."""
    loader = loader_of(held.places, RankPlace(), device=device)
    kept, wanted = [], []
    for (batch,) in loader:
        kept.append(batch.detach())
        wanted.append(batch.ids)
        assert batch["X"].shape == (len(batch), NUM_COLS)
        assert "int32" in str(batch["X"].indices.dtype if device is None else batch["X"].crow_indices().dtype)
    for batch, ids in zip(kept, wanted, strict=True):
        rows = batch["X"].toarray() if device is None else array_of(batch["X"])
        np.testing.assert_array_equal(rows, held.dense("X")[ids])


def test_transforms(held):
    """Whole batches, sparse or dense; single rows where they are dense."""

    def doubled(fields, keys):
        return {"x": fields["X"] * 2, "n": fields["n"] + keys * 0}

    for source in ({"obs": ("n",)}, {"obs": ("n",), "dense": True}):
        for (batch,) in loader_of(held.places, RankPlace(), source=source, batch_transform=doubled):
            np.testing.assert_array_equal(array_of(batch["x"]), held.dense("X")[batch.ids] * 2)
    dense = {"genes": [0, 4]}
    for (batch,) in loader_of(held.places, RankPlace(), source=dense, transform=lambda f, _: {"x": f["X"].sum()}):
        assert batch["x"].tolist() == held.dense("X")[batch.ids][:, [0, 4]].sum(axis=1).tolist()


def test_unknown_arguments_are_compared_with_those_of_the_source(held):
    """Options of the rows and of the loader are passed to one class, which knows both."""
    with pytest.raises(TypeError, match=r"^OrderedLoader has no argument genez=: did you mean genes="):
        loader_of(held.places, RankPlace(), genez=["a"])


def test_sparse_rows_one_by_one(held):
    """A transform of single sparse rows, random by key: the same rows on three ranks as on one; the slow way."""

    def dropped(fields, key):
        row = fields["X"]
        row.data *= np.random.default_rng(key & (2**63 - 1)).random(row.nnz) < 0.5
        return {"X": row, "n": fields["n"]}

    def rows_of(world):
        loader = loader_of(held.places, world, source={"obs": ("n",)}, transform=dropped)
        return [
            (n, row)
            for (batch,) in loader
            for n, row in zip(batch["n"].tolist(), array_of(batch["X"]).tolist(), strict=True)
        ]

    one = rows_of(RankPlace())
    assert sorted(one) == sorted(row for rank in range(3) for row in rows_of(RankPlace(rank, 3)))
    whole = dict(zip(held.obs["n"].tolist(), held.dense("X"), strict=True))
    assert all(got in (0, was) for n, row in one for got, was in zip(row, whole[n], strict=True))
    assert 0.3 < sum(np.count_nonzero(row) for _, row in one) / held.matrices["X"].nnz < 0.7


def test_damage_raises_or_is_skipped(tmp_path):
    """A damaged chunk ends the epoch, or its rows are left out within the budget, all fields alike."""
    held = make_stores(tmp_path)
    chunk = next(p for p in Path(held.places[1], "X", "data").rglob("*") if p.is_file() and p.name == "0")
    chunk.write_bytes(b"nonsense")
    with pytest.raises(SampleError, match=r"of .*1.zarr\) cannot be read"):
        list(loader_of(held.places, RankPlace()))
    for source in ({"obs": ("n",)}, {"obs": ("n",), "dense": True}):
        loader = loader_of(held.places, RankPlace(), source=source, on_bad_sample=40)
        seen = []
        for (batch,) in loader:
            np.testing.assert_array_equal(array_of(batch["X"]), held.dense("X")[batch.ids])
            assert batch["n"].tolist() == held.obs["n"].to_numpy()[batch.ids].tolist()
            seen += batch.ids.tolist()
        bad = np.flatnonzero(np.diff(held.matrices["X"].indptr) > 0)
        assert sorted(seen) == sorted(set(range(93)) - set(bad[bad >= 53].tolist()))
        assert loader.stats.skipped == 93 - len(seen)
        loader.close()


def train(world, places, source):
    """Parameters and losses of a few steps of a small classifier over sparse or dense rows."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    options = {"obs": ("donor",), "dtype": "f8", "rows": range(40, 61), **source}
    loader = loader_of(places, world, batch_size=2, source=options)  # three ranks: one is empty in every step
    model = prepare(nn.Linear(NUM_COLS, 19).double(), world)

    def step_fn(model, batch):
        return nn.functional.cross_entropy(model(batch["X"]), batch["donor"].long(), reduction="none")

    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=1e-4), step_fn, world=world)
    for batches in loader:
        loader.mark_done(step(batches).resume)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train_both(world, places):
    return [train(world, places, source) for source in ({}, {"dense": True})]


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_ranks_train_like_one(held, num_ranks):
    """Sparse and dense rows through the exact step on real ranks: the parameters of one rank, within 1e-12."""
    wanted = train(World.single(), held.places, {})
    for found in run_ranks(train_both, num_ranks, held.places):
        for got in found:
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_over_the_end_of_an_epoch(held):
    """The first window of the next epoch is read once, in the background: batches and counts are as without that.

    Also on each of two ranks, and where the epoch that follows is another than was foreseen.
    """
    epochs = (0, 1, 2, 5, 6, 6)
    for rank in range(2):
        found = []
        for across_epochs in (True, False):
            loader = loader_of(
                held.places, RankPlace(rank, 2), source={**FIELDS, "cache": 0}, across_epochs=across_epochs
            )
            shown = []
            for epoch in epochs:
                loader.set_epoch(epoch)
                shown.append((seen_by(loader), loader.state_dict(), loader.stats.chunks_decoded))
            found.append(shown)
            loader.close()
            assert not threads_since("rankwise-reader")
        assert found[0] == found[1]
        assert len(found[0][0][0]) > 0
