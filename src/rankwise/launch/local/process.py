"""One rank's process as the supervisor sees it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rankwise.errors import Interrupted
from rankwise.launch.local.pipes import RankPipes
from rankwise.launch.local.sessions import end_session
from rankwise.launch.target import Target

if TYPE_CHECKING:
    from rankwise.launch.failures.report import Report
    from rankwise.launch.local.forks.client import ForkServer


@dataclass(kw_only=True, slots=True)
class RankEnd:
    """How one rank of an attempt ended.

    Attributes:
        rank: global rank.
        status: exit status as `subprocess` gives it (negative: signal); None while it runs.
        ended_s: when the supervisor noticed its end, monotonic clock.
        report: its report about its own failure.
        finished_s: when its program ended, as it reported; None if it did not report that.
        sent: the last signal with which the supervisor asked it to end; None if it did not.
        sent_s: when the supervisor began to ask the ranks.
        crash: Python stacks left by a crash inside C, "" if none.
        evidence: evidence that the kernel's OOM killer killed it, "" if there is none.
    """

    rank: int
    status: int | None = None
    ended_s: float = math.inf
    report: Report | None = None
    finished_s: float | None = None
    sent: int | None = None
    sent_s: float = math.inf
    crash: str = ""
    evidence: str = ""

    @property
    def left_s(self) -> float | None:
        """Return when it ended successfully without being asked to; None if it did not."""
        by_itself = self.ended_s if self.status == 0 and self.sent is None else None
        return by_itself if self.finished_s is None else self.finished_s

    @property
    def interrupted(self) -> bool:
        """Whether it saved and ended because it was asked to, together with all other ranks."""
        return self.status == Interrupted.EXIT_CODE

    @property
    def failed_s(self) -> float:
        """Return when the failure happened, as precisely as known."""
        return self.report.time_s if self.report is not None else self.ended_s

    @property
    def failed(self) -> bool:
        """Whether it failed on its own, before the supervisor asked it to end."""
        if self.report is None and self.status in (None, 0, Interrupted.EXIT_CODE):
            return False
        return self.failed_s < self.sent_s

    @property
    def suspicion(self) -> int:
        """Return 0 for a cause, 1 for an abort inside C, which a lost peer can also cause, 2 for the loss of a peer."""
        if self.report is not None:
            return 2 if self.report.is_collateral else 0
        return 1 if self.status == -signal.SIGABRT else 0


@dataclass(kw_only=True, slots=True)
class RankProcess(RankEnd):
    """A rank's process, and how it ended.

    Attributes:
        pid: its process id, which is also the id of its session and group; a child of this process.
        pipes: its descriptors; closed by the attempt.
    """

    pid: int
    pipes: RankPipes
    _report_bytes: bytearray = field(default_factory=bytearray)

    def reap(self) -> bool:
        """If the process has ended, store its status and kill what it left running; return True if it just ended."""
        if self.status is not None:
            return False
        if hasattr(os, "waitid"):
            # check without reaping: until the process is reaped, the kernel cannot reuse its group id
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            end_session(self.pid)
        self.wait(os.WNOHANG)
        if self.status is None:
            return False
        if not hasattr(os, "waitid"):
            end_session(self.pid)
        self.ended_s = time.monotonic()
        return True

    def wait(self, options: int = 0) -> None:
        """Wait until the process ends, unless the options of `os.waitpid` say otherwise, and store its status."""
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)

    def send(self, number: int) -> None:
        """Send a signal to the rank itself, not to what it started: a loader worker must outlive its last batch."""
        if self.status is None:
            os.kill(self.pid, number)

    def ask_to_end(self, number: int, stop_s: float) -> None:
        """Send a signal, and note that the supervisor asked for the end.

        Args:
            number: the signal.
            stop_s: when the supervisor began to ask the ranks: those that lose a peer from then on have not failed.
        """
        if self.status is None:
            self.sent, self.sent_s = number, stop_s
            if number == signal.SIGKILL:
                end_session(self.pid)
            else:
                self.send(number)
                self.send(signal.SIGCONT)  # a stopped process could not react

    def read_report(self) -> bool:
        """Read the rank's report; return False once the pipe has ended."""
        try:
            data = os.read(self.pipes.report_fd, 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        from rankwise.launch.failures.report import FINISHED, Report

        self._report_bytes += data
        if self.report is None and self.finished_s is None and b"\n" in data:  # a message may have many megabytes
            line = bytes(self._report_bytes).partition(b"\n")[0]
            if line.startswith(FINISHED):
                self.finished_s = float(line.removeprefix(FINISHED))
            else:
                self.report = Report.from_json(line)
        return True


def start_rank(
    target: Target, rank: int, env: Mapping[str, str], pipes: RankPipes, server: ForkServer | None = None
) -> RankProcess:
    """Start a rank in a session of its own, with a fresh interpreter unless it is forked.

    A fork server forks it; without one it gets a fresh interpreter. The pipes are closed if it cannot be started.
    """
    # The rank inherits the mask: Ctrl-C during its imports stays pending until `child.main` can end quietly.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if server is not None:
            pid = server.fork(env, pipes)
        else:
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  (as multiprocessing does)
            command = [sys.executable, *flags, "-P", "-m", "rankwise.launch.child", str(os.getpid()), str(pipes.report)]
            process = subprocess.Popen(  # noqa: S603
                [*command, target.kind, target.name, *target.args],
                env=env,
                stdin=pipes.stdin,
                stdout=pipes.out,
                stderr=pipes.err,
                pass_fds=(pipes.report,),
                start_new_session=True,
            )
            pid, process.returncode = process.pid, 0  # `RankProcess` waits for it, as for forked ranks
    except BaseException:
        pipes.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        pipes.close_theirs()
    return RankProcess(rank=rank, pid=pid, pipes=pipes)
