"""A training run on disk: found finished, gone on with, begun from another's weights, and never mixed up."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.checkpoint import Checkpointer
from rankwise.data.samples import DatasetLoader
from rankwise.errors import CheckpointError, ConfigError, RunDirError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.tracking.ownership import FINISHED_HERE
from rankwise.train import Hooks, Trainer, unwrapped
from rankwise.world import World


@pytest.fixture(autouse=True)
def one_thread(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


def make_loader(world=None):
    world = world or World.single()
    rng = np.random.default_rng(2)
    arrays = {"x": rng.normal(size=(26, 4)), "y": rng.integers(0, 2, size=26)}
    order = Order(26, batch_size=8, fingerprint="these")
    return ArrayLoader(arrays, order, seed=order.seed, rank=world.rank, world_size=world.world_size)


def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def other_step(model, batch):
    return 2 * nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def make_trainer(step_fn=step, *, world=None, seed=0, **options):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    options = {"run": "run", "progress": False, **options}
    return Trainer(model, optimizer, step_fn, world=world or World.single(), **options)


def fit(epochs=2, **options):
    """Train as another process would; return the trainer and the result."""
    FINISHED_HERE.clear()
    trainer = make_trainer(**options)
    return trainer, trainer.fit(make_loader(), epochs=epochs)


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in unwrapped(trainer.model).parameters()])


class StopError(Exception):
    """Stands for a crash."""


def crash(after, **options):
    def hook(trainer, _report):
        if trainer.session.progressed.num_steps == after:
            raise StopError

    with pytest.raises(StopError):
        fit(hooks=Hooks(step_end=hook), **options)


def finish_on_ranks(world, path):
    trainer = make_trainer(world=world, run=path)
    result = trainer.fit(make_loader(world), epochs=2)
    exp = [state["exp_avg"] for state in trainer.optimizer.state_dict()["state"].values()]
    return parameters(trainer), exp, result.metrics


def test_a_finished_run_comes_back_as_it_was(tmp_path, capsys):
    """Trained on two ranks, given again to one: model, optimizer and metrics of the end, one line, nothing written."""
    wanted, exp, metrics = run_ranks(finish_on_ranks, 2, tmp_path / "run")[0]
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*") if "lock" not in path.name}
    trainer = make_trainer(seed=7)
    loader = make_loader()
    result = trainer.fit(loader, epochs=2)
    assert result.already_finished
    assert torch.equal(parameters(trainer), wanted)
    states = trainer.optimizer.state_dict()["state"].values()
    assert all(torch.equal(state["exp_avg"], one) for state, one in zip(states, exp, strict=True))
    assert dict(result.metrics) == dict(metrics)
    assert loader.state_dict()["epoch"] == 2
    line = f"run {tmp_path / 'run'} is finished (2 epochs, 8 steps, 2 ranks): its model was restored and nothing was "
    assert line in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_finished_run_without_its_last_state_is_an_error():
    """No checkpoint, or an earlier one only: an untrained or other model never comes with the recorded metrics."""
    fit(save_every=2)
    (last,) = Path("run/checkpoints").glob("*08")
    shutil.move(last, "kept")
    with pytest.raises(
        CheckpointError, match=r"finished after step 8, but its newest good checkpoint is of step 6: put that of step 8"
    ):
        fit(save_every=2)
    shutil.rmtree("run/checkpoints")
    with pytest.raises(
        CheckpointError, match=r"is finished, but there is no checkpoint in .* start again with --fresh"
    ):
        fit(save_every=2)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, seed):
        self.x = torch.randn(26, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.double)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": (self.x[index].sum() > 0).long()}


def fold(number, **options):
    dataset = Numbers(number)
    trainer = make_trainer(**{"run": None, **options})
    loader = DatasetLoader(dataset, order=Order(dataset, batch_size=8), world=World.single())
    return trainer.fit(loader, epochs=1)


def test_folds_are_not_handed_each_others_results(monkeypatch):
    """Data that only their length tells apart, one default run directory: the second fold is refused, with the mend."""
    monkeypatch.setattr("sys.argv", ["folds.py"])
    monkeypatch.delenv("RANKWISE_RUN_DIR", raising=False)
    first = fold(1)
    with pytest.raises(RunDirError, match=r"finished by this same process.*run='runs/fold-2'.*Trainer\(fresh=True\)"):
        fold(2)
    second = fold(2, run="runs/fold-2")
    anew = fold(2, fresh=True)
    assert not second.already_finished
    assert not anew.already_finished
    assert anew.metrics == second.metrics != first.metrics
    assert Path("runs/folds.1/finished.json").exists()


def test_what_only_the_length_tells_apart_is_said(caplog):
    """Found by another process, a run over data without a fingerprint says how they were compared; others do not."""
    fold(1, run="run")
    assert caplog.text == ""
    FINISHED_HERE.clear()
    assert fold(2, run="run").already_finished
    assert "the data have no fingerprint, so only their length was compared" in caplog.text
    caplog.clear()
    fit(run="whole")
    fit(run="whole")
    assert caplog.text == ""


def test_a_changed_step_function_is_said(caplog):
    """Its code is recorded; another one of the same name goes on, and is said, at a finished run too."""
    crash(5, save_every=2)
    other_step.__qualname__ = "step"
    fit(step_fn=other_step, save_every=2)
    said = "the code of the step function has changed since the last attempt"
    assert caplog.text.count(said) == 1
    fit(step_fn=other_step, save_every=2)
    assert caplog.text.count(said) == 1
    fit(step_fn=step, save_every=2)
    assert caplog.text.count(said) == 2


def test_bookkeeping_may_change(caplog):
    """Log lines, checkpoints and how many stay: the same run, to the same bits; the changes are recorded and said."""
    whole, wanted = fit(3, run="whole")
    crash(5, epochs=3, save_every=2)
    again, result = fit(3, save_every=3, log_every=4, keep=1)
    assert result.resumed_step == 4
    assert torch.equal(parameters(again), parameters(whole))
    assert result.metrics == wanted.metrics
    changes = ["train.keep: 3 -> 1", "train.log_every: 10 -> 4", "train.save_every: 2 -> 3"]
    assert all(f"changed since the last attempt: {line}" in caplog.text for line in changes)
    record = json.loads(Path("run/config.json").read_text())
    assert record["environment"]["2"]["changed"] == changes
    assert record["config"]["train"]["keep"] == 1
    with pytest.raises(RunDirError, match=r"train\.max_grad_norm: null -> 1\.0"):
        fit(3, max_grad_norm=1.0)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [({"epochs": 2}, {"epochs": 4}), ({"limit_steps": 6}, {}), ({"limit_steps": 3}, {"limit_steps": 11})],
)
def test_a_finished_run_goes_on_with_more(shorter, longer, caplog):
    """More epochs, or a higher limit, in mid-epoch too: the bits of a run that was asked for all of it at once."""
    shorter, longer = {"epochs": 4, **shorter}, {"epochs": 4, **longer}
    whole, wanted = fit(run="whole", **longer)
    fit(**shorter)
    again, result = fit(**longer)
    assert not result.already_finished
    assert result.num_steps == wanted.num_steps
    assert torch.equal(parameters(again), parameters(whole))
    assert result.metrics == wanted.metrics
    assert caplog.text.count("changed since the last attempt: train.") == 1
    assert Path("run/finished-1.json").exists()
    assert fit(**longer)[1].already_finished


def test_a_run_is_not_taken_back():
    """Fewer epochs or steps than it has done: neither its metrics nor its model are what was asked for."""
    fit(3)
    with pytest.raises(
        RunDirError, match=r"12 steps \(3 whole epochs and 0 samples\), but 2 epochs were requested; request"
    ):
        fit(2)
    crash(6, run="other", save_every=2, epochs=3)
    with pytest.raises(RunDirError, match=r"4 steps .* but 3 epochs and 3 steps at most were requested"):
        fit(3, run="other", save_every=2, limit_steps=3)


def test_a_trainer_goes_on_with_its_own_run():
    """In one process: more epochs of the same trainer continue, the same again is refused as for any other."""
    trainer, _ = fit(2)
    with pytest.raises(RunDirError, match="finished by this same process"):
        trainer.fit(make_loader(), epochs=2)
    assert trainer.fit(make_loader(), epochs=3).num_steps == 12
    whole, _ = fit(3, run="whole")
    assert torch.equal(parameters(trainer), parameters(whole))


def start_from(world, path):
    trainer = make_trainer(world=world, seed=7, run=False, init_from=path, hooks=Hooks(fit_start=stop))
    with pytest.raises(StopError):
        trainer.fit(make_loader(world))
    return parameters(trainer)


def stop(_trainer):
    raise StopError


def test_weights_of_another_run(tmp_path):
    """init_from= gives a new run the newest weights of another, on all ranks; one that continues keeps its own."""
    first, _ = fit(run="first")
    for weights in run_ranks(start_from, 2, tmp_path / "first"):
        assert torch.equal(weights, parameters(first))
    crash(5, run="second", save_every=2, init_from="first")
    shutil.move("first", "gone")
    assert fit(run="second", save_every=2, init_from="first")[1].resumed_step == 4
    with pytest.raises(RunDirError, match=r'init_from: "first" -> \(absent\)'):
        fit(run="second")
    with pytest.raises(CheckpointError, match="init_from='first' holds no checkpoint"):
        fit(run="third", init_from="first")


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_restart_of_a_fresh_start_goes_on(name, monkeypatch):
    """fresh=True, or RANKWISE_FRESH=1, moves the old run aside once; the restarts of the same start continue."""
    fit()
    crash(5, fresh=True, save_every=2)
    monkeypatch.setenv(name, "1")
    assert fit(fresh=True, save_every=2)[1].resumed_step == 4
    monkeypatch.setenv("RANKWISE_FRESH", "1")
    assert fit(save_every=2)[1].already_finished
    monkeypatch.setenv(name, "0")
    assert not fit()[1].already_finished
    assert fit(fresh=False)[1].already_finished
    assert sorted(path.name for path in Path().iterdir()) == ["run", "run.1", "run.2"]


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_a_run_that_has_progressed_does_not_begin_again(resume):
    """All checkpoints damaged, or gone: an error that says what was found; nothing is removed; --fresh is the way."""
    crash(7, save_every=2)
    for manifest in Path("run/checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    found = sorted(Path("run").rglob("*.pt"))
    with pytest.raises(CheckpointError, match=r"(?s)none of them is whole.*0006: its mani.*0004: .*0002: .*--fresh"):
        fit(save_every=2, resume=resume)
    assert sorted(Path("run").rglob("*.pt")) == found
    shutil.rmtree("run/checkpoints")
    with pytest.raises(RunDirError, match=r"has published checkpoints, but .* no longer holds any: .* --fresh"):
        fit(save_every=2, resume=resume)
    assert fit(save_every=2, fresh=True)[1].resumed_step == 0


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_a_checkpoint_that_may_not_be_read_now_is_waited_for(resume, without_privileges):
    """EACCES of the newest: the run stops, nothing is pruned or begun; readable again, it continues from there."""
    crash(7, save_every=2)
    newest = Path("run/checkpoints/step-0000000006/model.pt")
    found = sorted(Path("run").rglob("*.pt"))
    newest.chmod(0)
    with without_privileges(), pytest.raises(CheckpointError, match=r"cannot be read now, .*Permission denied"):
        fit(save_every=2, resume=resume)
    assert sorted(Path("run").rglob("*.pt")) == found
    newest.chmod(0o600)
    assert fit(save_every=2, resume=resume)[1].resumed_step == 6


def test_a_run_that_saved_nothing_says_that_it_begins_again(caplog):
    """Killed before its first checkpoint there is nothing to go on from; it is said."""
    crash(2, save_every=4)
    assert caplog.text == ""
    assert fit(save_every=4)[1].resumed_step == 0
    assert "starts at step 0 again: no earlier attempt has published a checkpoint" in caplog.text


def test_runs_of_before_go_on(caplog):
    """Without the records that came later, a run continues, and nothing is said of what it could not record."""
    crash(5, save_every=2)
    record = json.loads(Path("run/config.json").read_text())
    del record["config"]["step_fn_code"]
    Path("run/config.json").write_text(json.dumps(record))
    attempt = json.loads(Path("run/attempt.json").read_text())
    del attempt["saved"]
    Path("run/attempt.json").write_text(json.dumps(attempt))
    assert fit(save_every=2)[1].resumed_step == 4
    assert caplog.text == ""
    assert fit(save_every=2)[1].already_finished


def test_a_notebook_names_its_runs(monkeypatch):
    """All notebooks would share one default directory: a name is asked for, before anything is written."""
    monkeypatch.setattr("sys.argv", ["/x/ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.delenv("RANKWISE_RUN_DIR", raising=False)
    with pytest.raises(ConfigError, match=r"in a notebook needs a name.*Trainer\(run='runs/NAME'\); run=False writes"):
        fit(run=None)
    assert list(Path().iterdir()) == []
    assert fit(run=False)[1].run_dir is None


def test_checkpoints_are_found_by_the_name_of_the_run():
    """Weights for inference: a Checkpointer over the run directory."""
    trainer, _ = fit()
    info = Checkpointer("run", world=World.single()).newest()
    weights = Checkpointer("run", world=World.single()).read(info, "model")
    assert all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())


def test_a_run_goes_on_in_its_process_with_what_a_schedule_has_changed():
    """OneCycleLR moves Adam's betas too: more epochs are not another configuration. Another rate by hand is."""

    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)

    trainer = make_trainer(scheduler=one_cycle)
    trainer.fit(make_loader(), epochs=1)
    assert trainer.optimizer.param_groups[0]["betas"][0] != 0.95
    assert trainer.fit(make_loader(), epochs=2).num_steps == 8
    trainer.optimizer.param_groups[0]["eps"] = 1e-3
    with pytest.raises(RunDirError, match=r"optimizer.group 0.eps: 1e-08 -> 0.001"):
        trainer.fit(make_loader(), epochs=3)


def test_metrics_of_any_name_and_value_are_found_finished():
    """A metric named num_steps does not replace the run's own; one that is NaN stays a number."""

    def odd(model, batch):
        return step(model, batch), {"num_steps": (2.5, 1), "nothing": (0.0, 0.0)}

    _, first = fit(step_fn=odd)
    _, found = fit(step_fn=odd)
    assert (found.already_finished, found.num_steps) == (True, first.num_steps)
    assert np.isnan([first.metrics["nothing"], found.metrics["nothing"]]).all()
