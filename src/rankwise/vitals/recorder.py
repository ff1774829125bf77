"""The rank's side: a mapped file, a heartbeat thread that also answers, and a signal if that thread cannot run."""

from __future__ import annotations

import faulthandler
import functools
import json
import math
import mmap
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rankwise.errors import LaunchError
from rankwise.vitals.collectives import last_calls, num_calls
from rankwise.vitals.layout import (
    ADVANCE_AT,
    ASK,
    FILE_BYTES,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_AT,
    MAGIC,
    NONE,
    PROGRESS,
    PROGRESS_AT,
    SEQUENCE,
    SEQUENCE_AT,
    WAITS_AT,
    cut_utf8,
)

HEARTBEAT_INTERVAL_S = 0.5
_JOIN_S = 5.0
_OFTEN_S = 0.005  # for shorter steps, the heartbeat writes the last one: noting a step costs a fifth of a write


class Recorder:
    """Maintains one rank's vitals file. Use `start`, `beat` and `stop`; this class is for tests and other launchers.

    Args:
        folder: existing folder in which `rank-<rank>` and `stacks-<rank>` are created.
        rank: global rank, >= 0.

    Attributes:
        written_s: when it last wrote progress.
        noted: a step for the next heartbeat to write: time, epoch, step; None if there is none.
        waits_s: start of the rank's wait for data, if later than its last step.

    Raises:
        LaunchError: the folder is not writable.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._lock = threading.RLock()  # for the page and its fields: the loop and the heartbeat thread both write
        self._folder, self._rank = folder, rank
        self._num_calls: int | None = None
        self._asked: dict[str, str] = {}
        self._sequence = self._beats = 0
        self._epoch = self._step = NONE
        self._phase = b""
        self.written_s = -math.inf
        self.noted: tuple[float, int, int] | None = None
        self._taken: tuple[float, int, int] | None = None  # the last noted step that was written or is outdated
        self.waits_s = self._waited_s = 0.0
        self._cut = functools.lru_cache(maxsize=32)(cut_utf8)  # a loop has few phases, and reports one at every step
        try:
            self._stacks: IO[bytes] = (folder / f"stacks-{rank}").open("wb", buffering=0)
            path = folder / f"rank-{rank}"
            path.touch()
            with path.open("r+b") as file:
                # never shorter in between, or a reader that has mapped it would get SIGBUS; this rank would get it
                # from a page for which a full file system has no room
                file.write(bytes(FILE_BYTES))
                file.flush()
                self._page = mmap.mmap(file.fileno(), FILE_BYTES)
        except OSError as error:
            raise LaunchError(
                f"rank {rank} cannot keep its vitals in {folder}: {error}; make the folder writable, or unset "
                "RANKWISE_VITALS to run without vitals"
            ) from error
        self._signum = _register_stacks(self._stacks)
        now = time.monotonic()
        host = cut_utf8(socket.gethostname())
        HEARTBEAT.pack_into(self._page, HEARTBEAT_AT, now)
        PROGRESS.pack_into(self._page, PROGRESS_AT, now, 0, NONE, NONE, b"")
        HEADER.pack_into(self._page, 0, MAGIC, os.getpid(), rank, self._signum, now, host)
        self._ended, self._is_over = threading.Event(), False  # the flag spares every beat a call of the event
        self._thread = threading.Thread(target=self._keep_beating, name="rankwise-vitals", daemon=True)
        self._thread.start()

    def _keep_beating(self) -> None:
        while not self._ended.wait(HEARTBEAT_INTERVAL_S):
            calls = num_calls()  # before taking the lock, which a step may need: torch may be slow
            with self._lock:
                if not self._ended.is_set():
                    now = time.monotonic()
                    self.write_noted()
                    HEARTBEAT.pack_into(self._page, HEARTBEAT_AT, now)
                    if calls != self._num_calls:
                        HEARTBEAT.pack_into(self._page, ADVANCE_AT, now)
            self._num_calls = calls
            self._answer("stacks", self._dump_stacks)  # first, because it does not need torch
            self._answer("calls", last_calls)

    def _answer(self, kind: str, answer: Callable[[], Any]) -> None:
        """Write the answer if a watcher has asked a new question."""
        try:
            question = (self._folder / f"{ASK}{kind}").read_text()
            if question != self._asked.get(kind):
                self._asked[kind] = question
                path = self._folder / f"{kind}-{self._rank}.json"
                text = json.dumps({"asked_s": time.monotonic(), kind: answer()})
                path.with_suffix(".new").write_text(text)
                path.with_suffix(".new").rename(path)
        except OSError:
            return  # there is no question, or the folder is being removed
        except Exception:  # noqa: BLE001  (of a torch that has changed, say)
            # no answer is better than no heartbeat: without a heartbeat this rank would count as frozen
            return

    def _dump_stacks(self) -> str:
        """Return the stacks of all threads in the signal's format; holds the interpreter lock, so no thread runs."""
        with (self._folder / f"stacks-{self._rank}.new").open("w+b") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode("utf-8", "replace")

    def beat(self, epoch: int | None, step: int | None, phase: str | None) -> None:
        """Write progress; values that are None stay unchanged."""
        with self._lock:
            if self._is_over:
                return
            self._take_noted()
            if epoch is not None:
                self._epoch = epoch
            if step is not None:
                self._step = step
            if phase is not None:
                self._phase = self._cut(phase)
            self._write(time.monotonic())

    def write_noted(self) -> None:
        """Write a noted step and a wait now instead of at the next heartbeat."""
        with self._lock:
            if self._is_over:
                return
            if (noted_s := self._take_noted()) is not None:
                self._write(noted_s)
            waits_s = self.waits_s
            if waits_s != self._waited_s:  # a single number needs no sequence
                self._waited_s = waits_s
                HEARTBEAT.pack_into(self._page, WAITS_AT, waits_s)

    def _take_noted(self) -> float | None:
        """Take over a newly noted step and return its time; the caller holds the lock.

        The training thread notes a step without the lock: so the note is read once, and never reset.
        """
        noted = self.noted
        if noted is None or noted is self._taken:
            return None
        self._taken = noted
        self._epoch, self._step, self._phase = noted[1], noted[2], b"step"
        return noted[0]

    def _write(self, now: float) -> None:
        """Write progress; the caller holds the lock."""
        self.written_s = now
        self._beats += 1
        self._sequence += 2
        page = self._page
        # The number is odd during a write: readers in other processes, which cannot take the lock, then read again.
        SEQUENCE.pack_into(page, SEQUENCE_AT, self._sequence - 1)
        PROGRESS.pack_into(page, PROGRESS_AT, now, self._beats, self._epoch, self._step, self._phase)
        SEQUENCE.pack_into(page, SEQUENCE_AT, self._sequence)

    def stop(self) -> None:
        """Stop the heartbeat and restore the signal; the files stay for readers."""
        self.write_noted()
        with self._lock:
            self._is_over = True
            self._ended.set()
        # With a limit: the thread may be in torch, behind a call that hangs. It writes to the page only under the lock
        # and before the end is set, so the page may be closed in any case.
        self._thread.join(_JOIN_S)
        if self._signum:
            faulthandler.unregister(self._signum)
        self._stacks.close()
        self._page.close()


def _register_stacks(file: IO[bytes]) -> int:
    """Let a signal that nobody uses write all stacks to `file`; works inside blocked calls and with the GIL held."""
    if threading.current_thread() is not threading.main_thread():
        return 0  # handlers can be looked up from anywhere, but installing them is the main thread's business
    # real-time signals from the top, which nobody gives a meaning; SIGUSR2 where there are none
    first = getattr(signal, "SIGRTMAX", None)
    numbers = [signal.SIGUSR2] if first is None else range(first - 3, signal.SIGRTMIN + 3, -1)
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_DFL:
            faulthandler.register(number, file=file, all_threads=True)
            return int(number)
    return 0


_recorder: Recorder | None = None


def start(folder: str | os.PathLike[str], rank: int) -> None:
    """Begin to show signs of life of this process as `rank`; call it from the main thread, once.

    Args:
        folder: existing folder, best in memory; a supervisor calls `read` on it.
        rank: global rank, >= 0.

    Raises:
        LaunchError: vitals are already running, or the folder is not writable.
    """
    global _recorder  # noqa: PLW0603  (one process is one rank: its vitals are the process's)
    if _recorder is not None:
        raise LaunchError(
            f"the vitals of this process are already running, so rank {rank} cannot start them again: call stop() first"
        )
    _recorder = Recorder(Path(folder), rank)


def stop() -> None:
    """Stop the vitals; do nothing if there are none."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.stop()


def beat(*, epoch: int | None = None, step: int | None = None, phase: str | None = None) -> None:
    """Report that this rank makes progress, and where it is; takes about a microsecond, and nothing without vitals.

    A supervisor blames the rank with the lowest (epoch, step) for blocking the others. Arguments that are not given
    stay unchanged.

    Args:
        epoch: epoch that the rank works on, >= 0.
        step: optimizer step that the rank works on, >= 0.
        phase: its activity ("train", "eval", "save"); cut to 64 bytes of UTF-8.
    """
    recorder = _recorder  # read once: `stop` in another thread may reset it in between
    if recorder is not None:
        recorder.beat(epoch, step, phase)


def beat_step(epoch: int, step: int) -> None:
    """Report that this rank begins a step, phase "step"; cheaper than `beat`.

    If steps follow each other within 5 ms, only the newest is written, twice a second.
    """
    recorder = _recorder
    if recorder is not None:
        now = time.monotonic()
        if now - recorder.written_s < _OFTEN_S:
            recorder.noted = now, epoch, step  # one assignment, so the heartbeat thread sees all three values or none
        else:
            recorder.beat(epoch, step, "step")


def wait() -> None:
    """Report that this rank waits for data until its next `beat`: phase "data"; cheaper than `beat`."""
    recorder = _recorder
    if recorder is not None:
        recorder.waits_s = now = time.monotonic()
        if now - recorder.written_s >= _OFTEN_S:
            recorder.write_noted()


def _forget_after_fork() -> None:
    """Drop the recorder in a forked child (a DataLoader worker): it must neither beat nor answer for the rank."""
    # Do not call `stop`: the thread does not exist here, and its lock may be held forever. The page stays intact.
    global _recorder  # noqa: PLW0603
    _recorder = None


os.register_at_fork(after_in_child=_forget_after_fork)
