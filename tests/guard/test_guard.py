"""When the guard checks, what that costs, that it cannot hang, and the loops that it goes with."""

import itertools
import json
import logging
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankwise import Order, Trainer, guarded
from rankwise.diagnose.report import write_report
from rankwise.errors import ConfigError, GuardError, StepError
from rankwise.guard import CHECKS, GuardOptions
from rankwise.guard.guard import guard_wish, trainer_guard
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import Hooks
from rankwise.world import World


class Said(logging.Handler):
    """The warnings of the guard."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("rankwise.guard").addHandler(self)
        return self

    def __exit__(self, *_):
        logging.getLogger("rankwise.guard").removeHandler(self)


def checked_steps(options, steps):
    return [step for step in range(1, steps + 1) if options.is_due(step)]


def test_the_steps_that_are_checked():
    """The first, twice as far apart each time, then every so many: arithmetic alone, so no rank checks alone."""
    assert checked_steps(GuardOptions(), 1600) == [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 500, 1000, 1500]
    assert checked_steps(GuardOptions(every=10, first=1), 30) == [1, 2, 4, 8, 10, 20, 30]
    assert checked_steps(GuardOptions(checks="all"), 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "options", [{"checks": "most"}, {"checks": ["gradient"]}, {"every": 0}, {"on_finding": "exit"}, {"timeout_s": 0}]
)
def test_wrong_options_are_refused(options):
    """With what is possible."""
    with pytest.raises(ConfigError):
        GuardOptions(**options)
    with pytest.raises(ConfigError):
        guarded(nn.Linear(2, 1), world=World.single(), **options)


def test_other_options_and_optimizers_are_refused():
    """A misspelt option, and what has no hooks for its steps."""
    with pytest.raises(ConfigError, match="no option evry; it has checks, every"):
        guarded(nn.Linear(2, 1), world=World.single(), evry=2)
    with pytest.raises(ConfigError, match="got a str; or call"):
        guarded(nn.Linear(2, 1), optimizer="sgd", world=World.single())
    with pytest.raises(ConfigError, match="guard= must be True, False"):
        make_trainer(World.single(), guard="loud")


def count_collectives(world):
    """Collectives in the guard's group after each step, and calls of the world's own group."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = world.channel.calls
    guard = guarded(model, optimizer=optimizer, world=world, every=8)
    counts = [guard._world.channel.calls]
    for _ in range(17):
        optimizer.zero_grad()
        model(torch.randn(3, 4) + world.rank).square().mean().backward()
        optimizer.step()
        counts.append(guard._world.channel.calls)
    guard.close()
    off = trainer_guard(guard_wish(False), model, world)  # what a trainer has with guard=False
    for _ in range(3):
        off.step()
    return [b - a for a, b in itertools.pairwise(counts)], world.channel.calls - before


def missing(world):
    """One rank does not come to a check: the other one says so and trains on, and so does everything else."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    guard = guarded(model, world=world, timeout_s=1.0)
    with Said() as said:
        if world.rank == 0:
            guard.step()
        world.barrier()
        guard.step()  # the late one finds nobody there
    model(torch.ones(3, 4)).mean().backward()
    return guard.active, said.texts


def failing(world):
    """A check that fails on one rank only, and a hook that does."""
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Said() as said, guarded(model, optimizer=optimizer, world=world) as guard:
        random, samples = (next(c for c in guard._checks if c.name == name) for name in ("random", "samples"))
        if world.rank == 1:
            random.facts = lambda: 1 / 0
            samples._see = lambda *_: [].pop()
        guard._subject.disarm()
        guard._look_ahead()
        for _ in range(2):
            model(torch.randn(3, 4) + world.rank).square().mean().backward()
            optimizer.step()
        return guard.active, guard.num_checked, said.texts


def unfrozen(world):
    """A layer is unfrozen between the backward pass and the step."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    model = DistributedDataParallel(model)
    with guarded(model, world=world) as guard:
        model(torch.randn(3, 4)).square().mean().backward()
        model.module[0].requires_grad_(True)
        with pytest.raises(GuardError) as said:
            guard.step()
    return str(said.value)


def make_trainer(world, step_fn=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_fn = step_fn or (lambda model, batch: model(batch["x"])[:, 0] ** 2)
    return Trainer(model, optimizer, step_fn, world=world, progress=False, **{"run": False, **options})


def make_loader(world):
    order = Order(24, batch_size=4)
    arrays = {"x": torch.randn(24, 4, generator=torch.Generator().manual_seed(1)).double().numpy()}
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


def fitted(world, **options):
    def bad(model, batch):
        inside = getattr(model, "module", model)
        return inside(batch["x"])[:, 0] ** 2

    with Said() as said:
        try:
            make_trainer(world, bad, **options).fit(make_loader(world), epochs=1)
        except GuardError as error:
            return f"raised {error}", said.texts
        return "fitted", said.texts


def trainers(world, folder):
    moved = Hooks(step_end=lambda trainer, report: trainer.session.progressed.num_steps == 2 and trainer.model.float())
    results = {"off": fitted(world, guard=False), "warn": fitted(world, guard="warn")}
    results["on"] = fitted(world, run=f"{folder}/run")
    trainer = make_trainer(
        world, lambda model, b: model(b["x"].to(next(model.parameters()).dtype))[:, 0] ** 2, hooks=moved
    )
    with pytest.raises(GuardError) as said:
        trainer.fit(make_loader(world), epochs=1)
    return results | {"moved": str(said.value)}


def all_cases(world, folder):
    cases = (count_collectives, failing, unfrozen, partial(trainers, folder=folder), missing)
    return {getattr(case, "func", case).__name__: case(world) for case in cases}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def told(folder):
    return run_ranks(all_cases, 2, str(folder))


def test_one_collective_at_a_look_and_none_between(told):
    """In a group of its own: the training's group sees none, nor does it of a guard that is off."""
    for of_rank in told:
        per_step, others = of_rank["count_collectives"]
        checked = {1, 2, 3, 4, 8, 16}
        assert [step for step, calls in enumerate(per_step, 1) if calls] == sorted(checked)
        assert set(per_step) == {0, 1}
        assert others == 0


def test_a_missing_rank_turns_the_guard_off(told):
    """It waits for its own time-out, says so, and never raises; the training's group is as good as before."""
    for of_rank in told:
        active, said = of_rank["missing"]
        assert not active
        assert len(said) == 1
        assert "the guard turns itself off after step 1" in said[0]
    assert "a rank is more than 1 s late" in told[0]["missing"][1][0]


def test_a_check_that_fails_says_nothing(told):
    """A rank that raised alone would leave the others waiting: it is said once, on the main rank."""
    assert [of_rank["failing"][:2] for of_rank in told] == [(True, 2)] * 2
    said = told[0]["failing"][2]
    assert len(said) == 2
    assert "'random' has no result: it failed on rank 1 with ZeroDivisionError" in "\n".join(said)
    assert "on rank 1 with IndexError" in "\n".join(said)
    assert told[1]["failing"][2] == []


def test_a_layer_that_is_unfrozen_before_the_step(told):
    """Torch does not wait for it at the next forward, as it does for unused ones: it is never reduced."""
    for of_rank in told:
        assert "0.weight, 0.bias: they were unfrozen after wrapping, so their gradients are not" in of_rank["unfrozen"]


def test_trainers_look_by_default(told):
    """A step function that calls the module inside is stopped at the first step; guard= turns that off or down."""
    for rank, of_rank in enumerate(told):
        results = of_rank["trainers"]
        assert results["off"] == ("fitted", [])
        assert results["warn"][0] == "fitted"
        assert len(results["warn"][1]) == (rank == 0)
        assert results["on"][0].startswith("raised [gradients] after step 1")
        assert "model.module(x)" in results["on"][0]
        assert "[gradients] after step 3" in results["moved"]
        assert "moved or cast after wrapping (0.weight" in results["moved"]


def test_the_run_keeps_what_was_found(told, folder):
    """Though it ended by it: `findings.json`, and from there the page of `rankwise report`."""
    assert told[0]["trainers"]["on"][0].startswith("raised")
    (finding,) = json.loads((folder / "run" / "findings.json").read_text())["1"]["guard"]
    assert (finding["check"], finding["ranks"], finding["step"]) == ("gradients", [0, 1], 1)
    write_report([folder / "run"], folder / "page.html")
    page = (folder / "page.html").read_text()
    assert "the guard found 1 thing(s)" in page
    assert "[gradients] after step 1, ranks 0, 1" in page


def test_a_trainer_names_the_module():
    """What is not finite is judged by the trainer's health; at a checked step the module is known."""

    def step(model, batch):
        scale = torch.where(torch.as_tensor(batch.ids == first), float("nan"), 1.0)
        return model(batch["x"] * scale[:, None])[:, 0] ** 2

    first = int(list(make_loader(World.single()))[1][0].ids[0])
    with pytest.raises(StepError, match=r"on rank 0 the input holds values that are not finite \(rows \d"):
        make_trainer(World.single(), step).fit(make_loader(World.single()))


def test_inputs_by_name_are_watched():
    """What is not finite came with the input, also if the model takes it by name."""

    class Named(nn.Linear):
        def forward(self, *, x):
            return super().forward(x)

    model = Named(2, 1)
    with guarded(model, world=World.single(), checks=["finite"], on_finding="warn") as guard:
        model(x=torch.tensor([[1.0, 2.0], [float("nan"), 1.0]])).sum().backward()
        guard.step()
    assert "the input holds values that are not finite (rows 1)" in guard.findings[0].came


def test_a_compiled_function_around_the_model_is_not_compiled_again_at_each_check():
    """New hooks at each check would reach torch's limit of recompilations, and the function would run uncompiled."""
    torch._dynamo.reset()
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.compile(lambda x: model(x).square().mean(), backend=backend)
    with guarded(model, optimizer=optimizer, world=World.single(), checks="all") as guard:
        for _ in range(12):
            loss(torch.ones(3, 4)).backward()
            optimizer.step()
        assert guard.active
    assert not guard.findings
    assert len(compiled) <= 2  # with the hooks of the first check, and without


def test_compiled_models_get_no_hooks():
    """A hook would be compiled in, and stay."""
    model = nn.Sequential(nn.Linear(4, 2))
    model.compile(backend="eager")
    with guarded(model, world=World.single(), checks="all") as guard:
        assert guard._subject.is_compiled
        assert guard._subject.handles == []
    assert set(CHECKS) >= {"gradients", "parameters", "signature"}
