"""One srun with a supervisor on each node: its shared folder, signals and messages, and the root cause of a failure."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankwise._files import write_whole
from rankwise.errors import Interrupted, LaunchError
from rankwise.launch.functions.callee import value_path
from rankwise.launch.local.console import Console
from rankwise.launch.local.loop import ENDING, Loop
from rankwise.launch.slurm.allocation import Allocation
from rankwise.launch.slurm.queue import end_time, slurm_command
from rankwise.launch.slurm.start import Record, Rendezvous, Start, num_ready, state_folder

# variables that sbatch or salloc set for tasks, and that srun would read as options of this step
_STALE = re.compile(
    r"(SLURM|SRUN)_(NTASKS.*|NPROCS|TASKS_PER_NODE|CPUS_PER_TASK|GPUS_PER_TASK|DISTRIBUTION|CPU_BIND.*|MEM_BIND.*)"
)
_LATE_S = 5.0  # how long a record may take to appear here
_CONSEQUENCE = 2  # Record.suspicion: another failure came before


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a launch on the nodes of an allocation ended.

    Attributes:
        record: record of the node with the root cause; None without a failure.
        interrupted: the signal that stopped it from outside, None if none did.
        again: the ranks saved and ended because they were asked to.
        lost: supervisors that had started ended without a record: probably a lost node.
        requeued: the job was requeued.
        step: the highest step that a rank reported, None if none did.
    """

    record: Record | None = None
    interrupted: int | None = None
    again: bool = False
    lost: bool = False
    requeued: bool = False
    step: int | None = None

    @property
    def exitcode(self) -> int:
        """The exit code of the command."""
        if self.again:
            return Interrupted.EXIT_CODE
        if self.record is not None:
            return self.record.exitcode
        return 128 + self.interrupted if self.interrupted is not None else 0


class Step:
    """One srun with a supervisor on each node.

    The ranks are asked to save `warn_s` seconds before the job's time limit; None leaves that to Slurm.
    """

    def __init__(
        self,
        start: Start,
        allocation: Allocation,
        loop: Loop,
        console: Console,
        *,
        container: str | None = None,
        warn_s: float | None = None,
    ) -> None:
        self._start, self._allocation, self._loop, self._console = start, allocation, loop, console
        self._container, self._warn_s = container, warn_s or 0.0
        self._interrupted: int | None = None
        self._held: list[int] = []  # signals to send once all supervisors handle signals
        # when to warn, in seconds since the epoch; not left to Slurm, which may signal a minute early
        self._due_s = math.inf if warn_s is None else end_time(allocation.job_id) - warn_s

    def run(self, call: bytes | None, values: Path | None) -> Ending:
        """Start srun and wait until it ends."""
        with _own_folder(self._allocation) as folder:
            self._folder = folder
            write_whole(folder / "start", pickle.dumps(self._start), durable=False)
            if call is not None:
                write_whole(folder / "call", call, durable=False)
            self._srun = subprocess.Popen(  # noqa: S603
                self._command(),
                env={name: value for name, value in os.environ.items() if not _STALE.fullmatch(name)},
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert self._srun.stderr is not None
            errors = SrunErrors(self._srun.stderr, self._loop, self._console)
            try:
                while self._srun.poll() is None:
                    self._loop.step(1.0)
                    self._handle_signals()
            finally:
                self._srun.kill()
                code = self._srun.wait()
                errors.close()
            ending = self._classify_end(code, errors)
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
            # give the single task of a node all cores of the job, even beside an interactive step
            "--cpu-bind=none",
            "--overlap",
            "--quiet",
            "--job-name=rankwise",
            *([] if self._container is None else [f"--container-image={self._container}"]),
            sys.executable,
            "-P",
            "-m",
            "rankwise.launch.slurm.node",
            str(self._folder),
        ]

    def _handle_signals(self) -> None:
        if time.time() >= self._due_s:
            self._due_s = end_time(self._allocation.job_id) - self._warn_s  # the time limit may have been extended
            if time.time() >= self._due_s:
                self._due_s = math.inf
                self._console.log(f"the time limit is {self._warn_s:g} s away: asking the ranks to save and end")
                self._held.append(signal.SIGUSR1)
        while self._loop.signals:
            number = self._loop.signals.popleft()
            if number in {signal.SIGUSR1, signal.SIGUSR2}:
                self._held.append(number)
            elif number in ENDING:
                # a second signal kills them at once, as on one machine
                self._signal(number if self._interrupted is None else signal.SIGKILL)
                self._interrupted = number
        # a supervisor without its handlers would be killed by these signals
        if self._held and num_ready(self._folder) == self._allocation.num_nodes:
            for number in self._held:
                self._signal(number)
            self._held.clear()

    def _signal(self, number: int) -> None:
        """Send a signal to the supervisors with scancel: srun forwards only some signals; others end the step."""
        path = self._folder / "rendezvous.json"
        step_id = Rendezvous.read(path).step_id if path.exists() else ""
        if step_id:
            step = f"{self._allocation.job_id}.{step_id}"
            slurm_command("scancel", f"--signal={signal.Signals(number).name}", step)
        else:
            self._srun.send_signal(signal.SIGTERM if number != signal.SIGUSR1 else number)

    def _classify_end(self, code: int, errors: SrunErrors) -> Ending:
        """Wait until all nodes have written a record, or one record has the cause; return the ending with the cause."""
        deadline = time.monotonic() + _LATE_S
        while len(records := Record.read_all(self._folder)) < self._allocation.num_nodes:
            if time.monotonic() > deadline or any(r.text and r.suspicion < _CONSEQUENCE for r in records):
                break
            time.sleep(0.05)
        steps = [record.step for record in records if record.step is not None]
        step = max(steps, default=None)
        failed = [record for record in records if record.text]
        silent = sorted(set(range(self._allocation.num_nodes)) - {record.node for record in records})
        asked = next((record.interrupted for record in records if record.interrupted is not None), self._interrupted)
        causes = [record for record in failed if record.suspicion < _CONSEQUENCE]
        if silent and not causes and self._interrupted is None:
            errors.show_held()  # the only report of an srun that could not start a supervisor
            return Ending(record=self._lost(silent, code, failed), lost=num_ready(self._folder) > 0, step=step)
        if failed:
            cause = min(failed, key=lambda record: (record.suspicion, record.time_s))
            return Ending(record=cause, interrupted=self._interrupted, step=step)
        return Ending(interrupted=asked, again=any(record.again for record in records), step=step)

    def _lost(self, silent: Sequence[int], code: int, failed: Sequence[Record]) -> Record:
        names = self._allocation.name_nodes(silent)
        text = (
            f"the supervisor of {names} has ended without a report (srun: {code}): it was killed, its node was lost, "
            "or it could not start; see the output above"
        )
        if failed:
            text += "\n" + "\n".join(f"then: {record.text.partition(chr(10))[0]}" for record in failed[:8])
        return Record(node=silent[0], text=text, exitcode=code or 1, time_s=time.time())


@contextlib.contextmanager
def _own_folder(allocation: Allocation) -> Iterator[Path]:
    """Create a folder that the nodes share and only this user can access; remove it at the end."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"start-{allocation.job_id}-", dir=state_folder()))
    except OSError as error:
        raise LaunchError(
            f"the start folder of job {allocation.job_id} cannot be created: {error}; set XDG_STATE_HOME to a "
            "folder that the nodes share"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_SPEAKERS = (b"srun: ", b"slurmstepd")
# how tasks ended, which the supervisors report in more detail, and how Slurm reacts
_REPEATS = re.compile(
    rb"srun: error: [^:]+: tasks? [\d,-]+: |srun: .*Terminating StepId=|srun: Job step aborted: |srun: got SIG|"
    rb"srun: forcing job termination|slurmstepd[^:]*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT "
)
_MOST_HELD = 200


class SrunErrors:
    """Copies the stderr of srun, which includes that of the ranks, to the console as it arrives."""

    def __init__(self, stream: IO[bytes], loop: Loop, console: Console) -> None:
        self._stream, self._loop, self._console = stream, loop, console
        self._start = b""  # the start of a line that may be srun's
        self._in_line = False
        self._held: list[bytes] = []
        os.set_blocking(stream.fileno(), False)
        loop.watch(stream.fileno(), self.copy)

    def copy(self) -> bool:
        """Copy the available data; return whether there was any."""
        try:
            data = os.read(self._stream.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove(self._stream.fileno())
        self._feed(data)
        return bool(data)

    def _feed(self, data: bytes) -> None:
        """Forward all lines except those of srun that repeat the supervisors' messages."""
        shown = []
        for piece in (self._start + data).splitlines(keepends=True) if data else [self._start]:
            begins, self._in_line = not self._in_line, not piece.endswith((b"\n", b"\r"))
            self._start = b""
            may_be_sruns = any(piece.startswith(speaker) or speaker.startswith(piece) for speaker in _SPEAKERS)
            if begins and self._in_line and data and may_be_sruns:
                self._start, self._in_line = piece, False
            elif begins and _REPEATS.match(piece):
                self._held = [*self._held[1 - _MOST_HELD :], piece]
            else:
                shown.append(piece)
        self._console.raw("err", b"".join(shown))

    def close(self) -> None:
        """Copy the rest after srun has ended."""
        while self.copy():  # another process may still hold the write end: do not wait for the end of the pipe
            pass
        self._feed(b"")
        self._loop.remove(self._stream.fileno())
        self._stream.close()

    def show_held(self) -> None:
        """Show the lines held back: no supervisor has reported the failure."""
        for line in self._held:
            self._console.line("err", line.rstrip(b"\r\n"))
        self._held.clear()
