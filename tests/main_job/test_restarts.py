"""Promise 5: killed at any moment and started again, a run ends where an undisturbed one ends."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

SCRIPT = Path(__file__).with_name("train_small.py")
NUM_SAMPLES, EPOCHS, STEPS = 190, 3, 30  # 9 full steps of 20 and one of 10 in each epoch


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Images and labels in sharded Zarr v3, smaller than any batch would like."""
    path = tmp_path_factory.mktemp("data") / "small.zarr"
    rng = np.random.default_rng(0)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    images = rng.integers(0, 17, size=(NUM_SAMPLES, 8, 8)).astype(np.uint8)
    for name, values in (("image", images), ("label", images.sum((1, 2)).astype(np.int64) % 10)):
        tail = values.shape[1:]
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(8, *tail), shards=(64, *tail))
        array[...] = values
    return path


def launch(store, run_dir, num_ranks, *, fault="", restarts=0, extra=()):
    """Run the script under `rankwise run`; return its exit status and output."""
    command = [sys.executable, "-m", "rankwise", "run", "--nproc", str(num_ranks), "--max-restarts", str(restarts)]
    command += ["--run-dir", str(run_dir), str(SCRIPT), "--store", str(store), *extra]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKWISE_TEST_FAULT": fault}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout + done.stderr


_undisturbed = {}


def undisturbed(store, tmp_path_factory, num_ranks, extra=()):
    """The result of a run that nobody disturbs, made once for each world size."""
    key = (num_ranks, extra)
    if key not in _undisturbed:
        run_dir = tmp_path_factory.mktemp(f"undisturbed-{num_ranks}") / "run"
        status, output = launch(store, run_dir, num_ranks, extra=extra)
        assert status == 0, output
        _undisturbed[key] = read_result(run_dir)
    return _undisturbed[key]


def read_result(run_dir):
    result = json.loads((run_dir / "result.json").read_text())
    return {**result, "parameters": torch.load(run_dir / "parameters.pt", weights_only=True)}


def surviving_ids(run_dir):
    """Ids by epoch on the lineage that survives: an attempt's steps count up to where the next one was restored."""
    lines = [json.loads(line) for path in run_dir.glob("ids-*.jsonl") for line in path.read_text().splitlines()]
    starts = {
        event["attempt"]: event["restored_step"]
        for event in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        if event.get("event") == "attempt"
    }
    used = {epoch: Counter() for epoch in range(EPOCHS)}
    for line in lines:
        later = [restored for attempt, restored in starts.items() if attempt > line["attempt"]]
        if all(line["step"] <= restored for restored in later):
            used[line["epoch"]].update(line["ids"])
    return used


def assert_exactly_once(run_dir):
    for epoch, used in surviving_ids(run_dir).items():
        assert used == Counter(range(NUM_SAMPLES)), f"epoch {epoch}"


def assert_bit_equal(run_dir, wanted):
    got = read_result(run_dir)
    assert got["steps"] == wanted["steps"] == STEPS
    assert got["digest"] == wanted["digest"]
    assert got["metrics"] == wanted["metrics"]


CASES = [("kill:1@7", 2), ("kill:all@13", 3), ("kill:3@22", 4), ("kill:supervisor@17", 2)]
MORE_CASES = [
    (f"kill:{who}@{step}", n) for n in (2, 3, 4) for who in ("0", "all", "supervisor") for step in (1, 10, 29)
]


def check_killed_and_continued(fault, num_ranks, store, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("killed") / "run"
    status, output = launch(store, run_dir, num_ranks, fault=fault)
    assert status != 0, output
    assert "supervisor" in fault or "SIGKILL" in output, output
    assert not (run_dir / "finished.json").exists()
    status, output = launch(store, run_dir, num_ranks)
    assert status == 0, output
    assert_exactly_once(run_dir)
    assert_bit_equal(run_dir, undisturbed(store, tmp_path_factory, num_ranks))


@pytest.mark.parametrize(("fault", "num_ranks"), CASES)
def test_killed_and_started_again(fault, num_ranks, store, tmp_path_factory):
    """SIGKILL of a rank, of all ranks or of the supervisor; the same command continues, bit for bit."""
    check_killed_and_continued(fault, num_ranks, store, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "num_ranks"), MORE_CASES)
def test_killed_and_started_again_everywhere(fault, num_ranks, store, tmp_path_factory):
    """The same at the first, a middle and the last but one step, for every kind of kill and world size."""
    check_killed_and_continued(fault, num_ranks, store, tmp_path_factory)


def test_restarted_by_the_supervisor(store, tmp_path_factory):
    """With --max-restarts a killed rank costs nothing but time: one command, the same bits."""
    run_dir = tmp_path_factory.mktemp("restarted") / "run"
    status, output = launch(store, run_dir, 2, fault="kill:0@11", restarts=1)
    assert status == 0, output
    assert_exactly_once(run_dir)
    assert_bit_equal(run_dir, undisturbed(store, tmp_path_factory, 2))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1)])
def test_continued_at_another_world_size(before, after, store, tmp_path_factory):
    """Another number of ranks: every sample exactly once, the undisturbed result within 1e-9 in float64."""
    run_dir = tmp_path_factory.mktemp("resized") / "run"
    extra = ("--plain",)
    status, output = launch(store, run_dir, before, fault="kill:all@14", extra=extra)
    assert status != 0, output
    status, output = launch(store, run_dir, after, extra=extra)
    assert status == 0, output
    assert_exactly_once(run_dir)
    got, wanted = read_result(run_dir), undisturbed(store, tmp_path_factory, 2, extra)
    assert got["metrics"]["accuracy"] == wanted["metrics"]["accuracy"]
    torch.testing.assert_close(got["parameters"], wanted["parameters"], rtol=0, atol=1e-9)


def test_the_same_script_everywhere(store, tmp_path):
    """python, torchrun and rankwise run: the same bits at equal ranks and threads."""

    def digest(name, *command, ranks):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKWISE_RUN_DIR": str(tmp_path / name)}
        script = [str(SCRIPT), "--store", str(store), "--epochs", "1"]
        done = subprocess.run([*command, *script], env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        record = json.loads((tmp_path / name / "config.json").read_text())
        assert json.dumps(record).count(f'"world_size": {ranks}') == 1
        return read_result(tmp_path / name)["digest"]

    python, rankwise = (sys.executable,), (sys.executable, "-m", "rankwise", "run", "--nproc")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    one = {digest("python", *python, ranks=1), digest("rankwise-1", *rankwise, "1", ranks=1)}
    assert len(one) == 1
    two = {digest("rankwise-2", *rankwise, "2", ranks=2), digest("torchrun-2", *torchrun, "2", ranks=2)}
    assert len(two) == 1
