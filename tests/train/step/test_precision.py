"""Promise 3 in half precision: that of one process with the same cut; an overflow skips the step on every rank."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankwise import Order
from rankwise.errors import StepError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import ExactStep, Hooks, Trainer, prepare, prepare_optimizer
from rankwise.world import World

NUM_SAMPLES, BATCH = 44, 11
# rounding of one number, 2^-9 and 2^-12, times a few layers: relative error of the whole gradient
TOLERANCES = {"bf16": 1e-2, "fp16": 1e-3}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def make_arrays():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(NUM_SAMPLES, 16)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 3, NUM_SAMPLES), "w": rng.integers(1, 40, NUM_SAMPLES).astype(np.float32)}


class Net(nn.Module):
    def __init__(self, recomputed=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.recomputed = recomputed

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        block = lambda h: torch.tanh(self.middle(h))  # noqa: E731
        hidden = checkpoint(block, hidden, use_reentrant=False) if self.recomputed else block(hidden)
        return self.last(hidden)


def losses_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def weighted(model, batch):
    return (losses_of(model, batch) * batch["w"]).sum(), batch["w"].sum()


def loader_of(world, micro_batch=3, rank=None, world_size=None):
    order = Order(NUM_SAMPLES, batch_size=BATCH, seed=5)
    rank, size = world.rank if rank is None else rank, world_size or world.world_size
    return ArrayLoader(make_arrays(), order, seed=5, rank=rank, world_size=size, micro_batch=micro_batch)


def flat(tensors):
    """All elements on every rank, of sharded ones too."""
    whole = [t.detach().full_tensor() if hasattr(t, "full_tensor") else t.detach() for t in tensors]
    return torch.cat([t.flatten() for t in whole])


def step_gradient(world, precision, form, strategy="ddp", recomputed=False):
    """The gradient of the second step, whose weights were not known before it."""
    model = prepare(Net(recomputed), world, strategy=strategy)
    optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.0), model)
    step = ExactStep(model, optimizer, form, world=world, precision=precision, max_grad_norm=1e9)
    norm = [step(batches).grad_norm for batches in itertools.islice(loader_of(world), 2)][-1]
    return flat(p.grad for p in model.parameters()), norm


def simulated(precision, form, ranks):
    """One process goes through the shares of all ranks one by one and adds up what torch alone makes of them."""
    model = Net()
    each = [list(itertools.islice(loader_of(None, rank=r, world_size=ranks), 2))[1] for r in range(ranks)]
    total = 0
    for batch in itertools.chain(*each):
        with torch.autocast("cpu", dtype=DTYPES[precision]):
            answer = form(model, batch)
        loss, weight = answer if isinstance(answer, tuple) else (answer.float().sum(), len(answer))
        (loss * (1024.0 if precision == "fp16" else 1.0)).backward()
        total += float(weight)
    return flat(p.grad for p in model.parameters()) / (1024.0 if precision == "fp16" else 1.0) / total


def relative(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("form", [losses_of, weighted], ids=lambda f: f.__name__)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_that_of_one_process(precision, form):
    """2 ranks x 2 micro-batches, ddp, zero1 and fsdp: the gradient of one process with the same cut."""
    wanted = simulated(precision, form, 2)
    for strategy in ("ddp", "zero1", "fsdp"):
        for found, norm in run_ranks(step_gradient, 2, precision, form, strategy):
            assert relative(found, wanted) < TOLERANCES[precision]
            assert norm == pytest.approx(float(wanted.norm()), rel=TOLERANCES[precision])  # clipping sees it unscaled
    exact, _ = step_gradient(World.single(), None, form)
    assert 1e-5 < relative(wanted, exact) < 10 * TOLERANCES[precision]  # it was half precision indeed


def both_ways(world, precision):
    """Gradients with recomputed activations and without, by strategy."""
    return [
        tuple(step_gradient(world, precision, losses_of, strategy, recomputed)[0] for recomputed in (True, False))
        for strategy in ("ddp", "zero1", "fsdp")
    ]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_recomputed_activations_are_cast_alike(precision):
    """Non-reentrant checkpointing recomputes under the same autocast: the same gradient, to the bit."""
    for of_rank in run_ranks(both_ways, 2, precision):
        assert all(torch.equal(found, wanted) for found, wanted in of_rank)


class Poison:
    """A step function whose gradient overflows half precision at chosen steps, by a sample of the last rank."""

    def __init__(self, world, steps):
        self.world, self.steps, self.calls = world, steps, -1  # the warm-up is no step

    def __call__(self, model, batch):
        losses = losses_of(model, batch)
        here = self.calls in self.steps and self.world.rank == self.world.world_size - 1
        self.calls += 1
        return losses * (1e36 if here else 1.0)


class OwnPart(torch.optim.SGD):
    """Steps the parameters of this rank and hands them out: it sees no other gradient."""

    def __init__(self, model, world):
        self.world, self.all = world, list(model.parameters())
        super().__init__(self.all[world.rank :: world.world_size], lr=0.1)

    def step(self, closure=None):
        super().step(closure)
        for index, p in enumerate(self.all):
            torch.distributed.broadcast(p.data, src=index % self.world.world_size)

    def consolidate_state_dict(self):
        raise NotImplementedError


class Spoiling(torch.amp.GradScaler):
    """Meets an infinity in the gradient of the first parameter, where that is this rank's to step."""

    calls = -1

    def unscale_(self, optimizer):
        self.calls += 1
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if self.calls in {1, 2} and id(optimizer.all[0]) in mine:
            optimizer.all[0].grad.fill_(torch.inf)
        super().unscale_(optimizer)


def overflows(world, kind):
    """Of each step: whether it was skipped, whether something moved, how often the scheduler stepped, the scale."""
    model = prepare(Net(), world, strategy="ddp" if kind == "own part" else kind)
    own = kind == "own part"
    optimizer = OwnPart(model, world) if own else torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = prepare_optimizer(optimizer, model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = ExactStep(
        model,
        optimizer,
        Poison(world, () if own else (1, 2)),
        world=world,
        precision="fp16",
        scaler=Spoiling("cpu") if own else None,
        scheduler=schedule,
        max_grad_norm=1.0,
    )
    seen = []
    for batches in loader_of(world, micro_batch=None):
        before = flat(model.parameters())
        report = step(batches)
        moved = not torch.equal(before, flat(model.parameters()))
        seen.append((report.overflowed, moved, schedule.last_epoch, step.loss_scale))
    return seen, flat(model.parameters())


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("kind", ["ddp", "zero1", "fsdp", "own part"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(kind):
    """Also where each rank's optimizer sees a part of the gradient; nothing moves, the next step is scaled by half."""
    found = run_ranks(overflows, 2, kind)
    for seen, parameters in found:
        assert seen == [
            (False, True, 1, 65536.0),
            (True, False, 1, 32768.0),
            (True, False, 1, 16384.0),
            (False, True, 2, 16384.0),
        ]
        assert torch.equal(parameters, found[0][1])


def test_a_gradient_that_no_scale_makes_finite_is_named():
    """A run does not skip step after step for ever: it says which samples it stands at."""
    world = World.single()
    model = Net()
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), Poison(world, range(99)), precision="fp16")
    batches = next(iter(loader_of(world, micro_batch=None)))
    with pytest.raises(StepError, match=r"gradient is nan.*step 0.*No loss scale makes it finite"):
        list(map(step, itertools.repeat(batches, 60)))


def fitted(world, folder, stop=None):
    """Parameters, scale and logged lines of a run in fp16, one step of which overflows."""
    model, lines = Net(), []

    def fail(_, __):
        if stop == "stop" and len(lines) == 6:
            raise RuntimeError("stopped")

    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Poison(world, (2,) if stop != "resume" else ()),
        world=world,
        run=folder,
        precision="fp16",
        scaler=torch.amp.GradScaler("cpu", growth_interval=2),
        max_grad_norm=1.0,
        log_every=1,
        save_every=1,
        progress=False,
        hooks=Hooks(step_end=fail, log=lambda _, step, line: lines.append((step, line["loss"], line["loss_scale"]))),
    )
    values = trainer.fit(loader_of(world, micro_batch=None), epochs=2).metrics
    return flat(model.parameters()), lines, values


def test_the_scaler_is_a_part_of_the_run(tmp_path):
    """A skipped step counts in no mean; a run that goes on has the scale and the parameters of an undisturbed one."""
    world = World.single()
    whole, lines, values = fitted(world, tmp_path / "whole")
    scales = [scale for _, _, scale in lines]
    assert scales == [65536.0, 131072.0, 65536.0, 65536.0, 131072.0, 131072.0, 262144.0, 262144.0]
    assert [step for step, loss, _ in lines if not np.isfinite(loss)] == [3]
    assert np.isfinite(values["loss"])
    with pytest.raises(RuntimeError, match="stopped"):
        fitted(world, tmp_path / "cut", "stop")
    resumed, more, _ = fitted(world, tmp_path / "cut", "resume")
    assert torch.equal(resumed, whole)
    assert more == lines[5:]
