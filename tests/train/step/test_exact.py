"""Promise 3: the gradient of a step is the exact mean over the global batch, however it is cut."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import ExactStep, Window, prepare
from rankwise.train.step.ledger import RunningMeans
from rankwise.world import World

NUM_SAMPLES = 47  # no batch size below divides it


def make_arrays():
    rng = np.random.default_rng(3)
    return {
        "x": rng.normal(size=(NUM_SAMPLES, 6)),
        "y": rng.integers(0, 3, size=NUM_SAMPLES),
        "w": rng.uniform(0.1, 2.0, size=NUM_SAMPLES),
    }


def make_model(norm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3)).double()


def losses_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def per_sample(model, batch):
    return losses_of(model, batch), {"first": batch["x"][:, 0]}


def weighted_pair(model, batch):
    return (losses_of(model, batch) * batch["w"]).sum(), batch["w"].sum(), {"first": batch["x"][:, 0]}


def scalar_mean(model, batch):
    return losses_of(model, batch).mean(), {"first": batch["x"][:, 0]}


def train(world, form, micro_batch, batch_size=10, **more):
    """Train with rankwise; return ids per step of this rank, reduced losses per step, parameters and buffers."""
    epochs, stop = more.get("epochs", 2), more.get("stop")
    order = Order(NUM_SAMPLES, batch_size=batch_size, seed=5, chunk_samples=4)
    loader = ArrayLoader(
        make_arrays(), order, seed=5, rank=world.rank, world_size=world.world_size, micro_batch=micro_batch
    )
    model = prepare(make_model(more.get("norm", False)), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = ExactStep(model, optimizer, form, world=world, max_grad_norm=more.get("max_grad_norm"))
    means, ids, values = RunningMeans(), [], []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batches in loader:
            report = step(batches)
            loader.mark_done(report.resume)
            means.add((report.loss, report.metrics))
            values.append(means.reduce(world))
            ids.append(np.concatenate([b.ids for b in batches]).tolist())
            if stop == len(ids):
                break
    plain = {name: value.numpy() for name, value in getattr(model, "module", model).state_dict().items()}
    return {"ids": ids, "values": values, "state": plain}


def reference(form, batch_size=10, epochs=2, max_grad_norm=None):
    """The same training in a dozen obvious lines of torch: one process, one pass per global batch."""
    arrays = {name: torch.from_numpy(value) for name, value in make_arrays().items()}
    order = Order(NUM_SAMPLES, batch_size=batch_size, seed=5, chunk_samples=4)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    values, ids = [], []
    for epoch, start in itertools.product(range(epochs), range(0, NUM_SAMPLES, batch_size)):
        chosen = order.ids(np.arange(start, min(start + batch_size, NUM_SAMPLES)), epoch)
        batch = {name: value[chosen] for name, value in arrays.items()}
        weights = batch["w"] if form is weighted_pair else torch.ones(len(chosen), dtype=torch.float64)
        loss = (losses_of(model, batch) * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        values.append({"loss": loss.item(), "first": batch["x"][:, 0].mean().item()})
        ids.append(sorted(chosen.tolist()))
    return {"ids": ids, "values": values, "state": {k: v.numpy() for k, v in model.state_dict().items()}}


def assert_same(results, wanted):
    """Ids exactly; losses within 1e-10 and parameters within 1e-9, in float64; all ranks bit-equal."""
    for index, ids in enumerate(wanted["ids"]):
        assert sorted(itertools.chain(*(r["ids"][index] for r in results))) == ids
    for result in results:
        for got, want in zip(result["values"], wanted["values"], strict=True):
            assert got == pytest.approx(want, abs=1e-10)
        for name, value in wanted["state"].items():
            np.testing.assert_allclose(result["state"][name], value, rtol=0, atol=1e-9)
            np.testing.assert_array_equal(result["state"][name], results[0]["state"][name])


@pytest.mark.parametrize("form", [per_sample, weighted_pair, scalar_mean], ids=lambda f: f.__name__)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("micro_batch", [None, 3, 1])
def test_every_cut_is_the_global_mean(num_ranks, micro_batch, form):
    """1, 2 and 3 ranks, whole shares and micro-batches: the ids, losses and parameters of one plain process."""
    if num_ranks == 1:
        results = [train(World.single(), form, micro_batch)]
    else:
        results = run_ranks(train, num_ranks, form, micro_batch)
    assert_same(results, reference(form))


@pytest.mark.parametrize("form", [per_sample, weighted_pair, scalar_mean], ids=lambda f: f.__name__)
def test_ranks_without_samples_join(form):
    """A global batch of 2 on 3 ranks leaves one rank empty in every step, the first one included."""
    assert_same(run_ranks(train, 3, form, None, 2), reference(form, 2))


def clipped(world):
    return train(world, per_sample, 2, max_grad_norm=0.05)


def test_clipping_sees_the_exact_gradient():
    """The norm is that of the global mean, on all ranks."""
    assert_same(run_ranks(clipped, 2), reference(per_sample, max_grad_norm=0.05))


def other_accumulation_each_step(world):
    model, state = prepare(make_model(), world), None
    step = ExactStep(model, torch.optim.AdamW(model.parameters(), lr=0.01), weighted_pair, world=world)
    order = Order(NUM_SAMPLES, batch_size=10, seed=5)
    for cut in (None, 1, 4, 3) if world.world_size > 1 else [None] * 4:
        loader = ArrayLoader(
            make_arrays(), order, seed=5, rank=world.rank, world_size=world.world_size, micro_batch=cut
        )
        loader.load_state_dict(state or loader.state_dict())
        loader.mark_done(step(next(iter(loader))).resume)
        state = loader.state_dict()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_accumulation_may_change_during_a_run():
    """Other micro-batches at each step: the parameters of one rank without accumulation."""
    for found in run_ranks(other_accumulation_each_step, 2):
        torch.testing.assert_close(found, other_accumulation_each_step(World.single()), rtol=0, atol=1e-12)


def empty_share_keeps_buffers(world):
    result = train(world, per_sample, None, batch_size=4, epochs=1, norm=True, stop=1)
    return len(result["ids"][0]), int(result["state"]["1.num_batches_tracked"])


def test_the_stand_in_leaves_no_trace():
    """Neither the warm-up nor the stand-in of an empty rank counts as a batch in running statistics."""
    seen = run_ranks(empty_share_keeps_buffers, 2)
    assert seen == [(2, 1), (2, 1)]


def bucket_layout_is_warm(world):
    """Return parameters after 6 steps undisturbed, and after 3 steps + a new process's 3 steps."""
    order = Order(NUM_SAMPLES, batch_size=10, seed=5)
    arrays = make_arrays()

    def steps(model, optimizer, state, count):
        loader = ArrayLoader(arrays, order, seed=5, rank=world.rank, world_size=world.world_size)
        if state is not None:
            loader.load_state_dict(state)
        step = ExactStep(model, optimizer, per_sample, world=world)
        done = 0
        while done < count:
            for batches in loader:
                loader.mark_done(step(batches).resume)
                done += 1
                if done == count:
                    break
        return loader.state_dict()

    def fresh():
        torch.manual_seed(0)
        model = (
            nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)).double().float()
        )
        return prepare(model.double().to(torch.float32), world, bucket_cap_mb=0.002)

    for name, value in arrays.items():
        arrays[name] = value.astype(np.float32) if value.dtype == np.float64 else value
    whole = fresh()
    steps(whole, torch.optim.SGD(whole.parameters(), lr=0.5, momentum=0.9), None, 12)
    first = fresh()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.5, momentum=0.9)
    state = steps(first, optimizer, None, 7)
    second = fresh()
    second.module.load_state_dict(first.module.state_dict())
    resumed = torch.optim.SGD(second.parameters(), lr=0.5, momentum=0.9)
    resumed.load_state_dict(optimizer.state_dict())
    steps(second, resumed, state, 5)
    pairs = zip(whole.module.parameters(), second.module.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_resumed_run_is_bit_equal_from_three_ranks_on():
    """The warm-up gives the gradient buckets their final layout, so a new process sums in the same order."""
    assert run_ranks(bucket_layout_is_warm, 3) == [True, True, True]


def changes_form(world):
    model = prepare(make_model(), world)
    forms = [per_sample]

    def fickle(model, batch):
        return forms[-1](model, batch)

    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), fickle, world=world)
    loader = ArrayLoader(make_arrays(), Order(NUM_SAMPLES, batch_size=10), seed=1889)
    steps = iter(loader)
    step(next(steps))
    forms.append(weighted_pair)
    step(next(steps))


def test_a_step_function_keeps_to_one_form():
    """Ranks that count differently would wait for each other, so a change is refused."""
    with pytest.raises(StepError, match="always return the same form"):
        changes_form(World.single())


def sometimes_masked(model, batch):
    """Weighted, but every third step has no weight at all, and a slope that is not finite."""
    if batch.share.step.index % 3 == 1:
        return (losses_of(model, batch) * 0).sum() + (model(batch["x"]) * 0).abs().sqrt().sum(), 0, {}
    return weighted_pair(model, batch)


def masked_steps(world):
    """Reports of masked steps, and whether each moved parameters, momentum or the schedule."""
    loader = ArrayLoader(
        make_arrays(), Order(NUM_SAMPLES, batch_size=10), seed=1889, rank=world.rank, world_size=world.world_size
    )
    model = prepare(make_model(), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step = ExactStep(model, optimizer, sometimes_masked, world=world, scheduler=schedule, max_grad_norm=1.0)
    moved = []
    for batches in loader:
        before = [p.detach().clone() for p in model.parameters()]
        report = step(batches)
        same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        moved.append((report.weight == 0, not same, schedule.last_epoch))
    return moved


def test_a_step_without_weight_is_skipped_everywhere():
    """A mask that hides a whole global batch leaves no mean: nothing moves, on no rank, and the next step is taken."""
    for moved in run_ranks(masked_steps, 2):
        assert moved == [(False, True, 1), (True, False, 1), (False, True, 2), (False, True, 3), (True, False, 3)]


def test_weights_below_zero_are_refused():
    """A negative sum of weights is a mistake of the step function, and no mean."""
    with pytest.raises(StepError, match=r"sum to -\d+\.0 over all ranks: weights must be 0 or more"):
        train(World.single(), lambda model, batch: (losses_of(model, batch).sum(), -len(batch.ids)), None)


def with_hook(world, micro_batch):
    """Gradients of a step of many heavy samples, all of them kept in half precision on their way."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def heavy(model, batch):
        return 40_000 * losses_of(model, batch).sum(), 40_000 * len(batch.ids)

    grads = []
    for hook in (None, fp16_compress_hook):
        model = prepare(make_model(), world)
        if hook is not None:
            model.register_comm_hook(None, hook)
        step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.0), heavy, world=world)
        order = Order(NUM_SAMPLES, batch_size=20)
        step(
            next(
                iter(
                    ArrayLoader(
                        make_arrays(),
                        order,
                        seed=1889,
                        rank=world.rank,
                        world_size=world.world_size,
                        micro_batch=micro_batch,
                    )
                )
            )
        )
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return [g.tolist() for g in grads]


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_half_precision_between_ranks_does_not_overflow(micro_batch):
    """What travels has the magnitude of a mean, whatever the weights sum to."""
    for exact, compressed in run_ranks(with_hook, 2, micro_batch):
        assert compressed == pytest.approx(exact, rel=2e-3, abs=2e-4)


def test_a_window_that_was_not_finished_is_noticed():
    """The next window of the same model says so; the one after it is fine."""
    model = nn.Linear(1, 1)

    def half_a_window():
        window = Window(model, World.single(), num_micro=1)
        with window.micro_batch():
            window.backward(model(torch.ones(1, 1)).sum(), 1)
        return window

    half_a_window()
    with pytest.raises(StepError, match=r"was not finished: call window.finish\(\)"):
        half_a_window()
    half_a_window().finish()
    half_a_window()


def happenings_of_a_step(world, form):
    """What a step issues beside DDP's own gradient reduction, between the gradients that it makes."""
    import torch.distributed as dist

    order = Order(NUM_SAMPLES, batch_size=10, seed=5)
    loader = ArrayLoader(make_arrays(), order, seed=5, rank=world.rank, world_size=world.world_size, micro_batch=3)
    model = prepare(make_model(), world)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), form, world=world)
    steps = iter(loader)
    for _ in range(2):
        step(next(steps))
    seen = []

    class Noted:
        def __init__(self, work):
            self.work = work

        def wait(self):
            seen.append("waited")
            return self.work.wait()

    def noted(name, original, args, options):
        seen.append(name)
        work = original(*args, **options)
        return Noted(work) if options.get("async_op") else work

    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "all_gather_object")
    originals = {name: getattr(dist, name) for name in names}
    next(model.parameters()).register_hook(lambda _: seen.append("backward"))
    try:
        for name in names:
            setattr(dist, name, lambda *a, _n=name, **k: noted(_n, originals[_n], a, k))
        step(next(steps))
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return seen


def test_counting_costs_nothing_where_the_order_knows():
    """Per-sample losses need none beside the gradients; (sum, weight) needs one, while the last backward runs."""
    assert run_ranks(happenings_of_a_step, 2, per_sample) == [["backward"] * 2] * 2
    wanted = ["backward", "all_reduce", "backward", "waited"]
    assert run_ranks(happenings_of_a_step, 2, weighted_pair) == [wanted] * 2


def weights_that_jump(world):
    """Gradients of float32 steps whose weights jump by 10^5, in a run and in a new start at each step."""

    def heavy(model, batch):
        factor = 10.0 ** (5 * (batch.share.step.index % 2))
        return factor * (losses_of(model, batch) * batch["w"]).sum(), factor * batch["w"].sum()

    arrays = {name: value.astype(np.float32) if name in "xw" else value for name, value in make_arrays().items()}
    order = Order(NUM_SAMPLES, batch_size=10, seed=5)
    loader = ArrayLoader(arrays, order, seed=5, rank=world.rank, world_size=world.world_size, micro_batch=3)
    model = prepare(make_model().float(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run, same = ExactStep(model, optimizer, heavy, world=world), []
    for batches in loader:
        run(batches)
        first = [p.grad.clone() for p in model.parameters()]
        anew = prepare(make_model().float(), world)
        ExactStep(anew, torch.optim.SGD(anew.parameters(), lr=0.0), heavy, world=world)(batches)
        same.append(all(torch.equal(g, p.grad) for g, p in zip(first, anew.parameters(), strict=True)))
    return same


def test_what_the_gradients_are_divided_by_meanwhile_leaves_no_trace():
    """A run knows its last weights and a resumed one does not: both have the same gradients, to the bit."""
    assert run_ranks(weights_that_jump, 2) == [[True] * 5] * 2
