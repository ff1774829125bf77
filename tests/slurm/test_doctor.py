"""`srun rankwise doctor` on a real Slurm: one task on each of two nodes."""

import json
import sys


def test_tasks_of_a_step_are_compared(cluster):
    """Two tasks that are alike pass, with one report; a variable that one task has fails the step."""
    doctor = [sys.executable, "-P", "-m", "rankwise", "doctor", "--json"]
    srun = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mem=500M"]
    done = cluster.run(*srun, *doctor, "--skip", "host")
    assert done.stdout.count('"all ranks meet"') == 1, done.stdout
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["all ranks meet"]["evidence"] == "2 ranks"
    for name in ("rendezvous", "same versions", "same variables", "one working directory", "collectives"):
        assert checks[name]["status"] == "pass", checks[name]

    words = 'if [ "$SLURM_PROCID" = 1 ]; then export NCCL_ALGO=Ring; fi; exec "$@"'
    done = cluster.run(*srun, "sh", "-c", words, "sh", *doctor, "--only", "ranks", check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    (same,) = [check for check in json.loads(done.stdout) if check["name"] == "same variables"]
    assert "NCCL_ALGO: not set on rank 0, Ring on rank 1" in same["evidence"]
