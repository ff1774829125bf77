"""Runs of a training script under `rankwise run`: launched, killed, read."""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr


@dataclass
class Job:
    """A training script with its options, and what an undisturbed run of it came to at each world size."""

    script: Path
    options: tuple[str, ...]
    make_folder: object
    _undisturbed: dict = field(default_factory=dict)

    def new_run(self):
        return self.make_folder("job") / "run"

    def launch(self, run_dir, num_ranks, *, fault="", restarts=0, options=(), extra=()):
        """Run the script; return its exit status and output."""
        command = [sys.executable, "-m", "rankwise", "run", "--nproc", str(num_ranks), "--max-restarts", str(restarts)]
        command += options
        command += ["--run-dir", str(run_dir), str(self.script), *self.options, *extra]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKWISE_TEST_FAULT": fault}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
        return done.returncode, done.stdout + done.stderr

    def finish(self, run_dir, num_ranks, **how):
        """Run the script to its end."""
        status, output = self.launch(run_dir, num_ranks, **how)
        assert status == 0, output

    def die(self, run_dir, num_ranks, fault, *, extra=()):
        """Run the script until the fault ends it."""
        status, output = self.launch(run_dir, num_ranks, fault=fault, extra=extra)
        assert status != 0, output
        assert "supervisor" in fault or "SIGKILL" in output, output
        assert not (run_dir / "finished.json").exists()

    def undisturbed(self, num_ranks, extra=()):
        """Return the folder of a run that nobody disturbs, made once for each world size."""
        key = (num_ranks, extra)
        if key not in self._undisturbed:
            run_dir = self.new_run()
            self.finish(run_dir, num_ranks, extra=extra)
            self._undisturbed[key] = run_dir
        return self._undisturbed[key]

    def result(self, run_dir):
        result = json.loads((run_dir / "result.json").read_text())
        return {**result, "parameters": torch.load(run_dir / "parameters.pt", weights_only=True)}

    def used(self, run_dir):
        """What was used by epoch on the lineage that survives: an attempt counts up to where the next one began."""
        lines = [json.loads(line) for path in run_dir.glob("used-*.jsonl") for line in path.read_text().splitlines()]
        starts = {
            event["attempt"]: event["restored_step"]
            for event in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
            if event.get("event") == "attempt"
        }
        used = defaultdict(Counter)
        for line in lines:
            later = [restored for attempt, restored in starts.items() if attempt > line["attempt"]]
            if all(line["step"] <= restored for restored in later):
                used[line["epoch"]].update(line["used"])
        return dict(used)

    def restored_steps(self, run_dir):
        """Where each attempt began, in order."""
        events = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        return [event["restored_step"] for event in events if event.get("event") == "attempt"]

    def assert_equal_bits(self, run_dir, num_ranks):
        got, wanted = self.result(run_dir), self.result(self.undisturbed(num_ranks))
        for fact in ("steps", "digest", "metrics"):
            assert got[fact] == wanted[fact]


@pytest.fixture(scope="session")
def small_store(tmp_path_factory):
    """Images and labels in sharded Zarr v3, smaller than any batch would like."""
    path = tmp_path_factory.mktemp("data") / "small.zarr"
    rng = np.random.default_rng(0)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    images = rng.integers(0, 17, size=(190, 8, 8)).astype(np.uint8)
    for name, values in (("image", images), ("label", images.sum((1, 2)).astype(np.int64) % 10)):
        tail = values.shape[1:]
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(8, *tail), shards=(64, *tail))
        array[...] = values
    return str(path)


@pytest.fixture(scope="module")
def make_job(tmp_path_factory):
    """``make_job("script.py", *options)``."""
    return lambda script, *options: Job(Path(__file__).with_name(script), options, tmp_path_factory.mktemp)
