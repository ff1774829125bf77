"""The watcher's side: read the vitals of every rank of a folder, and request stacks and calls."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    WAITS,
    WAITS_AT,
)

_POLL_S = 0.01
_QUIET_S = 0.05
_STALE_S = 3.0  # heartbeats come twice a second; if one is this late, the rank's thread does not run


@dataclass(frozen=True, kw_only=True, slots=True)
class Vital:
    """The content of one rank's vitals file when it was read.

    Attributes:
        folder: folder of the file.
        rank: global rank.
        pid: its process id on `host`.
        host: its host name, cut to 64 bytes.
        signum: signal on which it writes its stacks; 0 if it cannot.
        start_s: when its vitals started, monotonic clock of its host.
        heartbeat_s: when its heartbeat thread last ran, same clock.
        progress_s: when it last called `beat` or `wait` (its start before the first), same clock.
        advance_s: when its last collective began, same clock, to half a second; 0.0 if never.
        num_beats: how often it called `beat`.
        epoch: the last one that it reported; None if none.
        step: the last one that it reported; None if none.
        phase: the last one that it reported; "" if none.
    """

    folder: Path
    rank: int
    pid: int
    host: str
    signum: int
    start_s: float
    heartbeat_s: float
    progress_s: float
    advance_s: float = 0.0
    num_beats: int
    epoch: int | None
    step: int | None
    phase: str

    @property
    def moved_s(self) -> float | None:
        """Return when it last made progress, by a beat or a collective; None if never."""
        return max(self.progress_s if self.num_beats else 0.0, self.advance_s) or None

    @property
    def place(self) -> str:
        """Return its reported place, "epoch 1, step 20, phase train", or a text that it has reported none."""
        if not self.num_beats:
            return "no beat yet"
        parts = [
            f"epoch {self.epoch}" if self.epoch is not None else "",
            f"step {self.step}" if self.step is not None else "",
            f"phase {self.phase}" if self.phase else "",
        ]
        return ", ".join(part for part in parts if part) or f"beat {self.num_beats}"


def read(folder: str | os.PathLike[str]) -> list[Vital]:
    """Read the vitals of every rank in `folder`, sorted by rank.

    A rank that has not begun, or is just beginning, is left out.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    root = Path(folder)
    vitals = [_read_one(root, path) for path in root.iterdir() if re.fullmatch(r"rank-\d+", path.name)]
    return sorted((vital for vital in vitals if vital is not None), key=lambda vital: vital.rank)


def _read_one(root: Path, path: Path) -> Vital | None:
    page = _read_settled(path)
    if page is None:
        return None
    _, pid, rank, signum, start, host = HEADER.unpack_from(page, 0)
    (heartbeat,) = HEARTBEAT.unpack_from(page, HEARTBEAT_AT)
    (advance,) = HEARTBEAT.unpack_from(page, ADVANCE_AT)
    (waits,) = HEARTBEAT.unpack_from(page, WAITS_AT)
    progress, beats, epoch, step, phase = PROGRESS.unpack_from(page, PROGRESS_AT)
    return Vital(
        folder=root,
        rank=rank,
        pid=pid,
        host=_text(host),
        signum=signum,
        start_s=start,
        heartbeat_s=heartbeat,
        progress_s=max(progress, waits),
        advance_s=advance,
        num_beats=beats,
        epoch=None if epoch == NONE else epoch,
        step=None if step == NONE else step,
        phase=WAITS if waits > progress else _text(phase),
    )


def _read_settled(path: Path) -> bytes | None:
    """Read the page until no write happened during the read. If a rank is frozen in a write, return the page as it is.

    The page is mapped, because a rank that beats continuously leaves less time between writes than a file read takes.
    """
    try:
        # Processes cannot share the writer's lock, so the page has a sequence number: if it is even, and equal before
        # and after the read, the page is consistent. The heartbeat writes single numbers beside that, which are atomic.
        with path.open("rb") as file, mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ) as mapped:
            for number in range(1000):
                if number >= 900:  # the writer was preempted: it continues after some time slices, unless it is stopped
                    time.sleep(0.001)
                (before,) = SEQUENCE.unpack_from(mapped, SEQUENCE_AT)
                page = mapped[:]
                if page[: len(MAGIC)] != MAGIC:
                    return None
                (after,) = SEQUENCE.unpack_from(mapped, SEQUENCE_AT)
                if before == after and before % 2 == 0:
                    break
            return page
    except (FileNotFoundError, ValueError):  # the run has just ended, or the file is shorter than a page
        return None


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", "replace")


def request_stacks(vitals: Collection[Vital], timeout_s: float = 4.0) -> dict[int, str]:
    """Ask ranks of this host for the stacks of all their threads, most recent call first.

    The rank's heartbeat thread answers. If that thread does not run, perhaps because a C extension holds the
    interpreter lock, a signal makes the rank write its stacks. The signal is the second choice because its handler
    walks the frames of threads that may be running: about one in 2,000 such walks in a busy interpreter ends the rank
    with SIGSEGV (CPython 3.11). While the lock is held, or the heartbeat thread waits for it, no frame changes.

    Args:
        vitals: vitals of the ranks to ask, as read; the processes must still exist.
        timeout_s: seconds to wait for the answers: half of them for the threads, the rest for the signals.

    Returns:
        The output of `faulthandler` by rank, "" if there is none: a stopped (SIGSTOP) process does not answer.
    """
    deadline = time.monotonic() + timeout_s
    beating = [vital for vital in vitals if time.monotonic() - vital.heartbeat_s < _STALE_S]
    stacks = _request("stacks", beating, timeout_s / 2, timeout_s / 2)
    for vital in vitals:
        if vital.rank not in stacks:
            stacks[vital.rank] = _signal_for_stacks(vital, deadline)
    return stacks


def _signal_for_stacks(vital: Vital, deadline: float) -> str:
    """Send the signal and return the stacks; several watchers take turns."""
    path = vital.folder / f"stacks-{vital.rank}"
    if not vital.signum or time.monotonic() >= deadline or not path.exists():
        return ""
    try:
        with _turn(path, (time.monotonic() + deadline) / 2):
            before = path.stat().st_size
            os.kill(vital.pid, vital.signum)
            return _wait_for_text(path, before, deadline)
    except (FileNotFoundError, ProcessLookupError):  # the run has just ended
        return ""


@contextlib.contextmanager
def _turn(path: Path, deadline: float) -> Iterator[None]:
    """Lock the file for one watcher: two answers at the same time would be mixed or cut off.

    At the deadline, go on without the lock: another watcher may be stopped while it holds it.
    """
    # The lock belongs to this open file, so threads of one watcher take turns too. It is released when the file is
    # closed, so a killed watcher blocks nobody.
    with path.open("rb") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:  # a file system without locks
                break
        yield


def request_calls(vitals: Collection[Vital], timeout_s: float = 3.0, busy_timeout_s: float = 20.0) -> dict[int, Any]:
    """Ask ranks of this host for their last collectives; return the answers that arrived in time, by rank.

    A rank whose threads do not run (it is stopped, or a call holds the interpreter lock) does not answer. Several
    watchers may ask at the same time: one answer of a rank serves all earlier questions.

    Args:
        vitals: vitals of the ranks to ask, as read; the processes must still exist.
        timeout_s: seconds to wait for the answers.
        busy_timeout_s: seconds to wait for a rank whose heartbeat continues: it answers at its next heartbeat, which is
            late on a busy machine.
    """
    return _request("calls", vitals, timeout_s, busy_timeout_s)


def _request(kind: str, vitals: Collection[Vital], timeout_s: float, busy_timeout_s: float) -> dict[int, Any]:
    asked_s = time.monotonic()  # before the question is written: an answer with a later time includes this question
    for folder in {vital.folder for vital in vitals}:
        # renamed into place, so that no rank reads a partial question; another watcher may do the same now
        question = folder / f"{ASK}{kind}.{os.getpid()}-{threading.get_ident()}"
        with contextlib.suppress(FileNotFoundError):  # the run has just ended: nobody will answer
            question.write_text(f"{os.getpid()} {asked_s!r}")
            question.rename(folder / f"{ASK}{kind}")
    answers: dict[int, Any] = {}
    open_vitals = list(vitals)
    while open_vitals:
        for vital in open_vitals:
            if (answer := _answer(kind, vital, asked_s)) is not None:
                answers[vital.rank] = answer
        waited_s = time.monotonic() - asked_s
        open_vitals = [
            vital
            for vital in open_vitals
            if vital.rank not in answers and waited_s < (busy_timeout_s if _beats(vital) else timeout_s)
        ]
        time.sleep(_POLL_S)
    return answers


def _beats(vital: Vital) -> bool:
    """Whether the rank has had a heartbeat since its vitals were read."""
    now = _read_one(vital.folder, vital.folder / f"rank-{vital.rank}")
    return now is not None and now.heartbeat_s > vital.heartbeat_s


def _answer(kind: str, vital: Vital, asked_s: float) -> Any:
    # the rank renames it into place, so it is complete; an old answer stays until the next one
    try:
        found = json.loads((vital.folder / f"{kind}-{vital.rank}.json").read_text())
    except (OSError, ValueError):
        return None
    return found[kind] if found["asked_s"] >= asked_s else None


def _wait_for_text(path: Path, before: int, deadline: float) -> str:
    """Return the text appended to the file, once it has stopped growing."""
    size, grown_at = before, time.monotonic()
    while (now := time.monotonic()) < deadline:
        new_size = path.stat().st_size
        if new_size != size:
            size, grown_at = new_size, now
        elif size > before and now - grown_at > _QUIET_S:
            break
        time.sleep(_POLL_S)
    return path.read_bytes()[before:].decode("utf-8", "replace")
