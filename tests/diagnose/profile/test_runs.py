"""Real ranks that lose time on purpose: the cause and the rank are named, by shares of the step and not by clocks."""

import importlib
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankwise.cli.app import app
from rankwise.diagnose.profile import Script, profile_script, profile_traces, runs, sweep_setting
from rankwise.diagnose.profile.recorder import OWN_LOADERS, Task
from rankwise.diagnose.profile.runs import run_recorded
from rankwise.errors import ConfigError, LaunchError

JOB = str(Path(__file__).with_name("job.py"))


def made(folder, *args, steps=8):
    script = Script(path=JOB, args=args, num_threads=1)
    return profile_script(script, num_ranks=2, steps=steps, skip=2, folder=folder)


@pytest.mark.parametrize(
    ("words", "part", "setting"),
    [
        (("slow_data=300", "idle=1", "find_unused=1"), "data", "find_unused"),
        pytest.param(
            ("slow_forward=300", "idle=1", "static_graph=1"), "forward", "static_graph", marks=pytest.mark.slow
        ),
    ],
)
def test_the_rank_that_is_waited_for_is_named(words, part, setting, tmp_path):
    """300 ms on rank 1 in each step: it is the straggler, in that part, and rank 0 spends its time waiting for it.

    A mebibyte of parameters without a gradient, for which DDP searches: told with its size, and that static_graph
    spares the search. The script runs with what is advised, and then nothing is said of it.
    """
    profile = made(tmp_path, *words)
    assert all(sum(step.parts.values()) == step.wall for mine in profile.steps.values() for step in mine)
    assert max(profile.share(1), key=profile.share(1).get) == part
    assert max(profile.share(0), key=profile.share(0).get) == "wait"
    assert profile.straggler is not None
    assert (profile.straggler.rank, profile.straggler.last_share) == (1, 1.0)
    first = profile.findings[0]
    assert (first.cause, first.rank) == ("straggler", 1)
    assert f"loses this time in {part}" in first.text
    facts = profile.to_json()
    assert facts["steps"] == list(range(4, 12))
    assert facts["ranks"][0]["ready_ms"] < facts["ranks"][1]["ready_ms"]
    assert (facts["settings"]["bucket_mb"], facts["settings"]["num_workers"]) == (25.0, 0)
    assert profile.settings[setting]
    searches = [found for found in profile.findings if found.cause == "find_unused"]
    assert len(searches) == (setting == "find_unused")
    for found in searches:
        assert found.cost_ms is None
        assert "last found 1 MiB of them on a rank" in found.text
        assert found.change.startswith("use static_graph=True")


def test_a_large_gradient_is_communication_and_advice_that_is_followed_helps(tmp_path):
    """Eight megabytes for a few sums: transfer, not waiting, is the largest part; the folder is read again as it is.

    Accumulation and no search for unused parameters are advised; with both less is sent for a sample, and sooner.
    """
    command = [sys.executable, "-m", "rankwise", "profile", "--steps", "4", "--skip", "2", "--run-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, JOB, "heavy=1", "find_unused=1"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "profile.json").read_text())
    communication = facts["share"]["transfer"] + facts["share"]["wait"]
    assert communication > max(share for part, share in facts["share"].items() if part not in {"transfer", "wait"})
    assert facts["collectives"]["bytes"] > 8_000_000
    told = {finding["cause"]: finding for finding in facts["findings"]}
    assert told["communication"]["change"].startswith("accumulate (micro-batches under no_sync")
    assert "change: accumulate" in done.stdout
    assert "found none in its last report" in told["find_unused"]["text"]
    assert told["find_unused"]["change"].startswith("leave it out")
    (tmp_path / "profile.json").unlink()
    again = CliRunner().invoke(app, ["profile", "--json", str(tmp_path / "traces")])
    assert json.loads(again.stdout)["share"] == facts["share"]
    assert (tmp_path / "profile.json").exists()
    before, after = profile_traces(tmp_path / "traces"), made(tmp_path / "after", "heavy=1", "accumulate=16", steps=4)
    assert after.share()["transfer"] < before.share()["transfer"]
    assert "find_unused" not in {finding.cause for finding in after.findings}
    # the search has a reduction of its own
    assert len(after.matching.groups) < len(before.matching.groups)


def test_a_hook_that_waits_is_communication(tmp_path):
    """A hook of DDP that calls collectives one by one: the node of the backward around it computes nothing."""
    profile = made(tmp_path, "heavy=1", "hook=sync", steps=4)
    assert all(sum(step.parts.values()) == step.wall for mine in profile.steps.values() for step in mine)
    for rank in (0, 1):
        share = profile.share(rank)
        communication = share["transfer"] + share["wait"]
        assert communication > max(part for name, part in share.items() if name not in {"transfer", "wait"})


def test_a_sweep_runs_the_script_with_each_value(tmp_path, monkeypatch):
    """Two ranks for each value of a setting: DDP has it, steps of all runs are timed without the profiler, told."""
    monkeypatch.setattr(runs, "LEAST_RUNS", 1)  # more runs of each are only more of the same
    seen = []

    def note(script, num_ranks, task):
        seen.append((task, run_recorded(script, num_ranks, task)))
        return seen[-1][1]

    monkeypatch.setattr(runs, "run_recorded", note)
    script = Script(path=JOB, args=("static_graph=1",), num_threads=1)
    found = sweep_setting(
        script, "bucket_mb", [3.0, 1.0], num_ranks=2, steps=5, skip=2, repeats=1, folder=tmp_path / "runs"
    )
    assert {facts[rank]["settings"]["bucket_mb"] for _, facts in seen for rank in (0, 1)} == {3.0, 1.0}
    assert all(rank["settings"]["static_graph"] for _, facts in seen for rank in facts)
    assert all(len(rank["walls_ns"]) == 5 and min(rank["walls_ns"]) > 0 for _, facts in seen for rank in facts)
    assert all(rank["samples"] == [8] * 5 for _, facts in seen for rank in facts)
    assert [row["value"] for row in found["values"]] == [3.0, 1.0]
    for row, (task, facts) in itertools.product(found["values"], seen):
        if task.ddp["bucket_cap_mb"] == row["value"]:
            slowest = max(statistics.median(rank["walls_ns"]) for rank in facts) / 1e6
            assert row["low_ms"] == row["step_ms"] == row["high_ms"] == slowest
    assert [row["verdict"] for row in found["values"]] == [None, None]
    assert not list((tmp_path / "runs").iterdir())


OWN_LOADERS_JOB = """
import time
import numpy as np
import torch
import zarr
import rankwise
from rankwise.data import crops, rows
from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.train import ExactStep

LATE_S = 0.05


def slow(sample, *_):
    time.sleep(LATE_S)
    return sample


class SlowSampler(rows.samplers.SequentialSampler):
    def _sample(self, n_obs):
        for request in super()._sample(n_obs):
            time.sleep(LATE_S)
            yield request


def slow_crops():
    while True:
        time.sleep(3 * LATE_S)
        yield crops.Sample("a.zarr", np.s_[0:4, 0:4])


array = zarr.create_array("a.zarr", shape=(8, 8), chunks=(4, 4), dtype="uint8", overwrite=True)
array[:] = 1
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(inputs):
    model(inputs.float().reshape(-1, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


sampler = SlowSampler(batch_size=2, chunk_size=2, preload_nchunks=1)
table = rows.Loader(batch_sampler=sampler, to="torch").add_dataset(np.ones((12, 4), dtype="float32"))
with rankwise.bind(), crops.Pipeline(crops.Config(samples_per_batch=3, sample_shape=(4, 4))) as pipeline:
    source = ArraySource({"x": np.ones((32, 4), dtype="float32")})
    samples = SampleLoader(source, order=Order(source, batch_size=8), transform=slow)
    for (batch,) in samples:
        step(batch["x"])
    for batch in table:
        step(batch["X"])
    pipeline.push(slow_crops())
    for batch in pipeline.batches(12):
        step(torch.as_tensor(batch["image"]))
print("to its end")
"""


def test_rankwise_loaders_are_waited_for_too(tmp_path, monkeypatch):
    """Four steps of samples, six of rows and twelve of crops, all late: waiting for data, named, and counted."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.py"
    path.write_text(OWN_LOADERS_JOB)
    for module, owner, name in OWN_LOADERS:
        assert hasattr(getattr(importlib.import_module(module), owner), name)
    task = Task(folder=str(tmp_path), skip=1, timed=7, traced=12, to_end=True)
    (facts,) = run_recorded(Script(path=str(path), num_threads=1), 1, task)
    assert (facts["samples"], facts["num_steps"]) == ([8, 8, 8, 2, 2, 2, 2], 22)
    profile = profile_traces(tmp_path)
    assert len(profile.steps[0]) == 12
    # the traced steps are of crops, the first few of which were read while the profiler was started
    assert profile.share()["data"] > 0.5
    first = profile.findings[0]
    assert (first.cause, "most of it for crops.Pipeline" in first.text) == ("data", True), first
    assert first.change.startswith("crops.Pipeline already reads ahead")
    assert profile.straggler is None


def test_a_script_that_is_too_short_says_by_how_much(tmp_path):
    """And one that fails says why, and keeps the traces that were there; numbers that cannot work start nothing."""
    earlier = tmp_path / "traces" / "rank-0.trace.json.gz"
    earlier.parent.mkdir()
    earlier.touch()
    script = Script(path=JOB, args=("steps=4",), num_threads=1)
    with pytest.raises(LaunchError, match="took 4 optimizer steps on rank 0 of 1, but 12 are needed"):
        profile_script(script, num_ranks=1, steps=8, skip=2, folder=tmp_path)
    assert list(earlier.parent.iterdir()) == [earlier]
    with pytest.raises(ConfigError, match="at least 1, got 2, 0 and 5"):
        profile_script(script, steps=0, folder=tmp_path)
