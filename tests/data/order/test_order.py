import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.contract import FieldSpec, OrderState, num_micro_batches, shares
from rankwise.data.contract import Order as OrderProtocol
from rankwise.errors import ConfigError
from rankwise.testing.stores.free_plans import FreeSource

WORLDS = st.one_of(st.integers(1, 130), st.sampled_from([40, 48, 56, 72]))


@st.composite
def orders(draw, most=900, **fixed):
    size = draw(st.integers(1, most))
    kind = fixed.get("kind") or draw(st.sampled_from(["shuffle", "shuffle", "shuffle", "sequential"]))
    options = {"kind": kind, "seed": draw(st.integers(-(2**65), 2**65)), "remainder": fixed.get("remainder", "split")}
    if kind == "shuffle":
        options["lanes"] = draw(st.one_of(st.none(), st.integers(1, min(size, 80))))
        options["window"] = draw(st.one_of(st.none(), st.integers(1, 20)))
        options["chunk_samples"] = draw(st.one_of(st.none(), st.integers(1, 50)))
    most_batch = size if options["remainder"] == "drop" else 200
    least_batch = -(-size // fixed.get("steps", size))
    return Order(size, batch_size=draw(st.integers(least_batch, most_batch)), **options)


def steps_of(order, state):
    """The steps from a state to the end of its epoch."""
    found = []
    for _ in range(order.num_steps(state)):
        found.append(order.step(state))
        state = found[-1].resume
    return found


@given(order=orders(), epoch=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_an_epoch_shows_each_sample_once(order, epoch):
    """Promise 2: the steps of an epoch hold every sample once, full batches first, and lead to the next epoch."""
    assert isinstance(order, OrderProtocol)
    steps = steps_of(order, order.start(epoch))
    ids = np.concatenate([step.ids for step in steps])
    assert np.array_equal(np.sort(ids), np.arange(order.samples))
    assert [step.count for step in steps[:-1]] == [order.batch_size] * (len(steps) - 1)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert steps[-1].resume == order.start(epoch + 1)
    assert np.array_equal(ids, order.ids(np.arange(order.samples), epoch))
    assert all(np.array_equal(step.lanes, (step.start + np.arange(step.count)) % order.grid.lanes) for step in steps)


@given(order=orders(), worlds=st.lists(WORLDS, min_size=1, max_size=4), micro=st.one_of(st.none(), st.integers(1, 30)))
@settings(max_examples=30, deadline=None)
def test_ranks_share_each_step_evenly(order, worlds, micro):
    """Promises 1 and 2: at any world size the ranks' shares are the step's ids, and differ by at most one sample."""
    steps = steps_of(order, order.start())
    for step, world in zip([steps[0], steps[-1], *steps], worlds, strict=False):
        num_micro = num_micro_batches(step.count, world_size=world, micro_batch=micro)
        by_rank = [shares(step, rank=rank, world_size=world, num_micro=num_micro) for rank in range(world)]
        ids = [share.ids for parts in by_rank for share in parts]
        assert np.array_equal(np.sort(np.concatenate(ids)), np.sort(step.ids))
        sizes = [sum(share.num_samples for share in parts) for parts in by_rank]
        assert max(sizes) - min(sizes) <= 1
        pieces = [share.num_samples for parts in by_rank for share in parts]
        assert micro is None or max(pieces) <= micro
        assert all(max(p) - min(p) <= 1 for p in ([share.num_samples for share in parts] for parts in by_rank))
        assert all(share.weights is None for parts in by_rank for share in parts)
        positions = np.concatenate([share.positions for parts in by_rank for share in parts])
        assert np.array_equal(order.ids(positions, step.epoch), np.concatenate(ids))


@given(order=orders(most=600), data=st.data())
@settings(max_examples=35, deadline=None)
def test_restarts_with_other_worlds_and_batch_sizes_lose_nothing(order, data):
    """Promises 1, 2 and 5: stop anywhere, go on from the JSON state with another batch size: once each, same order."""
    undisturbed = order.ids(np.arange(order.samples), 0).tolist()
    state, shown = order.start(), []
    while state.epoch == 0:
        batch_size = data.draw(st.integers(-(-order.samples // 25), 200))  # each step is cut for each rank
        lanes = order.lanes  # where they were derived they must be adopted, not derived anew
        again = Order(
            order.samples,
            batch_size=batch_size,
            seed=order.seed,
            kind=order.kind,
            lanes=lanes,
            window=order.window,
            chunk_samples=order.chunk_samples,
        ).resumed(state)
        world = data.draw(WORLDS)
        for _ in range(data.draw(st.integers(1, 4))):
            step = again.step(state)
            parts = [shares(step, rank=rank, world_size=world, num_micro=1)[0] for rank in range(world)]
            by_position = sorted((p, i) for share in parts for p, i in zip(share.positions, share.ids, strict=True))
            shown += [int(sample) for _, sample in by_position]
            state = OrderState.from_json(step.resume.to_json())
            if state.epoch:
                break
    assert shown == undisturbed


@given(order=orders(most=500, remainder="drop"), epoch=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_drop_shows_whole_batches_only(order, epoch):
    """remainder="drop": every step is full, none is repeated, and num_samples says how many are shown."""
    steps = steps_of(order, order.start(epoch))
    assert {step.count for step in steps} == {order.batch_size}
    shown = np.concatenate([step.ids for step in steps])
    assert len(shown) == len(np.unique(shown)) == order.num_samples(epoch)
    assert order.samples - order.num_samples(epoch) < order.batch_size
    assert steps[-1].resume == order.start(epoch + 1)


@given(order=orders(most=400, remainder="pad", steps=25), world=WORLDS)  # each step is cut for each rank
@settings(max_examples=25, deadline=None)
def test_pad_fills_with_weight_zero(order, world):
    """remainder="pad": each step has batch_size ids; over the ranks the ids of weight 1 are the epoch, once each."""
    real = []
    for step in steps_of(order, order.start()):
        assert len(step.ids) == len(step.lanes) == order.batch_size
        assert set(step.ids.tolist()) == set(step.ids[: step.count].tolist())
        for rank in range(world):
            (share,) = shares(step, rank=rank, world_size=world, num_micro=1)
            weights = np.ones(share.num_samples) if share.weights is None else share.weights
            real += share.ids[weights == 1].tolist()
    assert sorted(real) == list(range(order.samples))


def test_drop_goes_on_after_a_larger_batch_size():
    """When what is left of an epoch no longer fills a batch, no step is left, and the next one opens the next epoch."""
    small = Order(100, batch_size=10, remainder="drop")
    state = steps_of(small, small.start())[7].resume
    large = Order(100, batch_size=30, remainder="drop").resumed(state)
    assert large.num_steps(state) == 0
    assert (large.step(state).epoch, large.step(state).start) == (1, 0)


def test_the_end_of_an_epoch_is_a_state_too():
    """A position of all samples means the same as the next epoch's start, but zero steps are left in it."""
    order = Order(10, batch_size=4)
    end = OrderState(seed=order.seed, epoch=2, position=10, recipe=order.recipe)
    assert order.num_steps(end) == 0
    assert np.array_equal(order.step(end).ids, order.step(order.start(3)).ids)
    assert order.state_at(epoch=2, position=10) == order.start(3)
    assert order.num_steps(order.state_at(epoch=2, position=5)) == 2


def test_the_seed_and_the_epoch_count():
    """Other seed or epoch, other order; the same ones give the same order."""
    positions = np.arange(1000)
    orders = [Order(1000, batch_size=50, seed=seed).ids(positions, epoch) for seed in (1, 2, -1) for epoch in (0, 1, 2)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).mean() < 0.02
    assert np.array_equal(orders[0], Order(1000, batch_size=7, lanes=50, seed=1).ids(positions, 0))


def test_sequential_is_the_identity():
    """kind="sequential": ids are positions, and the ranks take contiguous runs."""
    order = Order(103, batch_size=20, kind="sequential", chunk_samples=7)
    step = steps_of(order, order.start(4))[2]
    assert step.ids.tolist() == list(range(40, 60))
    runs = [shares(step, rank=rank, world_size=3, num_micro=1)[0].ids.tolist() for rank in range(3)]
    assert runs == [list(range(40, 46)), list(range(46, 53)), list(range(53, 60))]


def test_ranks_read_their_own_lanes():
    """Locality: a rank's share comes from about lanes / world_size runs of the data, not from all."""
    order = Order(64_000, batch_size=1024, chunk_samples=50)
    step = order.step(order.start())
    for rank in range(8):
        (share,) = shares(step, rank=rank, world_size=8, num_micro=1)
        assert len(np.unique(share.positions % order.grid.lanes)) == 8


def test_a_source_sets_grid_and_window():
    """Chunks, bytes and fingerprint come from a source, and what is given by hand comes first."""
    fields = {"x": FieldSpec(shape=(256, 256), dtype=np.dtype("uint8"))}
    source = FreeSource(num_samples=10_000, chunk_samples=8, fingerprint="abc", fields=fields)
    order = Order(source, batch_size=256)
    assert (order.grid.chunk_samples, order.grid.lanes, order.grid.window) == (8, 64, 4)
    assert order.recipe.startswith("v1.shuffle.L64.W4.")
    assert order.recipe != Order(source, batch_size=256, fingerprint="other").recipe
    assert Order(source, batch_size=256, chunk_bytes=1 << 20).grid.window == 2
    assert Order(source, batch_size=256, chunk_samples=4).grid.chunk_samples == 4
    assert order.samples == 10_000


def test_the_recipe_leaves_out_what_may_change():
    """Seed, batch size (once lanes are fixed), remainder and world size are not in the recipe."""
    recipes = {
        Order(1000, batch_size=size, lanes=8, seed=seed, remainder=rest).recipe
        for size in (8, 100)
        for seed in (1, 2)
        for rest in ("split", "drop", "pad")
    }
    assert len(recipes) == 1


def test_resumed_adopts_what_was_derived():
    """Another batch size derives other lanes; `resumed` takes the saved ones, again and again, from text as well."""
    first = Order(1000, batch_size=10, chunk_samples=5, chunk_bytes=1 << 20)
    state = first.step(first.start()).resume
    other = Order(1000, batch_size=64, chunk_samples=5, chunk_bytes=1 << 20)
    assert first.recipe != other.recipe
    with pytest.raises(ConfigError, match=r"lanes \(saved 10, here 64\).*resumed"):
        other.step(state)
    assert other.resumed(state).recipe == other.resumed(first.recipe).recipe == first.recipe
    assert np.array_equal(other.resumed(state).step(state).ids[:10], first.step(state).ids)
    # A resumed order can adopt another state still: it was derived, not given.
    assert other.resumed(state).resumed(other.start()).recipe == other.recipe


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Order(1000, batch_size=10, lanes=9), r"lanes \(saved 10, here 9\)"),
        (Order(1000, batch_size=10, chunk_samples=10, window=1), "the data"),
        (Order(1001, batch_size=10), "the data"),
        (Order(1000, batch_size=10, fingerprint="x"), "the data"),
        (Order(1000, batch_size=10, kind="sequential"), r"kind \(saved shuffle, here sequential\)"),
        (Order(1000, batch_size=10, seed=5), "seed 1889, this one 5"),
        (Order(5, batch_size=1), "lanes|the data"),
    ],
)
def test_a_foreign_state_is_refused(other, words):
    """Never silent: a state of other data, arguments or seed is an error that says what differs."""
    state = Order(1000, batch_size=10).start(3)
    for use in (other.step, other.num_steps, other.resumed):
        with pytest.raises(ConfigError, match=words):
            use(state)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": []}, "an Order needs samples, got 0"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size of an Order .* must be an integer of at least 1, got 2.0"),
        ({"seed": "x"}, "seed"),
        ({"kind": "random"}, "kind"),
        ({"remainder": "keep"}, "remainder"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": 11}, "lanes must be an integer from 1 to 10, got 11"),
        ({"window": 0}, "window"),
        ({"chunk_samples": 0}, "chunk_samples"),
        ({"chunk_bytes": -1}, "chunk_bytes"),
        ({"batch_size": 11, "remainder": "drop"}, "leaves no batch"),
        ({"kind": "sequential", "lanes": 2}, "does not accept lanes"),
        ({"kind": "sequential", "window": 2}, "does not accept window"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    """An order that cannot work is refused when it is made, with the argument's name."""
    with pytest.raises(ConfigError, match=words):
        Order(**{"samples": 10, "batch_size": 2, **arguments})


def test_ids_checks_its_positions():
    """Positions have any shape; those outside the epoch, or fractions, are refused."""
    order = Order(10, batch_size=2)
    assert order.ids([], 0).shape == (0,)
    assert order.ids([[0, 1], [2, 3]], 0).shape == (2, 2)
    assert order.ids(3, 0).shape == ()
    for positions, epoch in (([10], 0), ([-1], 0), ([0], -1)):
        with pytest.raises(ConfigError, match=r"\[0, 10\)"):
            order.ids(positions, epoch)
    with pytest.raises(ConfigError, match="integer positions"):
        order.ids([0.5], 0)


def test_a_position_beyond_the_epoch_is_refused():
    """A damaged state does not wrap around."""
    order = Order(10, batch_size=2)
    with pytest.raises(ConfigError, match="its position is 11, but an epoch has 10 samples"):
        order.step(OrderState(seed=order.seed, epoch=0, position=11, recipe=order.recipe))


def test_steps_belong_to_the_caller():
    """The ids of a step may be written to without changing what others see."""
    order = Order(100, batch_size=10)
    step = order.step(order.start())
    kept = step.ids.copy()
    step.ids[:] = -1
    assert np.array_equal(order.step(order.start()).ids, kept)


def test_it_is_a_value():
    """Orders compare, hash, copy and pickle; the samples themselves are not dragged along."""
    order = Order(list(range(100)), batch_size=10)
    assert order == pickle.loads(pickle.dumps(order)) == copy.deepcopy(order) == Order(100, batch_size=10)
    assert hash(order) == hash(Order(100, batch_size=10))
    assert len(pickle.dumps(Order(range(10**9), batch_size=10))) < 1000


def test_the_order_of_version_1_is_frozen():
    """A run saved by an older release finds its order again."""
    order = Order(1000, batch_size=32, chunk_samples=10, lanes=8, window=4)
    assert order.recipe == "v1.shuffle.L8.W4.2a0c7428e1b0e9db"
    assert order.ids([0, 1, 2, 499, 998, 999], 3).tolist() == [691, 993, 365, 832, 140, 263]


def test_no_torch_is_needed():
    """The room imports neither torch nor zarr."""
    code = "import sys, rankwise.data.order as o; o.Order(9, batch_size=2); print({'torch', 'zarr'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
