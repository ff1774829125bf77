"""One attempt: start all ranks, watch them, and end all of them together."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise import vitals
from rankwise.errors import Interrupted, LaunchError
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console, SharedStream
from rankwise.launch.local.environment import Part, bound_to, rank_cores, rank_environment
from rankwise.launch.local.loop import CHECK_INTERVAL_S, ENDING, Loop
from rankwise.launch.local.pipes import open_pipes
from rankwise.launch.local.process import RankProcess, start_rank
from rankwise.launch.local.pump import Pump
from rankwise.launch.local.sessions import end_sessions

if TYPE_CHECKING:
    from rankwise.launch.failures.outcome import AttemptEnd
    from rankwise.launch.failures.verdict import Failure
    from rankwise.launch.local.failure_detector import FailureDetector, OtherNodes
    from rankwise.launch.local.forks.client import ForkServer
    from rankwise.launch.local.forks.process import ServerProcess

HELD_S = 0.05  # how soon to check again whether a slow console has room
DRAIN_S = 0.5  # how long to read output after the last rank has ended
SHUTDOWN_AFTER_FAILURE_S = 5.0
SHUTDOWN_FROM_OUTSIDE_S = 30.0
NO_VIEW: Mapping[str, Any] = {"quiet_s": None, "missing": [], "ranks": []}  # of ranks that do not run


class Attempt:
    """Starts the ranks once and watches them until the last one has ended.

    `other_nodes` is None on one machine. With `may_fork` one import of torch may serve all ranks; then `early`, which
    the caller closes, may become the fork server.
    """

    def __init__(
        self,
        job: Job,
        part: Part,
        *,
        number: int,
        run_id: str,
        loop: Loop,
        console: Console,
        logs: Path | None,
        other_nodes: OtherNodes | None = None,
        may_fork: bool = False,
        early: ServerProcess | None = None,
    ) -> None:
        self.interrupted: int | None = None
        self._furthest_step: int | None = None
        self.ranks: list[RankProcess] = []  # those that were started
        self._job, self._part, self._number, self._run_id = job, part, number, run_id
        self._loop, self._console, self._logs = loop, console, logs
        self._other_nodes, self._may_fork, self._early = other_nodes, may_fork, early
        self._open_pumps: set[Pump] = set()
        self._held: list[Pump] = []  # pumps that are paused because the console is behind
        self._streams: dict[str, SharedStream] = {}
        here = range(part.first_rank, part.first_rank + job.num_ranks)
        for name in ("out", "err"):
            shown = [rank for rank in here if job.show.shows(rank, name)]
            self._streams[name] = SharedStream(name, console, shown, merge=job.show.merge)
        self._detector: FailureDetector  # set once the ranks are started, before signals and messages are handled
        asked_s = job.shutdown_timeout_s
        self._shutdown_s = SHUTDOWN_AFTER_FAILURE_S if asked_s is None else asked_s
        outside_s = SHUTDOWN_FROM_OUTSIDE_S if asked_s is None else asked_s
        self._grace_s = outside_s if job.grace_s is None else job.grace_s
        self._stop_s: float | None = None  # when the ranks were first asked to end
        self._kill_s: float | None = None  # when they will be killed
        self._all_ended_s: float | None = None
        self._begun_s = time.monotonic()

    def run(self) -> AttemptEnd:
        """Run the ranks until the last one has ended."""
        self._folder = vitals.make_folder(sweep=False)  # a sweep would import shutil
        try:
            self._start()
            detector = self._detector = self._make_detector()
            self._handle_signals()
            while not self._is_over():
                self._loop.step(self._show_due())
                self._resume_pumps()
                for process in self.ranks:
                    if process.reap():
                        process.read_report()
                        detector.examine(process)
                self._handle_signals()
                self._act()
            while self._stop_s is None and detector.awaits_other_nodes(time.monotonic()):
                self._loop.step(CHECK_INTERVAL_S)  # all ended here; a rank on another node may be the cause
                self._handle_signals()
            failure = detector.decide()
        finally:
            self._clean_up()
        return self.end(failure)

    def end(self, failure: Failure | None) -> AttemptEnd:
        """Return how the attempt ended; with this root cause of a failure, None without one."""
        from rankwise.launch.failures.outcome import AttemptEnd

        return AttemptEnd(
            failure=failure,
            ranks=self.ranks,
            world_size=self._part.world_size,
            number=self._number,
            interrupted=self.interrupted,
            step=self._furthest_step,
            logs=self._logs,
        )

    def _make_detector(self) -> FailureDetector:
        """Import the other modules while the ranks start; later, an upgrade may have changed or removed the files."""
        import shutil  # noqa: F401  (for the folders, at the end)

        import rankwise.launch.failures.outcome  # for the last word
        import rankwise.launch.failures.report  # noqa: F401  (for what the ranks report)
        from rankwise.launch.local.failure_detector import FailureDetector

        vitals.sweep_folders()
        return FailureDetector(
            self._job, self._folder, self.ranks, self._console, begun_s=self._begun_s, other_nodes=self._other_nodes
        )

    def _start(self) -> None:
        """Start the ranks; none if a signal that ends the launch arrives before."""
        job, part, all_cores = self._job, self._part, rank_cores(self._job)
        environments = [
            rank_environment(
                job, part, rank=rank, cores=cores, attempt=self._number, run_id=self._run_id, vitals=self._folder
            )
            for rank, cores in enumerate(all_cores, part.first_rank)
        ]
        server: ForkServer | None = None
        if self._may_fork and len(all_cores) > 1:
            from rankwise.launch.local.forks.client import open_server

            server = open_server(
                job, all_cores, environments, self._loop, meanwhile=self._make_detector, early=self._early
            )
            if server is None and ENDING.intersection(self._loop.signals):
                return
        try:
            for rank, (cores, env) in enumerate(zip(all_cores, environments, strict=True), part.first_rank):
                try:
                    with bound_to(cores):
                        pipes = open_pipes(
                            rank, part.world_size, job.show, self._console, logs=self._logs, streams=self._streams
                        )
                        process = start_rank(job.target, rank, env, pipes, server)
                except OSError as error:
                    raise LaunchError(f"rank {rank} of {part.world_size} cannot be started: {error}") from error
                self.ranks.append(process)
                self._loop.watch(pipes.report_fd, partial(self._read_report, process))
                for pump in pipes.pumps:
                    self._open_pumps.add(pump)
                    self._loop.watch(pump.fd, partial(self._pump, pump))
            if server is not None:
                server.release()
        finally:
            if server is not None:
                server.close()

    def _alive(self) -> list[RankProcess]:
        return [process for process in self.ranks if process.status is None]

    def _is_over(self) -> bool:
        if self._alive():
            return False
        if self._all_ended_s is None:
            end_sessions({process.pid for process in self.ranks})
        if self._all_ended_s is None or self._held:
            self._all_ended_s = time.monotonic()  # output from before the end may still be in the pipes
        return not self._open_pumps or time.monotonic() > self._all_ended_s + DRAIN_S

    def _show_due(self) -> float | None:
        """Show output that waited long enough; return the seconds until the next action without an event, if any."""
        waits = [HELD_S if self._held else None, *(pump.show_unfinished() for pump in self._open_pumps)]
        waits += [stream.show_due() for stream in self._streams.values()]
        now = time.monotonic()
        if self._all_ended_s is not None:
            due_s: float | None = self._all_ended_s + DRAIN_S
        elif self._stop_s is not None:
            due_s = self._kill_s
        else:
            due_s = self._detector.due_s(now)
        waits.append(None if due_s is None else max(0.0, due_s - now) + 0.001)
        return min((wait for wait in waits if wait is not None), default=None)

    def _read_report(self, process: RankProcess) -> None:
        if not process.read_report():
            self._loop.remove(process.pipes.report_fd)

    def _pump(self, pump: Pump) -> None:
        if pump.shown and self._console.is_full(pump.stream.name):
            self._loop.remove(pump.fd)
            self._held.append(pump)
        elif not pump.pump():
            self._loop.remove(pump.fd)
            self._open_pumps.discard(pump)

    def _resume_pumps(self) -> None:
        """Resume paused pumps if the console has room again, or has lost its reader."""
        held, self._held = self._held, []
        for pump in held:
            if self._console.is_full(pump.stream.name):
                self._held.append(pump)
            else:
                self._loop.watch(pump.fd, partial(self._pump, pump))

    def _handle_signals(self) -> None:
        while self._loop.signals:
            number = self._loop.signals.popleft()
            if number in {signal.SIGUSR1, signal.SIGUSR2}:
                for process in self._alive():
                    process.send(number)
            elif number == signal.SIGWINCH:
                for process in self.ranks:
                    process.pipes.resize()
                for process in self.ranks[:1]:
                    process.send(number)
            elif number == signal.SIGTSTP:
                self._suspend()
            elif number != signal.SIGCHLD:
                self._interrupt(number)

    def _suspend(self) -> None:
        """Handle Ctrl-Z: stop and continue the ranks together with this process; they have sessions of their own."""
        for process in self._alive():
            process.send(signal.SIGSTOP)
        signal.raise_signal(signal.SIGSTOP)
        for process in self._alive():
            process.send(signal.SIGCONT)
        self._detector.watch.reset()

    def _interrupt(self, number: int) -> None:
        """End the ranks because of a signal from outside; a second signal kills them at once."""
        name, grace_s = signal.Signals(number).name, self._grace_s
        if self.interrupted is not None:
            if self._alive():
                self._console.log(f"{name}: killing the ranks at once")
            self._ask_to_end(signal.SIGKILL)
            return
        self.interrupted = number
        if self._other_nodes is not None:
            self._other_nodes.leaving(number)
        if self._alive():
            self._console.log(f"{name}: asking the ranks to end, {grace_s:g} s to save (again to kill them at once)")
        self._ask_to_end(number if number in {signal.SIGINT, signal.SIGTERM} else signal.SIGTERM, grace_s)

    def _stop_the_others(self) -> None:
        """End the ranks that a failure has left; they cannot save a common checkpoint any more."""
        if self._other_nodes is not None:
            self._other_nodes.failing()
        self.end_with_other_nodes(in_peace=False)

    def end_with_other_nodes(self, *, in_peace: bool) -> None:
        """End the ranks because other nodes end theirs; `in_peace`: all ranks may save a checkpoint first."""
        if not in_peace:
            vitals.mark_failed(self._folder)
            self._ask_to_end(signal.SIGTERM, self._shutdown_s)
        elif self._stop_s is None:
            self._ask_to_end(signal.SIGTERM, self._grace_s)

    def view(self, *, final: bool) -> Mapping[str, Any]:
        """Return the state of the running ranks, see `FailureDetector.view`; `final`: the answer ends the attempt."""
        if self._stop_s is not None:
            return NO_VIEW
        return self._detector.view(final=final)

    def note_standstill(self) -> None:
        """Note that a standstill of all nodes was reported."""
        self._detector.watch.is_told = True

    def blame(self, failure: Failure | None) -> None:
        """End the ranks because one of them blocks the ranks of all nodes; None: no culprit was found here."""
        if self._stop_s is None:
            self._detector.note_blamed(failure)
            if failure is not None:
                self._stop_the_others()

    def _ask_to_end(self, number: int, patience_s: float | None = None) -> None:
        """Send a signal to all ranks, and kill them when they have not ended in time."""
        now = time.monotonic()
        if self._stop_s is None:
            self._stop_s = now
        self._kill_s = None if patience_s is None else now + patience_s
        for process in self._alive():
            process.ask_to_end(number, self._stop_s)

    def _act(self) -> None:
        """Act on a failure, a hang, or the end of the time to shut down."""
        now = time.monotonic()
        if self._kill_s is not None and now >= self._kill_s:
            self._ask_to_end(signal.SIGKILL)
        if self._stop_s is not None or not self._alive():
            return
        if any(process.status == Interrupted.EXIT_CODE for process in self.ranks):
            # all ranks agreed to end, and saved: the others are exiting too
            self._stop_s, self._kill_s = now, now + self._grace_s
            return
        if self._detector.finds_failure(now):
            self._stop_the_others()

    def _clean_up(self) -> None:
        """Remove every process, descriptor and folder of the attempt."""
        self._ask_to_end(signal.SIGKILL)
        hidden: dict[int, int] = {}
        for process in self.ranks:
            if process.status is None:
                process.wait()
            self._loop.remove(process.pipes.report_fd)
            for pump in process.pipes.pumps:
                self._loop.remove(pump.fd)
                pump.drain()
                if process.report is not None and pump.stream.name == "err":
                    pump.note(process.report.traceback)
                if not pump.shown and pump.stream.name == "out" and pump.num_lines:
                    hidden[process.rank] = pump.num_lines
            process.pipes.close()
        for stream in self._streams.values():
            stream.flush()
        if hidden and self._logs is None:
            ranks, count = ", ".join(map(str, sorted(hidden))), sum(hidden.values())
            option = 'tee="all"' if self._job.target.kind == "call" else "--tee all"
            self._console.log(f"not shown: {count} lines on stdout of rank {ranks} ({option} shows them)")
        with contextlib.suppress(OSError):
            steps = [vital.step for vital in vitals.read(self._folder) if vital.step is not None]
            self._furthest_step = max(steps, default=None)
        vitals.remove_folder(self._folder)
