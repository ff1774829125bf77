"""What srun says beside the ranks' own output: no Slurm is needed for it."""

import os

import pytest

from rankwise.launch.local.console import Console
from rankwise.launch.local.loop import Loop
from rankwise.launch.slurm.step import SrunErrors

SAID = b"""\
a rank says srun: error: node1: task 0: Exited with exit code 1
srun: error: node1: task 0: Exited with exit code 1
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd-node1: error: *** STEP 2.0 ON node1 CANCELLED AT 2026-11-23T03:44:13 ***
srun: error: Unable to create step for job 5: Required node not available (down, drained or reserved)
 50%\r100%
srun: Terminating StepId=2.0
sru
the end without a newline"""
SHOWN = b"""\
a rank says srun: error: node1: task 0: Exited with exit code 1
srun: error: Unable to create step for job 5: Required node not available (down, drained or reserved)
 50%\r100%
sru
the end without a newline"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_repeats_is_held_back(size, capfd):
    """However the bytes come; a progress bar and an unfinished line pass; held lines can still be shown."""
    console = Console()
    read_end, write_end = os.pipe()
    with Loop() as loop:
        errors = SrunErrors(os.fdopen(read_end, "rb"), loop, console)
        for i in range(0, len(SAID), size):
            os.write(write_end, SAID[i : i + size])
            errors.copy()
        os.close(write_end)
        errors.close()
    console.flush()
    assert capfd.readouterr().err.encode() == SHOWN
    errors.show_held()
    console.flush()
    assert capfd.readouterr().err.count("\n") == 5
