"""The run directory: one run, one owner at a time, fenced by attempt numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rankwise.errors import ConfigError, DesyncError, FencedError, RunDirError
from rankwise.tracking.config import as_json, masked
from rankwise.tracking.files import read_json, write_json
from rankwise.tracking.lock import FileLock
from rankwise.tracking.ownership import FINISHED_HERE, WAYS, Claim, claim
from rankwise.tracking.verdict import on_main, world_or_current

if TYPE_CHECKING:
    from rankwise.world import World

__all__ = ["RunDir"]

# How long a publish waits for the one before it: far longer than a rename takes, short enough to be noticed.
_FENCE_WAIT_S = 60.0
# How long a look at the fence may stand for the next ones: a network file system shows late what others have changed.
_LOOK_S = 1.0


class RunDir:
    """One run on disk: its configuration, metrics, checkpoints and logs, and the right to write them.

    Made by `RunDir.open`. Lives on the file system as

    - ``config.json``: the configuration, and the environment of every attempt;
    - ``attempt.json``: the attempt that owns the run now; ``lock`` and ``running.lock`` guard it;
    - ``metrics.jsonl``, ``checkpoints/``, ``logs/``;
    - ``finished.json``: the final values, once there are any.

    It is made for its owner alone (mode 0700), its files 0600. One that is there keeps its mode, and new files follow
    it: after ``chmod -R g+rX`` the group reads them, too.

    Attributes:
        path: the directory.
        attempt: number of this attempt, from 1; the last attempt's number when the run is finished.
        resumed: True if an earlier attempt has left something here.
        finished: None, or what `finish` recorded: ``{"attempt", "time", "values"}``. A finished run is never written.
        changed: what may change and did since the last attempt, ``key: old -> new`` each.
        saved: True if an earlier attempt has called `mark_saved`.
    """

    def __init__(self, path: Path, found: Claim, *, running: FileLock | None) -> None:
        self.path = path
        self.attempt = found.attempt
        self.resumed = found.resumed
        self.finished: dict[str, Any] | None = found.finished
        self.changed = found.changed
        self.saved = found.saved
        self._run_id = found.run_id
        self._attempt_file = str(path / "attempt.json")
        self._running = running
        # The lock file is of processes: a second thread of this one (the loop, or who writes checkpoints) would be
        # refused at once instead of waiting. What is done inside a fence may want one, too.
        self._fence = threading.RLock()
        self._fence_depth = 0
        # Written inside the fence, read without it at every line of metrics. In between, the mark is newer than the
        # time: a look may then find itself too old, and asks the fence.
        self._seen: tuple[int, ...] = ()
        self._seen_s = -_LOOK_S
        # A run directory that nobody refers to any more must not keep later ones in this process out. Called at exit as
        # well, also at that of a forked child, which has no lock any more: see `FileLock.release`.
        self._release = weakref.finalize(self, running.release) if running is not None else None

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        environment: Mapping[str, Any] | None = None,
        world: World | None = None,
        may_change: Collection[str] = (),
        resume: Literal["auto", "must", "never"] = "auto",
        fresh: bool = False,
        reopen: bool = False,
        wait_s: float = 15.0,
    ) -> RunDir:
        """Create or resume the run in `path`. Every rank must call it; the main rank acts, all hear the verdict.

        Args:
            path: the directory; made with its parents when missing.
            config: JSON object of everything that makes the run what it is. It must be equal on all ranks, and equal
                to the recorded one on resume. Secrets (``api_key``, ``password``, ..., in URLs and command lines, too)
                are recorded as ``***`` and not compared.
            environment: JSON object of what may change between attempts (host, world size, versions, command line);
                recorded for each attempt, never compared.
            world: default ``World.current()``.
            may_change: dotted keys of `config` that do not make another run (how often to log): a change is recorded
                with the attempt and found in `changed`.
            resume: "auto" resumes a run of the same configuration or starts a new one; "must" wants a run to resume;
                "never" wants none.
            fresh: move the run that is there aside to ``<name>.<n>`` and start anew.
            reopen: let a finished run go on; its final record is kept as ``finished-<attempt>.json``.
            wait_s: how long to wait for the process that owns the run now: its predecessor may be dying.

        Raises:
            RunDirError: another configuration (the differences are listed), the run is in use, `resume` does not fit,
                this process has finished the run itself, or the directory holds other files. Raised on every rank.
            ConfigError: an argument is not JSON, or `resume` is unknown.
            DesyncError: the ranks came with different configurations.
        """
        if resume not in ("auto", "must", "never"):
            raise ConfigError(f"resume is 'auto', 'must' or 'never', got {resume!r}")
        world = world_or_current(world)
        place = Path(path).absolute()
        made_of = masked(as_json(config, what="the run's configuration"))
        around = masked(as_json(environment or {}, what="the run's environment"))
        assert isinstance(made_of, dict)
        assert isinstance(around, dict)
        _agree(world, made_of)
        running = FileLock(place / "running.lock", what=f"the run directory {place}") if world.is_main else None

        def act() -> Claim:
            assert running is not None
            return claim(
                place,
                running,
                config=made_of,
                environment=around,
                may_change=may_change,
                resume=resume,
                fresh=fresh,
                reopen=reopen,
                wait_s=wait_s,
            )

        return cls(place, on_main(world, act), running=running)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File of the metrics, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @contextlib.contextmanager
    def fence(self) -> Iterator[None]:
        """Hold the run's short lock around a publish, if this attempt still owns the run. Not a collective.

        Keep what happens inside short (renames, not writing gigabytes): the next attempt waits for it.

        Raises:
            FencedError: a newer attempt owns the run, or the run was moved away: this process must not publish.
            RunDirError: the run is finished, or the lock is held for a minute.
        """
        with self._fence:
            if self._fence_depth:
                self._fence_depth += 1
            else:
                self._enter_fence()
            try:
                yield
            finally:  # also after a Ctrl-C: the next attempt must not wait for a process that does something else now
                self._fence_depth -= 1
                if not self._fence_depth:
                    self._short.release()

    def is_undisturbed(self) -> bool:
        """Whether nobody has taken, moved or finished the run since this object last held the fence, at most 1 s ago.

        One look at one file, for a line of metrics, whose readers know which attempt came later. Where it is False,
        `fence` tells. Not a collective.
        """
        is_fresh = self.finished is None and time.monotonic() - self._seen_s < _LOOK_S
        return is_fresh and self._owner_mark() == self._seen

    def finish(self, values: Mapping[str, Any]) -> None:
        """Record that the run is done, with its final values. One rank calls it (the main one); not a collective.

        Args:
            values: JSON object; non-finite floats are not allowed (None says it as well).

        Raises:
            FencedError: a newer attempt owns the run.
            RunDirError: the run is finished already.
        """
        record = {"attempt": self.attempt, "time": time.time(), "values": as_json(values, what="the final values")}
        with self.fence():
            write_json(self.path / "finished.json", record)
        self.finished = record
        FINISHED_HERE.add(self._run_id)

    def mark_saved(self) -> None:
        """Record that a checkpoint is published: a later attempt that finds none has lost some. Like `finish`.

        Raises:
            FencedError: a newer attempt owns the run.
        """
        if not self.saved:
            with self.fence():
                record = read_json(self.path / "attempt.json") or {}
                write_json(self.path / "attempt.json", {**record, "saved": True})
            self.saved = True

    def mark_interrupted(self, reason: str, step: int) -> None:
        """Record, with this attempt, that it saved and stopped because it was asked to. Like `finish`.

        Args:
            reason: who asked.
            step: optimizer steps done.

        Raises:
            FencedError: a newer attempt owns the run.
        """
        with self.fence():
            record = read_json(self.path / "config.json") or {}
            told = {"reason": reason, "step": step, "time": time.time()}
            record["environment"][str(self.attempt)]["interrupted"] = told
            write_json(self.path / "config.json", record)

    def close(self) -> None:
        """Let go of the run, so that another process may open it. Calling it twice is fine."""
        if self._release is not None:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enter_fence(self) -> None:
        if not self.path.is_dir():
            raise FencedError(f"{self.path} is gone: somebody moved or removed the run; nothing was published")
        self._short = FileLock(self.path / "lock", what=f"the lock of {self.path}")
        self._short.acquire(wait_s=_FENCE_WAIT_S)
        try:
            self._check_ours()
        except BaseException:
            self._short.release()
            raise
        self._fence_depth = 1

    def _owner_mark(self) -> tuple[int, ...]:
        """Return what tells one version of ``attempt.json`` from the next: each is a new file."""
        try:
            found = os.stat(self._attempt_file)  # noqa: PTH116  (at every line of metrics)
        except OSError:
            return (0,)
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _check_ours(self) -> None:
        mark = self._owner_mark()
        now = read_json(self.path / "attempt.json") or {}
        if now.get("run") != self._run_id or now.get("attempt") != self.attempt:
            owner = f"attempt {now.get('attempt')} (process {now.get('pid')} on host {now.get('host')})"
            raise FencedError(
                f"this process is attempt {self.attempt} of {self.path}, which {owner} owns now: nothing was "
                "published; this is a left-over that should end"
            )
        if (self.path / "finished.json").exists():
            raise RunDirError(f"{self.path} is finished and is never overwritten; {WAYS}")
        self._seen, self._seen_s = mark, time.monotonic()


def _agree(world: World, config: Mapping[str, Any]) -> None:
    """Refuse configurations that differ between ranks: only the main rank's would be recorded."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    digests = world.all_gather_object(digest)
    different = tuple(rank for rank, other in enumerate(digests) if other != digests[0])
    if different:
        raise DesyncError(
            f"the run's configuration differs between ranks: {list(different)} came with another one than rank 0; "
            "put what belongs to one rank into environment=",
            ranks=different,
        )
