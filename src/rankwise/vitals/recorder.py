"""The rank's side: a mapped file, a thread that beats and answers, and a signal for when that thread cannot run."""

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

__all__ = ["Recorder", "beat", "beat_step", "start", "stop", "wait"]

HEARTBEAT_INTERVAL_S = 0.5
_JOIN_S = 5.0
_OFTEN_S = 0.005  # of steps that are shorter, the heartbeat writes the last one: a note costs a fifth of a write


class Recorder:
    """Keeps one rank's vitals file. Use `start`, `beat` and `stop`; this class is for tests and other launchers.

    Args:
        folder: existing folder in which `rank-<rank>` and `stacks-<rank>` are created.
        rank: global rank, >= 0.

    Attributes:
        written_s: when it last wrote progress down.
        noted: a step that the next heartbeat writes: when, epoch, step; None without one.
        waits_s: since when the rank waits for data, if that is later than its last step.

    Raises:
        LaunchError: the folder cannot be written.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._lock = threading.Lock()  # for the page and what stands in it: the loop writes, and so does the heartbeat
        self._folder, self._rank = folder, rank
        self._num_calls: int | None = None
        self._asked: dict[str, str] = {}
        self._sequence = self._beats = 0
        self._epoch = self._step = NONE
        self._phase = b""
        self.written_s = -math.inf
        self.noted: tuple[float, int, int] | None = None
        self._taken: tuple[float, int, int] | None = None  # the last one that was noted and is written, or outdated
        self.waits_s = self._waited_s = 0.0
        self._cut = functools.lru_cache(maxsize=32)(cut_utf8)  # a loop has few phases, and says them at every step
        try:
            self._stacks: IO[bytes] | None = (folder / f"stacks-{rank}").open("wb", buffering=0)
            self._page = _map_page(folder / f"rank-{rank}")
        except OSError as error:
            raise LaunchError(
                f"rank {rank} cannot keep its vitals in {folder}: {error}; "
                "make the folder writable, or unset RANKWISE_VITALS to run without"
            ) from error
        self._signum = _register_stacks(self._stacks)
        now = time.monotonic()
        host = cut_utf8(socket.gethostname())
        HEARTBEAT.pack_into(self._page, HEARTBEAT_AT, now)
        PROGRESS.pack_into(self._page, PROGRESS_AT, now, 0, NONE, NONE, b"")
        HEADER.pack_into(self._page, 0, MAGIC, os.getpid(), rank, self._signum, now, host)
        self._ended, self._is_over = threading.Event(), False  # an event is asked by a call, at every beat
        self._thread = threading.Thread(target=self._keep_beating, name="rankwise-vitals", daemon=True)
        self._thread.start()

    def _keep_beating(self) -> None:
        while not self._ended.wait(HEARTBEAT_INTERVAL_S):
            calls = num_calls()  # before the lock, which a step may want: torch may take its time
            with self._lock:
                if not self._ended.is_set():
                    now = time.monotonic()
                    self._write_noted()
                    HEARTBEAT.pack_into(self._page, HEARTBEAT_AT, now)
                    if calls != self._num_calls:
                        HEARTBEAT.pack_into(self._page, ADVANCE_AT, now)
            self._num_calls = calls
            self._answer("stacks", self._dump_stacks)  # first: it needs nothing of torch
            self._answer("calls", last_calls)

    def _answer(self, kind: str, answer: Callable[[], Any]) -> None:
        """Write down what a watcher has asked for since."""
        try:
            question = (self._folder / f"{ASK}{kind}").read_text()
            if question != self._asked.get(kind):
                self._asked[kind] = question
                path = self._folder / f"{kind}-{self._rank}.json"
                text = json.dumps({"asked_s": time.monotonic(), kind: answer()})
                path.with_suffix(".new").write_text(text)
                path.with_suffix(".new").rename(path)
        except OSError:
            return  # nobody asked, or the folder goes away
        except Exception:  # noqa: BLE001  (of a torch that has changed, say)
            # no answer is better than no heartbeat: without one this rank would pass for frozen
            return

    def _dump_stacks(self) -> str:
        """Return the stacks of all threads, as the signal writes them; with the interpreter lock held, none runs."""
        with (self._folder / f"stacks-{self._rank}.new").open("w+b") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read().decode("utf-8", "replace")

    def beat(self, epoch: int | None, step: int | None, phase: str | None) -> None:
        """Write progress down; what is None stays as it was."""
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
        """Write now what the next heartbeat would write."""
        with self._lock:
            if not self._is_over:
                self._write_noted()

    def _take_noted(self) -> float | None:
        """Take over the step that was noted since, and return when; holds the lock.

        The thread that trains does not ask for the lock to note a step: what it notes is read once, never reset.
        """
        noted = self.noted
        if noted is None or noted is self._taken:
            return None
        self._taken = noted
        self._epoch, self._step, self._phase = noted[1], noted[2], b"step"
        return noted[0]

    def _write(self, now: float) -> None:
        """Write progress; holds the lock."""
        self.written_s = now
        self._beats += 1
        self._sequence += 2
        page = self._page
        # Odd while it is written: readers of other processes, who cannot take our lock, read again then.
        SEQUENCE.pack_into(page, SEQUENCE_AT, self._sequence - 1)
        PROGRESS.pack_into(page, PROGRESS_AT, now, self._beats, self._epoch, self._step, self._phase)
        SEQUENCE.pack_into(page, SEQUENCE_AT, self._sequence)

    def _write_noted(self) -> None:
        if (noted_s := self._take_noted()) is not None:
            self._write(noted_s)
        waits_s = self.waits_s
        if waits_s != self._waited_s:  # one number, which needs no sequence
            self._waited_s = waits_s
            HEARTBEAT.pack_into(self._page, WAITS_AT, waits_s)

    def stop(self) -> None:
        """Stop beating and give the signal back; the files stay for whoever reads them."""
        self.write_noted()
        with self._lock:
            self._is_over = True
            self._ended.set()
        # Not for ever: it may be asking torch, behind a call that hangs. It writes to the page only while it has not
        # ended, under the lock, so the page may be closed in any case.
        self._thread.join(_JOIN_S)
        if self._signum:
            faulthandler.unregister(self._signum)
        if self._stacks is not None:
            self._stacks.close()
        self._page.close()


def _map_page(path: Path) -> mmap.mmap:
    path.touch()
    with path.open("r+b") as file:
        file.truncate(FILE_BYTES)  # never shorter in between: a reader that has mapped it would die of SIGBUS
        page = mmap.mmap(file.fileno(), FILE_BYTES)
    page[:] = bytes(FILE_BYTES)
    return page


def _register_stacks(file: IO[bytes] | None) -> int:
    """Let a signal that nobody uses write all stacks to `file`; works inside blocked calls and with the GIL held."""
    if threading.current_thread() is not threading.main_thread():
        return 0  # handlers can be looked up from anywhere, but installing them is the main thread's business
    for number in _candidates():
        if signal.getsignal(number) is signal.SIG_DFL:
            faulthandler.register(number, file=file, all_threads=True)  # type: ignore[arg-type]
            return int(number)
    return 0


def _candidates() -> list[int]:
    """Real-time signals from the top, which nobody gives a meaning; SIGUSR2 where there are none."""
    if hasattr(signal, "SIGRTMAX"):
        return list(range(signal.SIGRTMAX - 3, signal.SIGRTMIN + 3, -1))
    return [signal.SIGUSR2]


_recorder: Recorder | None = None


def start(folder: str | os.PathLike[str], rank: int) -> None:
    """Begin to show signs of life of this process as `rank`; call it from the main thread, once.

    Args:
        folder: existing folder, best in memory; a supervisor calls `read` on it.
        rank: global rank, >= 0.

    Raises:
        LaunchError: vitals run already, or the folder cannot be written.
    """
    global _recorder  # noqa: PLW0603  (one process is one rank: its vitals are the process's)
    if _recorder is not None:
        raise LaunchError(f"vitals of this process run already; rank {rank} cannot start them again, call stop() first")
    _recorder = Recorder(Path(folder), rank)


def stop() -> None:
    """End what `start` began; nothing happens where nothing runs."""
    global _recorder
    recorder, _recorder = _recorder, None
    if recorder is not None:
        recorder.stop()


def beat(*, epoch: int | None = None, step: int | None = None, phase: str | None = None) -> None:
    """Say that this rank makes progress, and where it is; costs about a microsecond, and nothing where no vitals run.

    A supervisor takes the rank with the lowest (epoch, step) for the one that holds the others up. What is not given
    stays as it was.

    Args:
        epoch: epoch that the rank works on, >= 0.
        step: optimizer step that the rank works on, >= 0.
        phase: what it does ("train", "eval", "save"); cut to 64 bytes of UTF-8.
    """
    recorder = _recorder  # one look: `stop` in another thread may take it away in between
    if recorder is not None:
        recorder.beat(epoch, step, phase)


def beat_step(epoch: int, step: int) -> None:
    """Say that this rank begins a step, phase "step", for less than `beat` costs.

    Of steps that follow each other within 5 ms, the newest is written twice a second.
    """
    recorder = _recorder
    if recorder is not None:
        now = time.monotonic()
        if now - recorder.written_s < _OFTEN_S:
            recorder.noted = now, epoch, step  # one step for the heartbeat's thread: it sees all three or none
        else:
            recorder.beat(epoch, step, "step")


def wait() -> None:
    """Say that this rank waits for data until its next `beat`: phase "data", for less than a beat costs."""
    recorder = _recorder
    if recorder is not None:
        recorder.waits_s = now = time.monotonic()
        if now - recorder.written_s >= _OFTEN_S:
            recorder.write_noted()


def _forget_after_fork() -> None:
    """A forked child (a DataLoader worker) is not the rank: it must neither beat nor answer for it."""
    # Not stopped: its thread is not here, and may hold its lock for ever. The child's mapping goes, the page stays.
    global _recorder  # noqa: PLW0603
    _recorder = None


os.register_at_fork(after_in_child=_forget_after_fork)
