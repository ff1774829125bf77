"""The launcher inside an allocation: one supervisor per node through srun, their fate, and the requeue."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.errors import ConfigError, Interrupted, LaunchError
from rankwise.launch.bound import value_path
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.telling import next_logs, tell, with_time_left
from rankwise.launch.slurm.queue import slurm_command
from rankwise.launch.slurm.start import Record, Start, read_meeting, state_folder, write_whole

__all__ = ["Allocation", "Ending", "run_on_nodes"]

# the largest step ids stand for the batch script, interactive steps and the like
_SPECIAL_STEPS = 0xFFFF_FFF0
# what an sbatch or salloc with tasks has left in the environment, and what srun would read as wishes for our step
_STALE = re.compile(
    r"(SLURM|SRUN)_(NTASKS.*|NPROCS|TASKS_PER_NODE|CPUS_PER_TASK|GPUS_PER_TASK|DISTRIBUTION|CPU_BIND.*)"
)
_LATE_S = 5.0  # how long a record may take to be seen here


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The Slurm job that this process is in.

    Attributes:
        job_id: its number.
        num_nodes: how many nodes it has.
        nodes: their names, as Slurm writes them.
        restarts: how often it was requeued.
        is_batch: whether a batch script runs it; a terminal cannot be requeued.
    """

    job_id: str
    num_nodes: int
    nodes: str = ""
    restarts: int = 0
    is_batch: bool = False

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> Allocation | None:
        """Return the allocation whose launcher this process may be, None without one.

        None also without srun (in a container), and for a single task that srun has started, which is its one rank.

        Raises:
            ConfigError: srun has started several of us.
        """
        job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
        if not job_id or shutil.which("srun") is None:
            return None
        step = environ.get("SLURM_STEP_ID", "")
        if step.isdigit() and int(step) < _SPECIAL_STEPS and not environ.get("SLURM_PTY_PORT"):
            tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
            if tasks != "1":
                raise ConfigError(
                    f"srun has started rankwise run {tasks} times: leave srun out (rankwise run starts one supervisor "
                    "on each node itself), or start the ranks with `srun python` and rankwise.bind()"
                )
            return None
        return cls(
            job_id=job_id,
            num_nodes=int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1),
            nodes=environ.get("SLURM_JOB_NODELIST", ""),
            restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
            is_batch="SLURM_JOB_ID" in environ and environ.get("ENVIRONMENT") == "BATCH",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What became of a launch on the nodes of an allocation.

    Attributes:
        record: of the node with the root cause; None without a failure.
        interrupted: the signal that stopped it from outside, None if none did.
        again: the ranks have saved and ended as they were asked to.
    """

    record: Record | None = None
    interrupted: int | None = None
    again: bool = False

    @property
    def exitcode(self) -> int:
        """What the command exits with."""
        if self.again:
            return Interrupted.EXIT_CODE
        if self.record is not None:
            return self.record.exitcode
        return 128 + self.interrupted if self.interrupted is not None else 0


def run_on_nodes(
    job: Job,
    allocation: Allocation,
    *,
    requeue: bool = False,
    call: bytes | None = None,
    values: Path | None = None,
    srun_args: Sequence[str] = (),
) -> Ending:
    """Run a launch on all nodes of the allocation, `job.num_ranks` ranks on each; in the main thread.

    Args:
        job: the launch; its restarts are of all nodes together.
        allocation: where.
        requeue: put the Slurm job back into the queue when its ranks have saved because they were asked to.
        call: what the ranks call, for a target of kind "call".
        values: existing folder for the values by rank.
        srun_args: more words for srun.

    Raises:
        ConfigError: `min_ranks` is asked for.
        LaunchError: srun or the folder of the start cannot be used.
    """
    if job.min_ranks is not None:
        raise ConfigError("--min-ranks is for one machine: inside a Slurm allocation ask for fewer nodes instead")
    console, ending, attempt = Console(), Ending(), 0
    begun_s, most, run_id = (
        time.monotonic(),
        job.max_restarts,
        f"rankwise-slurm-{allocation.job_id}-{secrets.token_hex(4)}",
    )
    nodes = allocation.num_nodes
    console.say(
        f"Slurm job {allocation.job_id}: {nodes * job.num_ranks} rank(s), {job.num_ranks} on each of {nodes} "
        f"node(s) {allocation.nodes}" + (f", requeued {allocation.restarts} time(s)" if allocation.restarts else "")
    )
    if deaf := _deaf_shell(os.getppid()):
        console.say(deaf)
    with Loop() as loop:
        while True:
            logs = next_logs(job.logs, job.run_dir)
            start = Start(
                job=with_time_left(job, begun_s),
                num_nodes=nodes,
                attempt=attempt,
                run_id=run_id,
                logs=logs,
                secret=secrets.token_hex(16),
            )
            ending = _Step(start, allocation, loop, console, srun_args).run(call, values)
            if ending.record is not None:
                tell(console, ending.record.text)
            if ending.record is None or ending.interrupted is not None or attempt >= most:
                break
            attempt += 1
            console.say(f"starting all ranks again, restart {attempt} of {most}")
    if ending.again:
        refused = _again(allocation, console, requeue=requeue)
        if refused:
            ending = replace(
                ending, record=Record(node=0, host=os.uname().nodename, text=refused, exitcode=ending.exitcode)
            )
    console.flush()
    return ending


def _deaf_shell(parent: int) -> str:
    """Return what to say of a batch shell that would die of the warning it asks for, "" if it would not.

    `#SBATCH --signal=B:USR1@300` reaches the batch shell alone: one that neither catches the signal nor has been
    replaced by us (`exec`) ends, and the job with it.
    """
    try:
        words = Path(f"/proc/{parent}/cmdline").read_bytes().decode(errors="replace").split("\0")
        script = next((word for word in words if word.endswith("slurm_script")), "")
        found = re.search(r"^#SBATCH\b.*--signal[= ]B:(\w+)", Path(script).read_text(), re.MULTILINE)
        status = Path(f"/proc/{parent}/status").read_text()
    except OSError:
        return ""
    name = "" if found is None else found[1].upper()
    number = int(name) if name.isdigit() else getattr(signal, f"SIG{name.removeprefix('SIG')}", 0)
    masks = (int(mask, 16) for mask in re.findall(r"^Sig(?:Cgt|Ign):\s*(\w+)", status, re.MULTILINE))
    if not number or any(mask >> (number - 1) & 1 for mask in masks):
        return ""
    return (
        f"--signal=B:{name} reaches the batch shell alone, which will end of it, and this job with it: write "
        "`exec rankwise run ...` as its last line, or leave the B: out"
    )


def _again(allocation: Allocation, console: Console, *, requeue: bool) -> str:
    """Put the job back into the queue if that is wanted; return why Slurm refuses it, "" if it does not."""
    saved = "the ranks have saved and ended as they were asked to"
    if not requeue:
        console.say(f"{saved}: the same command goes on (--requeue lets Slurm start it again)")
        return ""
    console.say(f"{saved}: job {allocation.job_id} goes back into the queue")
    console.flush()
    done = slurm_command("scontrol", "requeue", allocation.job_id)
    if not done.returncode:
        return ""
    refused = f"job {allocation.job_id} cannot be requeued: {done.stderr.strip()}; submit it again"
    console.say(refused)
    return refused


class _Step:
    """One srun with a supervisor on each node."""

    def __init__(
        self, start: Start, allocation: Allocation, loop: Loop, console: Console, srun_args: Sequence[str]
    ) -> None:
        self._start, self._allocation, self._loop, self._console = start, allocation, loop, console
        self._srun_args = srun_args
        self._interrupted: int | None = None

    def run(self, call: bytes | None, values: Path | None) -> Ending:
        """Start it and stay with it to its end."""
        with _own_folder(self._allocation) as folder:
            self._folder = folder
            self._start.write(folder)
            if call is not None:
                write_whole(folder / "call", call)
            self._srun = subprocess.Popen(  # noqa: S603
                self._command(), env=_environment(), stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                while self._srun.poll() is None:
                    self._loop.step(1.0)
                    self._take_signals()
            finally:
                self._srun.kill()
                code = self._srun.wait()
            ending = self._judge(code)
            if values is not None and ending.record is None:
                for rank in range(self._start.num_nodes * self._start.job.num_ranks):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copyfile(value_path(folder, rank), value_path(values, rank))
        return ending

    def _command(self) -> list[str]:
        nodes = str(self._allocation.num_nodes)
        return [
            "srun",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            "--kill-on-bad-exit=1",
            # all cores of the job for the one task of a node, also beside the step of a terminal
            "--cpu-bind=none",
            "--overlap",
            "--quiet",
            "--job-name=rankwise",
            *self._srun_args,
            sys.executable,
            "-P",
            "-m",
            "rankwise.launch.slurm.node",
            str(self._folder),
        ]

    def _take_signals(self) -> None:
        while self._loop.signals:
            number = self._loop.signals.popleft()
            if number in {signal.SIGUSR1, signal.SIGUSR2}:
                self._signal(number)
            elif number in {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}:
                # the second one ends them at once, as on one machine
                self._signal(number if self._interrupted is None else signal.SIGKILL)
                self._interrupted = number

    def _signal(self, number: int) -> None:
        """Send a signal to the supervisors: srun itself passes on only some, and ends the step for others."""
        meeting = read_meeting(self._folder)
        if meeting is None or not meeting.step:
            self._srun.send_signal(signal.SIGTERM if number != signal.SIGUSR1 else number)
            return
        step = f"{self._allocation.job_id}.{meeting.step}"
        slurm_command("scancel", f"--signal={signal.Signals(number).name}", step)

    def _judge(self, code: int) -> Ending:
        """Find the root cause among the records of the nodes."""
        records = self._records()
        failed = [record for record in records if record.text]
        asked = next((record.interrupted for record in records if record.interrupted is not None), self._interrupted)
        if failed:
            cause = min(failed, key=lambda record: (record.suspicion, record.time_s))
            return Ending(record=cause, interrupted=self._interrupted)
        if any(record.again for record in records):
            return Ending(interrupted=asked, again=True)
        silent = sorted(set(range(self._allocation.num_nodes)) - {record.node for record in records})
        if silent and self._interrupted is None:
            text = (
                f"the supervisor of node(s) {', '.join(map(str, silent))} of {self._allocation.nodes} has ended "
                f"without a word (srun: {code}): killed, the node is lost, or it could not start; see the output above"
            )
            return Ending(record=Record(node=silent[0], host="", text=text, exitcode=code or 1))
        return Ending(interrupted=asked)

    def _records(self) -> list[Record]:
        deadline = time.monotonic() + _LATE_S
        while len(records := Record.read_all(self._folder)) < self._allocation.num_nodes:
            if time.monotonic() > deadline or any(record.text for record in records):
                break
            time.sleep(0.05)
        return records


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not _STALE.fullmatch(name)}


@contextlib.contextmanager
def _own_folder(allocation: Allocation) -> Iterator[Path]:
    """Make a folder that the nodes see and only this user can enter."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"start-{allocation.job_id}-", dir=state_folder()))
    except OSError as error:
        raise LaunchError(
            f"no folder for the start of job {allocation.job_id}: {error}; set XDG_STATE_HOME to a folder that the "
            "nodes share"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
