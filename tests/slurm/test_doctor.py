"""`srun rankwise doctor` on a real Slurm: one task on each of two nodes."""

import json
import sys

import pytest

DOCTOR = [sys.executable, "-P", "-m", "rankwise", "doctor", "--json"]
SRUN = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mem=500M"]


def test_tasks_of_a_step_are_compared(cluster):
    """Two tasks that are alike pass, with one report."""
    done = cluster.run(*SRUN, *DOCTOR, "--skip", "host")
    assert done.stdout.count('"all ranks meet"') == 1, done.stdout
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["all ranks meet"]["evidence"] == "2 ranks"
    for name in ("rendezvous", "same versions", "same variables", "one working directory", "collectives"):
        assert checks[name]["status"] == "pass", checks[name]


@pytest.mark.slow
def test_a_variable_that_one_task_has_fails_the_step(cluster):
    """As under mpirun and torchrun."""
    words = 'if [ "$SLURM_PROCID" = 1 ]; then export NCCL_ALGO=Ring; fi; exec "$@"'
    done = cluster.run(*SRUN, "sh", "-c", words, "sh", *DOCTOR, "--only", "ranks", check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    (same,) = [check for check in json.loads(done.stdout) if check["name"] == "same variables"]
    assert "NCCL_ALGO: not set on rank 0, Ring on rank 1" in same["evidence"]
