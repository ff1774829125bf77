"""A loop of one's own under plain `srun`: `Checkpointer.should_stop` alone, without a trainer or a supervisor."""

import runpy
import sys
from pathlib import Path

from rankwise.errors import Interrupted

SCRIPT = Path(__file__).parents[1] / "checkpoint" / "stop_own_loop.py"
SRUN = ("srun", "--nodes=2", "--ntasks=2", "--cpus-per-task=1", "--mem=500M", "--job-name=own")


def test_srun_alone_saves_and_goes_on(cluster):
    """One rank is signalled, then all by scancel: both save one step, and go on with an undisturbed run's bits."""
    begin, loop = 0, runpy.run_path(str(SCRIPT), run_name="read")
    for name, rank in (("SIGUSR1", 1), ("SIGTERM", -1)):
        step = cluster.start(*SRUN, sys.executable, SCRIPT, cluster.folder, rank, name)
        if rank < 0:
            begun = [cluster.folder / f"{name}-{rank}.begun" for rank in (0, 1)]
            cluster.until(lambda begun=begun, step=step: step.poll() is not None or all(map(Path.exists, begun)))
            job = cluster.run("squeue", "--name=own", "--states=RUNNING", "--noheader", "--format=%i").stdout.strip()
            cluster.run("scancel", "--signal=TERM", f"{job}.0")
        out, err = step.communicate(timeout=240)
        assert step.returncode == Interrupted.EXIT_CODE, out + err
        begin, states = loop["check_stop"](cluster.folder, name, begin)
    loop["check_states"](states, begin)
