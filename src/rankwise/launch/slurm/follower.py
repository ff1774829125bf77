"""Follow a submitted job: print its queue state, then its output, until it ends; handle Ctrl-C."""

from __future__ import annotations

import codecs
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rankwise.launch.slurm.handle import SlurmHandle, poll
from rankwise.launch.slurm.queue import JobState

_POLL_S = 0.3  # between two checks of the files


class _Tail:
    """Copies new content of a file, which may not exist yet."""

    def __init__(self, path: Path, sink: IO[str]) -> None:
        self._path, self._sink, self._done = path, sink, 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a read may end within a character

    def copy(self) -> bool:
        """Copy new content; return whether there was any."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._done)
                data = file.read()
        except OSError:  # it does not exist yet, or a network file system lost it for a moment
            return False
        self._done += len(data)
        if data:
            self._sink.write(self._decode(data))
            self._sink.flush()
        return bool(data)


def follow(handle: SlurmHandle) -> int:
    """Print state and output of a job until it has ended, including requeues; return its exit code.

    Ctrl-C asks whether to cancel the job. Without a terminal, the first Ctrl-C prints that a second one cancels it.
    """
    tails = [_Tail(handle.log_path(None, stream), sink) for stream, sink in (("out", sys.stdout), ("err", sys.stderr))]
    with _noted_interrupts() as interrupts:
        said, num_handled, polls = "", 0, poll(handle)
        while True:
            ending, found, late = next(polls)
            busy = [tail.copy() for tail in tails]
            if len(interrupts) > num_handled and not _goes_on(handle, interrupts):
                return 128 + signal.SIGINT
            num_handled = len(interrupts)
            if ending is not None:
                break
            if found is not None:
                said = _print_change(handle, found, said)
            if late and not any(busy):
                _print(f"job {handle.job_id} has ended without reporting its result: {found}")
                return 1
            time.sleep(_POLL_S)
        for tail in tails:
            tail.copy()
    code = int(ending["exitcode"])
    _print(f"job {handle.job_id} has ended, exit code {code}; output of every rank: {handle.log_path(0).parent}")
    return code


def follow_logs(handle: SlurmHandle, rank: int | None, *, until_end: bool) -> None:
    """Print the output of a rank (None: the job's console); with `until_end`, continue until the job has ended."""
    tails: dict[Path, _Tail] = {}
    for ending, found, late in poll(handle) if until_end else [(None, None, True)]:
        over = late or ending is not None or (found is not None and found.has_ended)
        for stream, sink in (("out", sys.stdout), ("err", sys.stderr)):
            path = handle.log_path(rank, stream)  # the path changes after a restart
            tails.setdefault(path, _Tail(path, sink)).copy()
        if over:
            return
        time.sleep(_POLL_S)


def _goes_on(handle: SlurmHandle, interrupts: list[int]) -> bool:
    """Return whether to keep following the job after Ctrl-C; cancel it if the user wants that."""
    if len(interrupts) == 1 and sys.stdin.isatty():
        interrupts.clear()
        answer = _ask(f"\nrankwise: cancel job {handle.job_id}? [y]es, [d]etach (it keeps running), [n]o: ")
        if answer == "d":
            _print(f"job {handle.job_id} keeps running: rankwise logs {handle.job_id} --follow")
            return False
        if answer != "y":
            _print(f"following job {handle.job_id}")
            return True
    elif len(interrupts) == 1:
        _print(f"a second Ctrl-C cancels job {handle.job_id}; SIGTERM leaves it running")
        return True
    handle.cancel()
    _print(f"job {handle.job_id} is cancelled")
    return False


def _ask(question: str) -> str:
    """Return the first letter of the answer; a second Ctrl-C counts as yes."""
    noting = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a handler that only notes does not interrupt `input`
    try:
        return input(question)[:1].lower()
    except EOFError:
        return "d"  # the terminal is closed: do not cancel the job
    except KeyboardInterrupt:
        return "y"
    finally:
        signal.signal(signal.SIGINT, noting)


def _print_change(handle: SlurmHandle, found: JobState, said: str) -> str:
    if found.state == "PENDING":
        text = f"job {handle.job_id} waits in the queue: {found.reason or 'no reason given'}"
    elif found.state == "RUNNING":
        text = f"job {handle.job_id} runs on {found.nodes}"
    else:
        text = f"job {handle.job_id} is {found}"
    if text != said:
        _print(text)
    return text


def _print(text: str) -> None:
    print(f"rankwise: {text}", file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Note each Ctrl-C in a list instead of raising."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
