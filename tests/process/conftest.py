"""What launchers set."""

import pytest


@pytest.fixture(scope="session")
def slurm_step():
    """Variables of the last process of a job step on three nodes."""
    return {
        "SLURM_JOB_ID": "7001",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "6",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "2",
        "SLURM_STEP_NUM_NODES": "3",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
        "SLURM_STEP_NODELIST": "gpu[07-09]",
    }
