"""Shares in proportion to speed: the same samples, order and exact mean, only who takes how many of them moves."""

import dataclasses
import itertools
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.data.contract import num_micro_batches, shares, whole_speeds
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.errors import ConfigError, DesyncError, StepError
from rankwise.testing import run_ranks
from rankwise.train import Balance, ExactStep, Hooks, StreamLoader, Trainer, prepare, prepare_optimizer
from rankwise.train.step.checks import lone_sample
from rankwise.world import World

NUM, BATCH = 150, 16
RNG = np.random.default_rng(3)
X = RNG.normal(size=(NUM, 6))
SOURCE = ArraySource({"x": X, "y": X.sum(1), "tokens": RNG.integers(0, 9, NUM)})
SPEEDS = (1.0, 4.0, 2.5)


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def token_losses(model, batch):
    losses = (model(batch["x"])[:, 0] - batch["y"]) ** 2
    return (losses * batch["tokens"]).sum(), batch["tokens"].sum()


def per_sample(model, batch):
    return (model(batch["x"])[:, 0] - batch["y"]) ** 2


def take_steps(world, *, strategy="ddp", form=token_losses, speeds=None, micro=None, kind=SampleLoader):
    """An epoch by given speeds: each step's gradient, and what this rank took of it."""
    model = prepare(make_model(), world, strategy=strategy)
    optimizer = prepare_optimizer(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    step = ExactStep(model, optimizer, form, world=world, max_grad_norm=1e9)
    order = Order(NUM, batch_size=BATCH, seed=5, remainder="pad" if form is token_losses else "split")
    if kind is SampleLoader:
        loader = SampleLoader(SOURCE, order=order, micro_batch=micro, world=world)
    else:
        loader = DatasetLoader(Items(), order=order, micro_batch=micro, world=world)
    balance = Balance(model, world, speeds=speeds or [1] * world.world_size)
    found = []
    for batches in balance.steps(loader):
        report = step(batches)
        loader.mark_done(report.resume)
        grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        weights = [b.share.weights if b.share.weights is not None else np.ones(len(b.ids)) for b in batches]
        taken = [b.ids[w > 0].tolist() for b, w in zip(batches, weights, strict=True)]
        found.append((torch.cat([g.flatten() for g in grads]), report.grad_norm, taken))
    return found


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return NUM

    def __getitem__(self, index):
        return {"x": X[index], "y": X[index].sum(), "tokens": 1}


CASES = (
    {"micro": 2},
    {"form": per_sample},
    {"form": per_sample, "micro": 3, "strategy": "zero1"},
    {"micro": 4, "strategy": "fsdp"},
    {"form": per_sample, "micro": 5, "kind": DatasetLoader},
)


def run_cases(world):
    return [take_steps(world, speeds=SPEEDS, **case) for case in CASES]


def test_unequal_shares_give_one_ranks_gradients():
    """By speeds 1 : 4 : 2.5 within 1e-12 in float64, every sample once; micro-batches follow from the largest share."""
    by_rank = run_ranks(run_cases, 3)
    for number, case in enumerate(CASES):
        wanted = take_steps(World.single(), form=case.get("form", token_losses))
        for step, (grad, norm, taken) in enumerate(wanted):
            parts = [found[number][step] for found in by_rank]
            for got, got_norm, _ in parts:
                assert float((got - grad).norm() / grad.norm()) < 1e-12
                assert got_norm == pytest.approx(norm, rel=1e-12)
            assert sorted(i for *_, mine in parts for part in mine for i in part) == sorted(taken[0])
            if step < len(wanted) - 1:
                sizes = [sum(map(len, mine)) for *_, mine in parts]
                assert np.allclose(sizes, 1 + (BATCH - 3) * np.array(SPEEDS) / 7.5, atol=1.2)
                assert sum(sizes) == BATCH
            assert len({len(mine) for *_, mine in parts}) == 1
            assert all(len(part) <= case.get("micro", NUM) for *_, mine in parts for part in mine)


class Slowed(nn.Module):
    """A rank's slow device: so many seconds a sample, forward."""

    def __init__(self, inner, seconds):
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, x):
        time.sleep(self.seconds * len(x))
        return self.inner(x)


def slowed(world):
    return prepare(Slowed(make_model(), 0.006 if world.rank else 0.001), world)


def fit(world, run, breaks_at=None):
    """Train with measured shares; return what this rank took of each step, the parameters and the loader's state."""
    model = slowed(world)
    sizes, order = [], Order(NUM * 2, batch_size=BATCH, seed=1)
    loader = SampleLoader(ArraySource({"x": np.tile(X, (2, 1)), "y": np.tile(X.sum(1), 2)}), order=order, world=world)

    def note(trainer, report):
        sizes.append(int(report.loss[1]))
        if len(sizes) == breaks_at:
            raise RuntimeError("struck")

    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        per_sample,
        world=world,
        run=run,
        hooks=Hooks(step_end=note),
        balance="speed",
        progress=False,
        save_every=7,
    )
    with pytest.raises(RuntimeError, match="struck") if breaks_at else nullcontext():
        trainer.fit(loader)
    return sizes, [p.detach().clone() for p in model.parameters()], loader.state_dict()


def test_shares_follow_a_slowed_rank_and_a_resume_cuts_the_same(tmp_path):
    """A rank six times as slow gets less after the warm-up; what goes on from a checkpoint has its cut, to the bit."""
    first = run_ranks(fit, 2, str(tmp_path / "run"), timeout=280)
    total, half = NUM * 2, BATCH // 2
    for rank, (sizes, _, state) in enumerate(first):
        assert sizes[:12] == [half] * 12
        assert (sizes[12] < half) if rank else (sizes[12] > half)
        assert len(state["speeds"]) == 2
        assert state["speeds"] == first[0][2]["speeds"]
    assert sum(map(sum, (sizes for sizes, *_ in first))) == total
    begun = tmp_path / "begun"
    stopped = run_ranks(fit, 2, str(begun), 16, timeout=280)
    shutil.copytree(begun, tmp_path / "again")
    ends = [run_ranks(fit, 2, str(folder), timeout=280) for folder in (begun, tmp_path / "again")]
    for rank in range(2):
        (sizes, parameters, _), (others, same, _) = ends[0][rank], ends[1][rank]
        assert sizes[:3] == [stopped[rank][0][14]] * 3
        assert len(sizes) == len(first[0][0]) - 14
        assert sizes == others
        assert all(torch.equal(a, b) for a, b in zip(parameters, same, strict=True))


def refusals(world, folder):
    said = []
    for case in (
        lambda: Balance(prepare(make_model(), world, strategy="fsdp"), world),
        lambda: Balance(prepare(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), world, sync_batchnorm=True), world),
        lambda: Balance(prepare(make_model(), world), world, speeds=[1, 2, 3]),
        lambda: Balance(prepare(make_model(), world), world, warmup=2),
        lambda: next(Balance(prepare(make_model(), world), world).steps([1, 2])),
        lambda: next(Balance(prepare(make_model(), world), world).steps(StreamLoader(iter([X[:2]]), world=world))),
    ):
        with pytest.raises(ConfigError) as caught:
            case()
        said.append(str(caught.value))
    return said, lone_cuts(world), lone_said(world), begun(world, folder)


def begun(world, folder):
    """What `fit` says of data that no order cuts, of all ranks or of the last one alone, and whether a run began."""
    found = []
    for alone in (False, True):
        run = Path(folder) / f"run{alone}"
        options = {"world": world, "run": run, "progress": False, "balance": "speed"}
        trainer = Trainer(make_model(), lambda p: torch.optim.SGD(p, 0.1), per_sample, **options)
        ordered = SampleLoader(SOURCE, order=Order(NUM, batch_size=8), world=world)
        equal = SampleLoader(SOURCE, order=Order(NUM, batch_size=8), world=world)
        equal._cursor.equal_because = "it is sharded"
        stream = ({"x": X[i : i + 4], "y": X[i : i + 4].sum(1)} for i in range(0, 40, 4))
        with pytest.raises((ConfigError, DesyncError)) as caught:
            trainer.fit((equal if world.rank else ordered) if alone else stream)
        found.append((type(caught.value), str(caught.value), run.exists()))
    return found


def lone_said(world):
    """What a trainer says before its first step of speeds that are far apart."""
    model = prepare(nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double(), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, per_sample, world=world, run=False, progress=False, balance=(1, 20))
    with pytest.raises(StepError) as caught:
        trainer.fit(SampleLoader(SOURCE, order=Order(NUM, batch_size=8), world=world))
    return str(caught.value)


def lone_cuts(world):
    """Which speeds a loader has after the ranks have agreed on 1 : 30, for norms over rows and over pixels."""
    found = []
    for norm in (nn.BatchNorm1d(2), nn.BatchNorm2d(2)):
        balance = Balance(prepare(nn.Sequential(nn.Linear(2, 2), norm), world), world)
        loader = SampleLoader(SOURCE, order=Order(NUM, batch_size=8), world=world)
        for _ in range(2):
            balance._seen.extend([(lambda: 1.0 if world.rank else 30.0, 4)] * 3)
            balance._agree(loader)
        found.append(loader.speeds)
    return found


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    return run_ranks(refusals, 2, str(tmp_path_factory.mktemp("refused")))


def test_a_cut_that_leaves_a_lone_sample_is_not_taken(refused):
    """Batch statistics of one sample are none: measured shares stay equal, given ones raise; pixels have some."""
    for _, cuts, said, _ in refused:
        assert cuts == [None, (2, 64)]
        assert (
            "a full step of an epoch has 8 of 150 samples, shared by 2 ranks by their speeds 3, 64, so a rank gets"
            in said
        )


def test_a_trainer_refuses_data_that_are_not_cut_before_the_run_begins(refused):
    """On all ranks, also where one rank alone has such data; no run directory is made."""
    for rank, (*_, (streams, alone)) in enumerate(refused):
        assert streams[0] is ConfigError
        assert "balance= needs a loader over an Order" in streams[1]
        assert "got a StreamLoader" in streams[1]
        assert alone[0] is (ConfigError if rank else DesyncError)
        assert "makes equal shares only: it is sharded" in alone[1]
        assert not streams[2]
        assert not alone[2]


@pytest.mark.parametrize("total", [40, 41, 42, 46])
def test_a_lone_sample_is_foretold_as_the_order_cuts(total):
    """By any speeds, micro-batches and remainder: what `lone_sample` says of a full and of the last step is so."""
    told = set()
    for size, speeds in ((2, None), (2, (3, 1)), (3, (1, 20, 9)), (3, (5, 5, 4))):
        for micro, remainder in itertools.product((None, 1, 2, 3), ("split", "pad", "drop")):
            world = dataclasses.replace(World.single(), world_size=size)
            order = Order(total, batch_size=8, remainder=remainder)
            loader = SimpleNamespace(order=order, micro_batch=micro, speeds=None, state_dict=order.start().to_json)
            cut = None if speeds is None else whole_speeds(speeds, world_size=size)
            steps, state = [], order.start()
            while state.epoch == 0:
                steps.append(order.step(state))
                state = steps[-1].resume
            found = []
            for step in (steps[0], steps[-1]):
                num = num_micro_batches(step.size, world_size=size, micro_batch=micro, speeds=cut)
                parts = [shares(step, rank=r, world_size=size, num_micro=num, speeds=cut) for r in range(size)]
                found.append(1 in {len(part.ids) for mine in parts for part in mine})
            said = lone_sample(loader, world, None, speeds)
            is_other = len(steps[-1].ids) < 8 or remainder == "pad"
            wanted = "a full step" if found[0] and cut else "the last step" if found[-1] and is_other else ""
            told.add(wanted)
            assert said.startswith(wanted), (size, speeds, micro, remainder, said, found)
            assert bool(said) == bool(wanted), (size, speeds, micro, remainder, said, found)
            if speeds is not None:  # no step but full ones is met
                limited = lone_sample(loader, world, 2, speeds)
                assert limited.startswith("a full step") == bool(limited) == found[0]
    assert told >= {"a full step", "the last step", ""}


def test_what_cannot_be_balanced_is_refused_by_name(refused):
    """Where ranks wait for each other inside a pass no speed can be told; data without an order are not cut anew."""
    fsdp, norms, number, warmup, loader, stream = refused[0][0]
    assert 'strategy="fsdp"' in fsdp
    assert "sync_batchnorm" in norms
    assert "each of the 2 ranks, got 3" in number
    assert "more than 2 steps" in warmup
    assert "got a list" in loader
    assert "got a StreamLoader" in stream
    with pytest.raises(ConfigError, match="one number for each rank, or None, got 'fast'"):
        Trainer(make_model(), lambda p: torch.optim.SGD(p, 0.1), per_sample, run=False, balance="fast")
    one = SampleLoader(SOURCE, order=Order(NUM, batch_size=4))
    with pytest.raises(ConfigError, match="positive numbers"):
        one.set_speeds([0.0])


def test_a_pass_that_was_begun_keeps_its_cut():
    """New speeds hold from the next iteration on, whatever was read ahead; another number of ranks begins equal."""
    world = World.single()
    loader = SampleLoader(SOURCE, order=Order(NUM, batch_size=10, seed=0), world=world)
    cursor = loader._cursor
    cursor.rank, cursor.world_size = 1, 2
    loader.start_prefetch()
    loader.set_speeds([3, 1])
    steps = iter(loader)
    sizes = [len(next(steps)[0].ids)]
    loader.set_speeds([1, 3])
    sizes += [len(next(steps)[0].ids) for _ in range(3)]
    steps.close()
    assert sizes == [3] * 4  # 1 + a quarter of 8
    assert len(next(iter(loader))[0].ids) == 8
    state = loader.state_dict()
    assert state["speeds"] == [21, 64]
    cursor.world_size = 3
    loader.load_state_dict(state)
    assert loader.speeds is None
    assert "speeds" not in loader.state_dict()
