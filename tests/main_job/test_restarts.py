"""Promise 5: killed at any moment and started again, a run ends where an undisturbed one ends."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch

NUM_SAMPLES, EPOCHS, STEPS = 190, 3, 30  # 9 full steps of 20 and one of 10 in each epoch


@pytest.fixture(scope="module")
def job(make_job, small_store):
    return make_job("train_small.py", "--store", small_store)


def assert_exactly_once(job, run_dir):
    assert job.used(run_dir) == {epoch: Counter(range(NUM_SAMPLES)) for epoch in range(EPOCHS)}


def assert_bit_equal(job, run_dir, num_ranks):
    job.assert_equal_bits(run_dir, num_ranks)
    assert job.result(run_dir)["steps"] == STEPS


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


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "num_ranks"), MORE_CASES)
def test_killed_and_started_again_everywhere(fault, num_ranks, job):
    """The same command continues, bit for bit: at the first, a middle and the last but one step, all kinds of kills."""
    assert len(check_killed_and_continued(fault, num_ranks, job)) == 2


@pytest.mark.slow
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


TORCHRUN_ASKED = pytest.param(("SIGTERM", "SIGUSR1"), marks=pytest.mark.slow)


@pytest.mark.parametrize("asked", [(), TORCHRUN_ASKED])
def test_asked_to_stop_or_killed_and_started_again(job, asked):
    """SIGUSR1 to rankwise run, at first SIGTERM and SIGUSR1 to torchrun: no step is done twice; then SIGKILL to it.

    The same command goes on, also when a rank is killed, and comes to the bits of an undisturbed run.
    """
    run_dir = job.new_run()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    torchrun += ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]  # else SIGUSR1 kills torchrun alone
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKWISE_RUN_DIR": str(run_dir)}
    extra = ("--save-every", "1000")  # what is gone on from was saved because of a signal
    command = [*torchrun, str(job.script), *job.options, *extra]
    faults = {"SIGTERM": "term:supervisor@12", "SIGUSR1": "usr1:supervisor@14#2"}
    for name in asked:
        env["RANKWISE_TEST_FAULT"] = faults[name]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode != 0
        assert f"{name}: saving and stopping after step" in done.stderr, done.stderr
    last = len(asked) + 1
    status, output = job.launch(run_dir, 2, fault=f"usr1:supervisor@16#{last}", restarts=3, extra=extra)
    assert status == 75, output
    assert "the ranks have saved and ended as requested: the same command resumes the run" in output
    record = json.loads((run_dir / "config.json").read_text())["environment"]
    told = [record[str(number)]["interrupted"] for number in range(1, last + 1)]
    assert [each["reason"] for each in told] == [*asked, "SIGUSR1"]
    job.die(run_dir, 2, f"kill:supervisor@18#{last + 1}", extra=extra)
    job.finish(run_dir, 2, fault=f"kill:0@23#{last + 2}", restarts=1)
    steps = [each["step"] for each in told]
    assert job.restored_steps(run_dir) == [0, *steps, steps[-1], 20]
    assert_exactly_once(job, run_dir)
    assert_bit_equal(job, run_dir, 2)


def test_the_same_script_everywhere(job, tmp_path):
    """Plain Python and rankwise run: the same bits at one rank. With two, torchrun begins above what ends in them."""

    def digest(name, *command):
        run_dir = tmp_path / name
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RANKWISE_RUN_DIR": str(run_dir)}
        script = [str(job.script), *job.options]
        done = subprocess.run([*command, *script], env=env, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (run_dir / "config.json").read_text().count('"world_size": 1') == 1
        return job.result(run_dir)["digest"]

    rankwise = (sys.executable, "-m", "rankwise", "run", "--nproc", "1")
    assert digest("python", sys.executable) == digest("rankwise", *rankwise)
