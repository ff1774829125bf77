"""Promise 5: killed at any moment and started again, a run ends where an undisturbed one ends."""

import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
import zarr

NUM_SAMPLES, EPOCHS, STEPS = 190, 3, 30  # 9 full steps of 20 and one of 10 in each epoch


@pytest.fixture(scope="module")
def job(tmp_path_factory, make_job):
    """Images and labels in sharded Zarr v3, smaller than any batch would like."""
    path = tmp_path_factory.mktemp("data") / "small.zarr"
    rng = np.random.default_rng(0)
    group = zarr.open_group(path, mode="w", zarr_format=3)
    images = rng.integers(0, 17, size=(NUM_SAMPLES, 8, 8)).astype(np.uint8)
    for name, values in (("image", images), ("label", images.sum((1, 2)).astype(np.int64) % 10)):
        tail = values.shape[1:]
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(8, *tail), shards=(64, *tail))
        array[...] = values
    return make_job("train_small.py", "--store", str(path))


def assert_exactly_once(job, run_dir):
    assert job.used(run_dir) == {epoch: Counter(range(NUM_SAMPLES)) for epoch in range(EPOCHS)}


def assert_bit_equal(job, run_dir, num_ranks):
    job.assert_equal_bits(run_dir, num_ranks)
    assert job.result(run_dir)["steps"] == STEPS


CASES = [("kill:1@7", 2), ("kill:all@13", 3), ("kill:3@22", 4), ("kill:supervisor@17", 2)]
MORE_CASES = [
    (f"kill:{who}@{step}", n) for n in (2, 3, 4) for who in ("0", "all", "supervisor") for step in (1, 10, 29)
]


def check_killed_and_continued(fault, num_ranks, job):
    run_dir = job.new_run()
    job.die(run_dir, num_ranks, fault)
    job.finish(run_dir, num_ranks)
    assert_exactly_once(job, run_dir)
    assert_bit_equal(job, run_dir, num_ranks)
    return job.restored_steps(run_dir)


@pytest.mark.parametrize(("fault", "num_ranks"), CASES)
def test_killed_and_started_again(fault, num_ranks, job):
    """SIGKILL of a rank, of all ranks or of the supervisor; the same command continues, bit for bit."""
    first, *others = check_killed_and_continued(fault, num_ranks, job)
    assert (first, len(others)) == (0, 1)  # the second attempt went on from a checkpoint, or began anew


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "num_ranks"), MORE_CASES)
def test_killed_and_started_again_everywhere(fault, num_ranks, job):
    """The same at the first, a middle and the last but one step, for every kind of kill and world size."""
    assert len(check_killed_and_continued(fault, num_ranks, job)) == 2


def test_restarted_by_the_supervisor(job):
    """With --max-restarts a killed rank costs nothing but time: one command, the same bits."""
    run_dir = job.new_run()
    job.finish(run_dir, 2, fault="kill:0@11", restarts=1)
    assert_exactly_once(job, run_dir)
    assert_bit_equal(job, run_dir, 2)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1)])
def test_continued_at_another_world_size(before, after, job):
    """Another number of ranks: every sample exactly once, the undisturbed result within 1e-9 in float64."""
    run_dir, extra = job.new_run(), ("--plain",)
    job.die(run_dir, before, "kill:all@14", extra=extra)
    job.finish(run_dir, after, extra=extra)
    assert_exactly_once(job, run_dir)
    got, wanted = job.result(run_dir), job.result(job.undisturbed(2, extra))
    assert got["metrics"]["accuracy"] == wanted["metrics"]["accuracy"]
    torch.testing.assert_close(got["parameters"], wanted["parameters"], rtol=0, atol=1e-9)


def test_the_same_script_everywhere(job, tmp_path):
    """python, torchrun and rankwise run: the same bits at equal ranks and threads."""

    def digest(name, *command, ranks):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKWISE_RUN_DIR": str(tmp_path / name)}
        script = [str(job.script), *job.options, "--epochs", "1"]
        done = subprocess.run([*command, *script], env=env, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        record = json.loads((tmp_path / name / "config.json").read_text())
        assert json.dumps(record).count(f'"world_size": {ranks}') == 1
        return job.result(tmp_path / name)["digest"]

    python, rankwise = (sys.executable,), (sys.executable, "-m", "rankwise", "run", "--nproc")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    one = {digest("python", *python, ranks=1), digest("rankwise-1", *rankwise, "1", ranks=1)}
    assert len(one) == 1
    two = {digest("rankwise-2", *rankwise, "2", ranks=2), digest("torchrun-2", *torchrun, "2", ranks=2)}
    assert len(two) == 1
