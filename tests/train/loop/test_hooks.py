"""Hooks: several at once, the same decisions on all ranks, and none that leaves the others hanging."""

import math
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import ConfigError, DesyncError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.tracking import read_metrics
from rankwise.tracking.ownership import FINISHED_HERE
from rankwise.train import EarlyStopping, GradientStats, Hooks, LearningRates, SystemMetrics, Throughput, Trainer
from rankwise.world import World

EVENTS = (
    *("fit_start", "step_end", "log", "validation_end"),
    *("checkpoint_begin", "checkpoint_end", "epoch_end", "fit_end"),
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


def make_loader(world, samples=26, kind="shuffle", seed=2):
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.normal(size=(samples, 4)), "y": rng.integers(0, 2, size=samples)}
    order = Order(samples, batch_size=8, kind=kind)
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def fit(world, *, epochs=2, lr=0.1, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    groups = [{"params": model[0].parameters(), "name": "body"}, {"params": model[2].parameters(), "lr": 0.05}]
    optimizer = torch.optim.SGD(groups, lr=lr)
    options = {"run": False, "log_every": 3, **options}
    trainer = Trainer(model, optimizer, step, world=world, progress=False, **options)
    val = make_loader(world, samples=11, kind="sequential", seed=5)
    return trainer.fit(make_loader(world), val=val, epochs=epochs)


class Worse:
    """Raises the learning rate until the loss gets worse, so that early stopping has something to see."""

    def epoch_end(self, trainer, epoch, values):
        del values
        if epoch == 1:
            trainer.optimizer.param_groups[0]["lr"] = -1.0


class Failing:
    """Raises in one event on rank 1."""

    def __init__(self, event):
        self.wanted = event
        setattr(self, event, self.fail)

    def fail(self, trainer, *_args):
        if trainer.world.rank == 1:
            raise OSError(f"no space in {self.wanted}")
        return {}


def ask_to_stop(trainer, _report):
    if trainer.world.rank == 1 and trainer.session.progressed.num_steps == 5:
        trainer.stop("rank 1 is tired")


def stopped_quietly(world, *, at_log=False, **rhythm):
    """Ask to stop in the fifth step, on one rank, where nothing is due; or after a log line. Return where it ends."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()

    def asking(module, batch):
        if trainer.session is not None and trainer.session.progressed.num_steps == 4 and world.is_main and not at_log:
            trainer.stop("enough")
        return step(module, batch)

    hooks = Hooks(log=lambda trainer, *_: trainer.stop("enough")) if at_log else None
    options = {"run": False, "progress": False, "world": world, "hooks": hooks, **rhythm}
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), asking, **options)
    result = trainer.fit(make_loader(world, samples=8 * 30), epochs=2)
    return result.num_steps, result.stopped, trainer.session.progressed.stopped


QUIET = (
    ({"log_every": 10}, 10),
    ({"log_every": 1000, "save_every": 7}, 7),
    ({"log_every": 6, "save_every": 7}, 6),
    ({"log_every": 1000}, 30),  # the end of the epoch
    ({"log_every": 9, "at_log": True}, 18),  # the line is written when the ranks have talked
    ({"log_every": 9, "save_every": 12, "at_log": True}, 12),
)


def caught(world, event, **options):
    heard = []
    failure = Hooks(failure=lambda _trainer, error: heard.append(type(error).__name__))
    try:
        fit(world, hooks=[Failing(event), GradientStats(), failure], **options)
    except (OSError, DesyncError) as error:
        return type(error).__name__, str(error), heard
    return None


def on_ranks(world, path):
    found = {}
    stopping = EarlyStopping("loss", patience=2)
    result = fit(world, epochs=20, hooks=[stopping, Worse()])
    found["early"] = (result.num_steps, result.stopped, stopping.best)
    found["asked"] = (r := fit(world, epochs=3, hooks=Hooks(step_end=ask_to_stop), log_every=3)).num_steps, r.stopped
    found["quiet"] = [stopped_quietly(world, **rhythm) for rhythm, _ in QUIET]
    found["failing"] = {
        event: caught(world, event)
        for event in ("step_end", "numbers", "rank_numbers", "log", "validation_end", "checkpoint_begin", "fit_end")
    }
    found["sharded"] = caught(world, "step_end", strategy="fsdp")
    calls = []
    for hooks, system in (((), False), ((Throughput(), LearningRates(), GradientStats()), True)):
        before = world.channel.calls
        fit(world, hooks=hooks, system_metrics=system, log_every=1)
        calls.append(world.channel.calls - before)
    found["calls"] = calls
    each = Hooks(
        rank_numbers=lambda trainer: {
            "r": trainer.world.rank,
            "top/5": trainer.world.rank,
            f"r/rank{trainer.world.rank}": 7,
        }
    )
    fit(world, hooks=[each], system_metrics="per_rank", run=path / "numbers")
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    path = tmp_path_factory.mktemp("hooks")
    return run_ranks(on_ranks, 2, path), read_metrics(path / "numbers")


def test_early_stopping_decides_alike_on_all_ranks(ranks):
    """The same step on both ranks as on one: two epochs after the third, the last that was better."""
    (first, second), _ = ranks
    assert first["early"] == second["early"]
    num_steps, stopped, best = first["early"]
    assert num_steps == 20
    assert stopped.startswith("loss has not improved on ")
    alone = EarlyStopping("loss", patience=2)
    assert fit(World.single(), epochs=20, hooks=[alone, Worse()]).num_steps == num_steps
    assert alone.best == pytest.approx(best, rel=1e-12)


def test_one_rank_may_ask_to_stop(ranks):
    """All ranks stop together at the next log step."""
    (first, second), _ = ranks
    assert first["asked"] == second["asked"] == (6, "rank 1 is tired")


def test_a_stop_on_a_quiet_step_waits_for_the_next_agreement(ranks):
    """Steps after which nothing is due are not asked; a checkpoint that says "stopped" is the last one."""
    wanted = [(num_steps, "enough", "enough") for _, num_steps in QUIET]
    for first in ranks[0]:
        assert first["quiet"] == wanted
    assert [stopped_quietly(World.single(), **rhythm) for rhythm, _ in QUIET] == wanted


@pytest.mark.parametrize(
    "event", ["step_end", "numbers", "rank_numbers", "log", "validation_end", "checkpoint_begin", "fit_end"]
)
def test_a_hook_that_raises_on_one_rank_leaves_nobody_hanging(ranks, event):
    """Its own error there, one that names the rank on the others, and `failure` is told of it on both."""
    (first, second), _ = ranks
    told = [] if event == "fit_end" else ["DesyncError"]
    kind, message, heard = first["failing"][event]
    assert (kind, heard) == ("DesyncError", told)
    assert f"rank 1: OSError: no space in {event}" in message
    assert second["failing"][event] == ("OSError", f"no space in {event}", ["OSError"] if told else [])


def test_hooks_of_a_sharded_model_may_gather_after_one_failed(ranks):
    """The other rank does not know of the failure yet: it waits in the collective of a later hook."""
    (first, second), _ = ranks
    assert "rank 1: OSError: no space in step_end" in first["sharded"][1]
    assert second["sharded"][:2] == ("OSError", "no space in step_end")


def test_hooks_cost_no_collective_of_their_own(ranks):
    """Numbers of ranks and of hooks travel in the one reduction of each of 8 log steps: counted.

    Two more for the run: the ranks agree on how its beginning and its end went.
    """
    (first, _), _ = ranks
    bare, hooked = first["calls"]
    assert hooked == bare + 2


def test_numbers_of_ranks_are_logged(ranks):
    """As min, mean and max; as they are where the name says the rank."""
    _, lines = ranks
    line = lines[0]
    assert (line["top/5/min"], line["top/5/mean"], line["top/5/max"]) == (0, 0.5, 1)
    assert (line["r/min"], line["r/mean"], line["r/max"], line["r/rank0"], line["r/rank1"]) == (0, 0.5, 1, 7, 7)
    for rank in (0, 1):
        assert line[f"system/ram_bytes/rank{rank}"] > 2**20
        assert line[f"system/cpu_percent/rank{rank}"] >= 0


def test_a_restart_of_early_stopping_decides_as_an_undisturbed_run():
    """Its state is in the checkpoints, and a run that it ended is finished."""

    def hooks():
        return [EarlyStopping("loss", patience=2), Worse()]

    whole = fit(World.single(), epochs=20, hooks=hooks(), run="whole")

    def stop(trainer, _report):
        if trainer.session.progressed.num_steps == 14:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit(
            World.single(),
            epochs=20,
            hooks=[EarlyStopping("loss", patience=2), Worse(), Hooks(step_end=stop)],
            run="run",
        )
    result = fit(World.single(), epochs=20, hooks=hooks(), run="run")
    assert result.resumed_step == 12
    assert (result.num_steps, result.stopped) == (whole.num_steps, whole.stopped)
    FINISHED_HERE.clear()  # as in another process
    again = fit(World.single(), epochs=20, hooks=hooks(), run="run")
    assert again.already_finished
    assert again.stopped == whole.stopped


def test_a_stop_after_the_epochs_checkpoint_is_kept():
    """A hook that asks in epoch_end: the finished run stays finished."""
    hooks = Hooks(epoch_end=lambda trainer, _epoch, _values: trainer.stop("enough"))
    assert fit(World.single(), epochs=5, hooks=hooks, run="run").num_steps == 4
    FINISHED_HERE.clear()  # as in another process
    again = fit(World.single(), epochs=5, hooks=hooks, run="run")
    assert (again.already_finished, again.stopped) == (True, "enough")


def test_the_events_come_in_their_order():
    """Several hooks at once; each is called in the order in which it was given."""
    seen = []

    def noting(name):
        return Hooks(**{event: (lambda *_a, event=event: seen.append((name, event))) for event in EVENTS})

    fit(World.single(), epochs=1, hooks=[noting("a"), noting("b")], run="run", log_every=4)
    names = [event for name, event in seen if name == "a"]
    steps = ["step_end"] * 3
    end = ["log", "step_end", "validation_end", "checkpoint_begin", "checkpoint_end", "epoch_end", "fit_end"]
    assert names == ["fit_start", *steps, *end]
    assert seen[::2] == [("a", event) for _, event in seen[1::2]]


def test_gradients_rates_and_throughput_are_logged():
    """The norm is that of the gradient; the operations of a small network are those that its formula counts."""
    norms = []

    def note(trainer, _report):
        grads = [p.grad.flatten() for p in trainer.model.parameters()]
        norms.append(float(torch.cat(grads).norm()))

    throughput = Throughput(unit="samples", peak_flops=1e12)
    hooks = [Hooks(step_end=note), GradientStats(), LearningRates(), throughput]
    fit(World.single(), epochs=1, hooks=hooks, run="run", log_every=1)
    lines = [line for line in read_metrics("run") if "loss" in line]
    assert [line["grad/norm"] for line in lines] == pytest.approx(norms)
    assert lines[0]["grad/norm"] == pytest.approx(math.hypot(lines[0]["grad/0/norm"], lines[0]["grad/2/norm"]))
    assert (lines[0]["lr/body"], lines[0]["lr/1"]) == (0.1, 0.05)
    # forward and weight gradient of both layers, and the gradient between them
    assert throughput.flops_per_sample == 2 * (2 * 4 * 8 + 3 * 8 * 2)
    assert 0 < lines[-1]["mfu/mean"] < 1
    assert lines[-1]["samples_per_s/mean"] > 0
    assert lines[-1]["step_s/p50/min"] <= lines[-1]["step_s/p95/max"]


def test_sparse_and_complex_gradients_have_norms():
    """A row that stands twice in a batch has the norm of its sum; of a complex element the magnitude counts."""
    model = nn.Sequential(nn.Embedding(3, 2, sparse=True))
    model.register_parameter("phase", nn.Parameter(torch.ones(1, dtype=torch.complex64)))
    (model(torch.tensor([1, 1, 2])).sum() + (model.phase * (3 + 4j)).real.sum()).backward()
    found = GradientStats().numbers(SimpleNamespace(model=model))
    assert found["grad/0/norm"] == pytest.approx(math.sqrt(10))
    assert (found["grad/0/max"], found["grad/phase/norm"], found["grad/max"]) == (2, 5, 5)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ([object()], "needs at least one of the methods fit_start"),
        ([EarlyStopping("val_acc")], "watches 'val_acc', but an epoch has loss, val_loss"),
    ],
)
def test_wrong_hooks_are_refused(hooks, message):
    """Not silently passed over."""
    with pytest.raises(ConfigError, match=message):
        fit(World.single(), hooks=hooks)


def test_system_metrics_are_min_mean_and_max():
    """On one rank as on several, so that curves go on at another world size."""
    fit(World.single(), epochs=1, hooks=SystemMetrics(), run="run")
    (line, *_) = read_metrics("run")
    assert line["system/ram_bytes/min"] == line["system/ram_bytes/mean"] == line["system/ram_bytes/max"] > 2**20


def test_the_mfu_by_hand(monkeypatch):
    """Four steps of half a second, 10 samples on 2 ranks: 20 samples x 2e6 operations / 2 s / 1e9 = 0.02."""
    now = [0.0]
    monkeypatch.setattr("rankwise.train.loop.monitors.time", SimpleNamespace(perf_counter=lambda: now[0]))
    throughput = Throughput(unit="tokens", peak_flops=1e9, flops_per_sample=2e6)
    trainer = SimpleNamespace(world=SimpleNamespace(world_size=2))
    throughput.fit_start(trainer)
    for _ in range(4):
        now[0] += 0.5
        throughput.step_end(trainer, SimpleNamespace(weight=30.0, num_samples=10))
    wanted = {"step_s/p50": 0.5, "step_s/p95": 0.5, "tokens_per_s": 60.0, "mfu": 0.02}
    assert throughput.rank_numbers(trainer) == pytest.approx(wanted, rel=1e-12)


def test_a_trainer_that_is_gone_frees_what_it_held(left_alive):
    """Without the cyclic garbage collector: a loop over many fits must not hold every model and cache until it runs."""
    world = World.single()

    def train():
        model, loader = nn.Linear(4, 2).double(), make_loader(world)
        trainer = Trainer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), step, world=world, run=False, progress=False,
            hooks=[LearningRates(), GradientStats(), Throughput(), EarlyStopping("loss")],
        )  # fmt: skip
        trainer.fit(loader, val=make_loader(world, samples=11), epochs=2)
        return map(weakref.ref, (model, loader, trainer))

    assert left_alive(train) == [None] * 3


@pytest.mark.parametrize("event", ["numbers", "rank_numbers"])
def test_a_hook_that_returns_no_numbers_is_named(event):
    """A function that prints instead of returning."""
    with pytest.raises(ConfigError, match=rf"a hook's {event} must return numbers by name, a dict; got None"):
        fit(World.single(), hooks=Hooks(**{event: lambda trainer: None}))
