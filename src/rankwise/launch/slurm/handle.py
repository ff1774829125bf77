"""`SlurmHandle`: wait for, follow, read and cancel a submitted launch, from any process."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from rankwise._files import write_whole
from rankwise.errors import ConfigError, LaunchError, RankFailure
from rankwise.launch.functions.callee import value_path
from rankwise.launch.functions.caller import read_value
from rankwise.launch.slurm.queue import JobState, job_fields, job_states, slurm_command
from rankwise.launch.slurm.start import state_folder

_POLL_S = 1.0  # between two checks of the files
_ASK_S = 2.0  # between two queries to Slurm's controller, which all users share
_LATE_S = 15.0  # how long after a job's end its files may take to appear here
_SILENT_S = 900.0  # how long to tolerate no answer from Slurm: restarting the controller takes minutes
_FILES_S = 0.3  # between two checks of the files


def poll(handle: SlurmHandle) -> Iterator[tuple[dict[str, Any] | None, JobState | None, bool]]:
    """Yield the ending of a job, its latest known state, and whether it left Slurm's queue long ago without an ending.

    Slurm is asked only every few seconds, however often the caller polls. Ending and state are None while Slurm does
    not answer.

    Raises:
        LaunchError: Slurm has not answered for a quarter of an hour.
    """
    asked_s, saw_ending = -math.inf, False
    silent_since_s: float | None = None
    left_s: float | None = None
    ending, found = None, None
    while True:
        now, sees_ending = time.monotonic(), handle.has_left_ending
        # query at once when an ending file appears, but not again: after a requeue an old file may stay for long
        if now - asked_s >= _ASK_S or sees_ending != saw_ending:
            asked_s, saw_ending, ending, found = now, sees_ending, None, None
            try:
                ending = handle.ending()
                found = handle.ask() if ending is None else None
                silent_since_s = None
            except LaunchError:
                silent_since_s = silent_since_s or now
                if now - silent_since_s > _SILENT_S:
                    raise
            if found is not None:
                left_s = (left_s or now) if found.has_left_queue else None
        yield ending, found, found is not None and left_s is not None and now - left_s > _LATE_S


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmHandle:
    """A launch that was submitted to Slurm.

    Attributes:
        job_id: Slurm's job id.
        folder: folder of the job's files.
        name: name of the job.
        num_ranks: number of ranks on all nodes.
        run_dir: run directory, None without one.
    """

    job_id: str
    folder: Path
    name: str
    num_ranks: int
    run_dir: Path | None = None

    @property
    def state(self) -> str:
        """The state in Slurm's words: "PENDING", "RUNNING", "COMPLETED", ..."""
        return self.ask().state

    def ask(self) -> JobState:
        """Ask Slurm for state, reason and nodes; an ending file of the job overrides Slurm's state."""
        found = job_states([self.job_id])[self.job_id]
        if found.state in {"RUNNING", "COMPLETING", "UNKNOWN"} and (ending := self.ending()) is not None:
            return JobState(state="COMPLETED" if ending["exitcode"] == 0 else "FAILED")
        return found

    def cancel(self) -> None:
        """Cancel the job.

        Raises:
            LaunchError: Slurm refuses to cancel it.
        """
        done = slurm_command("scancel", self.job_id)
        if done.returncode:
            raise LaunchError(f"job {self.job_id} cannot be cancelled: {done.stderr.strip()}")

    def log_path(self, rank: int | None = None, stream: str = "out") -> Path:
        """Return the log file of a rank's "out" or "err" in the newest attempt; for None that of the job's console.

        Raises:
            ConfigError: there is no such rank.
        """
        if rank is None:
            return self.folder / f"{self.job_id}_0_log.{stream}"
        if not 0 <= rank < self.num_ranks:
            raise ConfigError(f"job {self.job_id} has ranks 0 to {self.num_ranks - 1}, got rank {rank}")
        root = self.folder / "logs" if self.run_dir is None else self.run_dir / "logs"
        found = [(int(m[1]), entry) for entry in root.glob("*") if (m := re.fullmatch(r"attempt-(\d+)", entry.name))]
        newest = max(found, default=(0, root / "attempt-0"))[1]
        return newest / f"rank-{rank}.{stream}"

    def logs(self, rank: int | None = None) -> str:
        """Return the output so far, stdout before stderr, of a rank; for None that of the job's console."""
        paths = [self.log_path(rank, stream) for stream in ("out", "err")]
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    @property
    def has_left_ending(self) -> bool:
        """Whether a run of the job has written an ending file; Slurm may still start the job again."""
        return (self.folder / "ending.json").exists()

    def ending(self) -> dict[str, Any] | None:
        """Return how the launch ended; None if it still runs, was killed, or will be started again by Slurm."""
        try:
            ending: dict[str, Any] = json.loads((self.folder / "ending.json").read_bytes())
        except FileNotFoundError:
            return None
        fields = job_fields(self.job_id)
        if fields is None:  # Slurm has forgotten the job, so it will not start again
            return ending
        if int(fields.get("Restarts", 0)) > ending["restarts"]:
            return None
        comes_back = ending["interrupted"] is not None and not JobState(state=fields["JobState"]).has_ended
        return None if comes_back else ending

    def wait(self) -> dict[str, Any]:
        """Wait until the launch has ended, including requeues, and return how it ended.

        Raises:
            LaunchError: the job ended without an ending file; the message has its state and reason.
        """
        polls = poll(self)
        while True:
            ending, found, late = next(polls)
            if ending is not None:
                return ending
            if found is not None and (late or (found.state == "CANCELLED" and self.ending() is None)):
                tail = self.logs().splitlines()[-20:]
                what = f"job {self.job_id} ({self.name}) is {found}, and its ranks did not report how they ended"
                raise LaunchError("\n".join([what, *tail]))
            time.sleep(_POLL_S)
            list(self.folder.iterdir())  # makes some network file systems refresh their cache

    def result(self) -> list[Any]:
        """Wait for the end and return the values of the function, by rank.

        Raises:
            RankFailure: a rank failed; the error holds its traceback.
            LaunchError: the job was cancelled, lost or killed, or a value cannot be read here.
        """
        ending = self.wait()
        record = ending["record"]
        if record is not None and not record["failure"]:
            raise LaunchError(f"job {self.job_id}: {record['text']}")
        if record is not None:
            rank, status = record["failure"]["rank"], record["failure"]["status"]
            raise RankFailure(record["text"], rank=rank, exitcode=status, traceback=record["detail"])
        if ending["exitcode"]:
            raise LaunchError(f"job {self.job_id} was stopped from outside, exit code {ending['exitcode']}")
        return [self._value(rank) for rank in range(self.num_ranks)]

    def remember(self) -> None:
        """Write a file for `find`."""
        fields = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        write_whole(state_folder() / f"job-{self.job_id}.json", json.dumps(fields).encode())

    @classmethod
    def find_all(cls) -> list[SlurmHandle]:
        """Return all remembered handles, newest first; a file that cannot be read is skipped with a message."""
        found = []
        files = state_folder(create=False).glob("job-*.json")
        for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
            try:
                found.append(_read(path))
            except ConfigError as error:
                print(f"rankwise: skipped: {error}", file=sys.stderr)  # noqa: T201
        return found

    @classmethod
    def find(cls, job_id: str) -> SlurmHandle:
        """Return the handle of this job id.

        Raises:
            ConfigError: there is no such job, it is another user's, rankwise did not submit it, or its file is damaged.
            LaunchError: Slurm, which is asked about jobs without such a file, does not answer.
        """
        if not job_id.isdecimal():
            raise ConfigError(f"a Slurm job id must be a number, got {job_id!r}; `rankwise jobs --all` lists yours")
        path = state_folder(create=False) / f"job-{job_id}.json"
        if path.exists():
            return _read(path)
        fields = job_fields(job_id)
        if fields is None:
            raise ConfigError(
                f"Slurm does not know job {job_id} (any more), and rankwise did not submit it from here: "
                "`rankwise jobs --all` lists the jobs it submitted"
            )
        user, _, number = fields.get("UserId", "").rstrip(")").partition("(")
        if number != str(os.geteuid()):
            raise ConfigError(f"job {job_id} belongs to user {user}, who alone can see its files and cancel it")
        raise ConfigError(
            f"job {job_id} ({fields.get('JobName', '')}) is yours, but was not submitted by `rankwise run --slurm` "
            f"or a Platform: its output is {fields.get('StdOut', 'unknown')}, `scancel {job_id}` cancels it"
        )

    def _value(self, rank: int) -> Any:
        path = value_path(self.folder, rank)
        deadline = time.monotonic() + _LATE_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S / 5)
        return read_value(rank, path.read_bytes() if path.exists() else None)


def _read(path: Path) -> SlurmHandle:
    try:
        fields = json.loads(path.read_bytes())
        fields["folder"] = Path(fields["folder"])
        fields["run_dir"] = None if fields["run_dir"] is None else Path(fields["run_dir"])
        return SlurmHandle(**fields)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path}, the file of a submitted job, cannot be read ({error!r}): remove it") from error


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
            time.sleep(_FILES_S)
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
        time.sleep(_FILES_S)


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
    # a handler that only notes does not interrupt `input`
    noting = signal.signal(signal.SIGINT, signal.default_int_handler)
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
