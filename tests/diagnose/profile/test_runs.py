"""Real ranks that lose time on purpose: the cause and the rank are named, by shares of the step and not by clocks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.diagnose.profile import Script, profile_script, profile_traces
from rankwise.diagnose.profile.recorder import Task
from rankwise.diagnose.profile.running import run_recorded
from rankwise.errors import ConfigError, LaunchError

JOB = str(Path(__file__).with_name("job.py"))


def made(folder, *args):
    script = Script(path=JOB, args=args, num_threads=1)
    return profile_script(script, num_ranks=2, steps=8, skip=2, folder=folder)


@pytest.mark.parametrize(("slow", "part"), [("slow_data", "data"), ("slow_forward", "forward")])
def test_the_rank_that_is_waited_for_is_named(slow, part, tmp_path):
    """100 ms on rank 1 in each step: it is the straggler, in that part, and rank 0 spends its time waiting for it."""
    profile = made(tmp_path, f"{slow}=100")
    assert all(sum(step.parts.values()) == step.wall for mine in profile.steps.values() for step in mine)
    assert max(profile.share(1), key=profile.share(1).get) == part
    assert max(profile.share(0), key=profile.share(0).get) == "wait"
    assert profile.straggler is not None
    assert (profile.straggler.rank, profile.straggler.last_share) == (1, 1.0)
    first = profile.findings[0]
    assert (first.cause, first.rank) == ("straggler", 1)
    assert f"loses it in {part}" in first.text
    facts = profile.to_json()
    assert facts["steps"] == list(range(4, 12))
    assert facts["ranks"][0]["ready_ms"] < facts["ranks"][1]["ready_ms"]
    assert (facts["settings"]["bucket_mb"], facts["settings"]["num_workers"]) == (25.0, 0)


def test_a_large_gradient_is_communication(tmp_path):
    """Eight megabytes for a few sums: transfer, not waiting, is the largest part; the folder is read again as it is."""
    command = [sys.executable, "-m", "rankwise", "profile", "--steps", "8", "--skip", "2", "--run-dir", str(tmp_path)]
    done = subprocess.run([*command, JOB, "heavy=1"], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "profile.json").read_text())
    communication = facts["share"]["transfer"] + facts["share"]["wait"]
    assert communication > max(share for part, share in facts["share"].items() if part not in {"transfer", "wait"})
    assert "communication" in {finding["cause"] for finding in facts["findings"]}
    assert facts["collectives"]["bytes"] > 8_000_000
    assert "change: accumulate" in done.stdout
    (tmp_path / "profile.json").unlink()
    again = subprocess.run(
        [sys.executable, "-m", "rankwise", "profile", "--json", str(tmp_path / "traces")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["share"] == facts["share"]
    assert (tmp_path / "profile.json").exists()


def test_a_setting_of_ddp_is_replaced_and_steps_are_timed(tmp_path):
    """Without the profiler: as many times as asked for, samples of each rank, the setting that a sweep gives."""
    task = Task(folder=str(tmp_path), skip=2, timed=5, traced=0, ddp={"bucket_cap_mb": 3.0})
    facts = run_recorded(Script(path=JOB, num_threads=1), 2, task)
    assert [rank["settings"]["bucket_mb"] for rank in facts] == [3.0, 3.0]
    assert all(len(rank["walls_ns"]) == 5 and min(rank["walls_ns"]) > 0 for rank in facts)
    assert all(rank["samples"] == [8] * 5 for rank in facts)
    assert not list(tmp_path.glob("*.trace.json.gz"))


OWN_LOADER = """
import time
import numpy as np
import torch
import rankwise
from rankwise.data.order import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.train import ExactStep


def slow(sample, *_):
    time.sleep(0.02)
    return sample


with rankwise.bind() as world:
    source = ArraySource({"x": np.ones((200, 4), dtype="float32")})
    loader = SampleLoader(source, order=Order(source, batch_size=8), transform=slow)
    model = rankwise.prepare(torch.nn.Linear(4, 1), world)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.01), lambda m, b: m(b["x"]).square().mean(dim=1))
    for batches in loader:
        loader.mark_done(step(batches).resume)
print("to its end")
"""


def test_rankwise_loaders_are_waited_for_too(tmp_path):
    """A slow transform behind a loader of rankwise is waiting for data, its samples are counted; told on one rank."""
    path = tmp_path / "own.py"
    path.write_text(OWN_LOADER)
    task = Task(folder=str(tmp_path), skip=2, timed=4, traced=4, to_end=True)
    (facts,) = run_recorded(Script(path=str(path), num_threads=1), 1, task)
    assert (facts["samples"], facts["num_steps"]) == ([8] * 4, 12)
    profile = profile_traces(tmp_path)
    assert max(profile.share(), key=profile.share().get) == "data"
    assert [finding.cause for finding in profile.findings][:1] == ["data"]
    assert profile.straggler is None


def test_a_script_that_is_too_short_says_by_how_much(tmp_path):
    """And one that fails says why; numbers that cannot work start nothing."""
    script = Script(path=JOB, args=("steps=4",), num_threads=1)
    with pytest.raises(LaunchError, match="took 4 optimizer steps on rank 0 of 1, and 12 are needed"):
        profile_script(script, num_ranks=1, steps=8, skip=2, folder=tmp_path)
    with pytest.raises(ConfigError, match="at least 1, got 2, 0 and 5"):
        profile_script(script, steps=0, folder=tmp_path)
