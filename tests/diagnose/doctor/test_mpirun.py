"""`mpirun -n 2 rankwise doctor` under a real Open MPI: the ranks are compared, and mpirun ends with the exit code."""

import json
import os
import shutil
import subprocess
import sys

import pytest

MPIRUN = shutil.which("mpirun")
pytestmark = pytest.mark.skipif(
    MPIRUN is None and not os.environ.get("CI"), reason="no mpirun here: install Open MPI (Debian's openmpi-bin)"
)
DOCTOR = [sys.executable, "-m", "rankwise", "doctor", "--json"]


def mpirun(folder, *words):
    ours = ("OMPI_", "PMIX_", "RANKWISE_", "SLURM_", "NCCL_", "MASTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    command = [MPIRUN, "--oversubscribe", *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    checks, _ = json.JSONDecoder().raw_decode(done.stdout)  # mpirun adds words of its own where a rank fails
    return done, {check["name"]: check for check in checks}


def test_ranks_of_mpirun_are_compared(tmp_path):
    """Two ranks have one report, and pass in all but a variable that one of them has: it fails the job."""
    assert MPIRUN, "CI installs openmpi-bin before the tests"
    done, checks = mpirun(tmp_path, "-n", "1", *DOCTOR, ":", "-n", "1", "-x", "NCCL_ALGO=Ring", *DOCTOR)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count('"all ranks meet"') == 1
    assert checks["all ranks meet"]["evidence"] == "2 ranks"
    for name in ("rendezvous", "same versions", "one working directory", "collectives"):
        assert checks[name]["status"] == "pass", checks[name]
    assert checks["same variables"]["status"] == "fail"
    assert "NCCL_ALGO: not set on rank 0, Ring on rank 1" in checks["same variables"]["evidence"]


@pytest.mark.slow
def test_ranks_of_mpirun_that_are_alike_pass(tmp_path):
    """As those of other launchers."""
    done, checks = mpirun(tmp_path, "-n", "2", *DOCTOR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert checks["same variables"]["status"] == "pass"
