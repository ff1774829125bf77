"""The thread of a watched rank. While the job makes progress, it only checks its own vitals, without communication.

After a standstill of the given length, one rank of each machine (the lowest whose threads run) collects the stacks of
the machine's ranks; a signal gets them even from a rank that holds the interpreter lock. The machine of rank 0 asks the
others over the store, finds the culprit from all answers, and reports once.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from pathlib import Path

from rankwise import vitals
from rankwise.diagnose.watch.evidence import (
    JOB,
    Entry,
    Evidence,
    Registry,
    collect,
    host_key,
    idle_s,
    read_vitals,
    report,
    save,
)
from rankwise.errors import ConfigError
from rankwise.launch.failures.observation import is_frozen

DEFAULT_STALL_S = 180.0
_ANSWER_S = 20.0  # time limit for another machine to answer
_agent: Agent | None = None  # started by the main thread only


def watch(stall_s: float = DEFAULT_STALL_S, *, folder: str | os.PathLike[str] | None = None) -> None:
    """Report which rank blocks the others after no rank of the job has begun a collective for so long; the job goes on.

    Call it on every rank, from the main thread, once the process group exists. Under `rankwise run` it only records the
    collectives: there the supervisor watches (``--stall``).

    Args:
        stall_s: seconds, > 0; longer than the longest pause between two collectives of a healthy job.
        folder: folder for the reports; default: RANKWISE_WATCH_DIR, else ``logs/`` of RANKWISE_RUN_DIR, where
            `rankwise report` finds them, else ``rankwise-stalls/`` in the working directory.

    Raises:
        ConfigError: `stall_s` is invalid, there is no process group, or this is not the main thread.
    """
    global _agent  # noqa: PLW0603  (one process is one rank)
    if not (isinstance(stall_s, int | float) and stall_s > 0 and math.isfinite(stall_s)):
        raise ConfigError(f"watch(stall_s=) must be a number of seconds above 0, got {stall_s!r}")
    front = sys.modules.get("torch.distributed")
    if front is None or not front.is_available() or not front.is_initialized():
        raise ConfigError("watch() needs a process group: call it after init_process_group() or rankwise.bind()")
    vitals.record_calls()
    if "RANKWISE_VITALS" in os.environ:
        return
    if _agent is not None:  # started by the variable: the script's arguments override it
        _agent.stall_s = float(stall_s)
        _agent.folder = _agent.folder if folder is None else Path(folder).absolute()
        return
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("call watch() from the main thread: the signal for stacks can only be registered there")
    run_dir = os.environ.get("RANKWISE_RUN_DIR")
    named = folder or os.environ.get("RANKWISE_WATCH_DIR") or (Path(run_dir) / "logs" if run_dir else "rankwise-stalls")
    where = Path(named).absolute()  # the script may change the working directory
    store = front.distributed_c10d._get_default_store()  # noqa: SLF001  (the public name would make another store)
    _agent = Agent(Registry(store), front.get_rank(), front.get_world_size(), float(stall_s), where)
    _agent.start()
    atexit.register(unwatch)


def unwatch() -> None:
    """Stop the watch; do nothing if there is none."""
    global _agent
    agent, _agent = _agent, None
    if agent is not None:
        agent.stop()


def watch_if_asked() -> None:
    """Start if RANKWISE_WATCH is set, or under `rankwise run`; called after a process group was created."""
    asked = os.environ.get("RANKWISE_WATCH", "")
    try:
        stall_s = float(asked or DEFAULT_STALL_S)
        if stall_s != 0 and _agent is None and threading.current_thread() is threading.main_thread():
            watch(stall_s)
    except ValueError as error:
        print(f"RANKWISE_WATCH={asked!r} is ignored, it must be a number of seconds: {error}", file=sys.stderr)  # noqa: T201


class Agent(threading.Thread):
    """Watches one rank; if that stands still, also its machine and job.

    Args:
        registry: the registry of the job's ranks.
        rank: this process's rank.
        world_size: number of ranks of the job.
        stall_s: seconds without a collective that count as a standstill.
        folder: folder for the reports.

    Attributes:
        stall_s: as above; may be changed while it runs.
        folder: as above; may be changed while it runs.
    """

    def __init__(self, registry: Registry, rank: int, world_size: int, stall_s: float, folder: Path) -> None:
        # a daemon thread: at the program's end it may be in a store call that cannot be interrupted
        super().__init__(name="rankwise-watch", daemon=True)
        self._registry, self._rank, self._world_size = registry, rank, world_size
        self.stall_s, self.folder = stall_s, folder  # the main thread may change these; each is read atomically
        self._vitals = vitals.make_folder()
        vitals.start(self._vitals, rank)  # not in `run`: only the main thread can register the signal for stacks
        self._ended = threading.Event()
        self._told_at_s = 0.0  # length of the standstill when it was reported; 0.0: not reported
        self._answered = ""
        self._host = host_key()

    def stop(self) -> None:
        """Stop the thread and remove its files; a store call of the thread may last a moment longer."""
        # First, so that the thread does not report a folder or store that is being removed. Do not join it: a store
        # whose server is gone returns only after its timeout.
        self._ended.set()
        vitals.stop()
        vitals.remove_folder(self._vitals)

    def run(self) -> None:
        """Check periodically, until `stop`."""
        entry = Entry(
            rank=self._rank, pid=os.getpid(), host=self._host, name=os.uname().nodename, folder=str(self._vitals)
        )
        with contextlib.suppress(RuntimeError, OSError):  # the store ended with the job
            (self._vitals / JOB).write_text(self._registry.enter(entry))
        while not self._ended.wait(min(2.0, self.stall_s / 8)):
            try:
                self._check(entry)
            except (RuntimeError, OSError, ValueError) as error:  # the store is gone, or a file was removed meanwhile
                if not self._ended.is_set() and self._is_idle(entry) and not self._told_at_s:
                    self._report_own(entry, error)

    def _is_idle(self, entry: Entry) -> bool:
        own = read_vitals([entry])
        return bool(own) and idle_s(own[0]) >= self.stall_s

    def _check(self, entry: Entry) -> None:
        if not self._is_idle(entry):
            if self._told_at_s:
                self._print(f"rankwise: rank {self._rank} is advancing again")
            self._told_at_s = 0.0
            return
        entries = self._registry.entries(self._world_size)
        here = [other for other in entries if other.host == self._host]
        running = [vital for vital in read_vitals(here) if not is_frozen(vital)]
        if not running or min(vital.rank for vital in running) != self._rank:
            return
        quiet_s = min(map(idle_s, read_vitals(here)))
        if quiet_s < max(self.stall_s, 2 * self._told_at_s):
            self._answer(here)
            return
        if any(other.rank == 0 and other.host == self._host for other in entries):
            self._ask_and_tell(entries, here)
        else:
            self._answer(here)

    def _answer(self, here: list[Entry]) -> None:
        """Send this machine's evidence if the machine of rank 0 has asked."""
        question = self._registry.read("question") or ""
        if question and question != self._answered:
            self._answered = question
            self._registry.write(f"answer/{question}/{self._host}", collect(here).to_json())

    def _ask_and_tell(self, entries: list[Entry], here: list[Entry]) -> None:
        question = f"{os.getpid()}-{time.monotonic_ns()}"
        hosts = {entry.host for entry in entries} - {self._host}
        if hosts:
            self._registry.write("question", question)
        evidence = collect(here)
        deadline = time.monotonic() + _ANSWER_S
        while hosts and time.monotonic() < deadline and not self._ended.wait(0.2):
            for host in sorted(hosts):
                answer = self._registry.read(f"answer/{question}/{host}")
                if answer is not None:
                    evidence = evidence.with_others(Evidence.from_json(answer))
                    hosts.discard(host)
        if evidence.idle_s < self.stall_s:  # another machine makes progress
            return
        known = {entry.rank for entry in entries}
        missing = sorted(set(range(self._world_size)) - known)
        missing += sorted(entry.rank for entry in entries if entry.host in hosts)
        self._report(evidence, missing, {entry.name for entry in entries if entry.host in hosts})

    def _report(self, evidence: Evidence, missing: list[int], lost: set[str]) -> None:
        headline = f"rankwise: no rank has advanced for {evidence.idle_s:.0f} s, the job continues"
        if lost:
            headline += f"; no answer from {', '.join(sorted(lost))}"
        verdict, text = report(evidence, headline, missing)
        try:
            text += f"\nsaved as {save(self.folder, evidence, verdict, text)}"
        except OSError as error:
            text += f"\nnot saved: {error}; set RANKWISE_WATCH_DIR to a writable folder"
        self._told_at_s = evidence.idle_s
        self._print(text)

    def _report_own(self, entry: Entry, error: Exception) -> None:
        """Report this rank's evidence alone: the job's store does not answer, because its process has ended."""
        evidence = collect([entry])
        self._told_at_s = evidence.idle_s
        headline = (
            f"rankwise: rank {self._rank} has not advanced for {evidence.idle_s:.0f} s, and the job's store does not "
            f"answer ({str(error).splitlines()[0][:120]}): the process that serves it (rank 0 or the launcher) has "
            "ended"
        )
        self._print(report(evidence, headline)[1])

    def _print(self, text: str) -> None:
        """Write to stderr in one call, without Python's buffers, which a stuck main thread may have locked."""
        with contextlib.suppress(OSError):
            os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))


def _reset_after_fork() -> None:
    """Drop the agent in a forked child, which is not the rank."""
    # The thread does not exist here. The copied store connection must not be used: two processes would mix messages.
    global _agent  # noqa: PLW0603
    _agent = None


os.register_at_fork(after_in_child=_reset_after_fork)
