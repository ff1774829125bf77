"""The run directory: it holds one run with one owner at a time; attempt numbers fence out earlier owners."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rankwise._process.lock import FileLock
from rankwise.errors import ConfigError, DesyncError, FencedError, RunDirError
from rankwise.tracking.config import as_json, masked
from rankwise.tracking.files import read_json, write_json
from rankwise.tracking.ownership import FINISHED_HERE, WAYS, Claim, claim
from rankwise.tracking.verdict import on_main
from rankwise.world import World

# How long a publish waits for the previous one: far longer than a rename takes, short enough to be noticed.
_FENCE_WAIT_S = 60.0
# How long a check of the fence stays valid: a network file system shows changes of other clients late.
_LOOK_S = 1.0
_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher", "ipython", "ipython3")


class RunDir:
    """One run on disk: its configuration, metrics, checkpoints and logs, and the right to write them.

    Created by `RunDir.open`. Its files are

    - ``config.json``: the configuration, and the environment of every attempt;
    - ``attempt.json``: the attempt that owns the run now; ``lock`` and ``running.lock`` protect it;
    - ``metrics.jsonl``, ``checkpoints/``, ``logs/``;
    - ``finished.json``: the final values, once there are any.

    A new directory has mode 0700, its files 0600. An existing directory keeps its mode, and new files follow it: after
    ``chmod -R g+rX`` the group can read them too.

    Attributes:
        path: the directory.
        attempt: number of this attempt, from 1; the last attempt's number if the run is finished.
        resumed: True if there was an earlier attempt.
        finished: None, or the record of `finish`: ``{"attempt", "time", "values"}``. A finished run is never changed.
        changed: allowed changes since the last attempt, each as ``key: old -> new``.
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
        # The lock file works between processes only: a second thread of this process (the loop or the checkpoint
        # writer) would fail at once instead of waiting. Reentrant, because code inside a fence may enter a fence.
        self._fence = threading.RLock()
        self._fence_depth = 0
        # Written inside the fence, read without it at every line of metrics. Between the two writes the mark is newer
        # than the time: a reader then at worst finds the check too old, and enters the fence.
        self._seen: tuple[int, ...] = ()
        self._seen_s = -_LOOK_S
        # An unreferenced run directory must not block later ones in this process. Also called at exit, even at that of
        # a forked child, which holds no lock: see `FileLock.release`.
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
        """Create or resume the run in `path`. Every rank must call it; the main rank acts, and all get the result.

        Args:
            path: the directory; created with its parents if missing.
            config: JSON object with everything that defines the run. It must be equal on all ranks, and on resume equal
                to the recorded one. Secrets (``api_key``, ``password``, ..., also in URLs and command lines) are
                recorded as ``***`` and not compared.
            environment: JSON object with what may change between attempts (host, world size, versions, command line);
                recorded for each attempt, never compared.
            world: default ``World.current()``.
            may_change: dotted keys of `config` that may change within a run (how often to log): a change is recorded
                with the attempt and listed in `changed`.
            resume: "auto" resumes a run of the same configuration or starts a new one; "must" requires an existing run;
                "never" requires that there is none.
            fresh: move an existing run aside to ``<name>.<n>`` and start a new one.
            reopen: continue a finished run; its final record is kept as ``finished-<attempt>.json``.
            wait_s: how long to wait for the process that owns the run now; it may be a predecessor that is ending.

        Raises:
            RunDirError: the configuration differs (the message lists how), the run is in use, `resume` does not fit,
                this process itself finished the run, or the directory holds other files. Raised on every rank.
            ConfigError: an argument is not JSON, `path` is empty, or `resume` is unknown.
            DesyncError: the ranks have different configurations.
        """
        if resume not in ("auto", "must", "never"):
            raise ConfigError(f"resume must be 'auto', 'must' or 'never', got {resume!r}")
        if path == "":
            raise ConfigError('a run directory needs a path, got ""; use "." for the current folder')
        world = World.current() if world is None else world
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
        """Hold the run's short lock during a publish, if this attempt still owns the run. Not a collective.

        Keep the block short (renames, not writing gigabytes): the next attempt waits for it.

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
            finally:  # also after Ctrl-C: the next attempt must not wait for a process that has gone on
                self._fence_depth -= 1
                if not self._fence_depth:
                    self._short.release()

    def is_undisturbed(self) -> bool:
        """Whether nobody has claimed, moved or finished the run since this object last held the fence, at most 1 s ago.

        It checks one file only, which is enough for a line of metrics: its readers know which attempt came later. If it
        is False, enter `fence`. Not a collective.
        """
        is_fresh = self.finished is None and time.monotonic() - self._seen_s < _LOOK_S
        return is_fresh and self._owner_mark() == self._seen

    def finish(self, values: Mapping[str, Any]) -> None:
        """Record that the run is done, with its final values. Only the main rank calls it; not a collective.

        Args:
            values: JSON object; non-finite floats are not allowed (use None).

        Raises:
            FencedError: a newer attempt owns the run.
            RunDirError: the run is already finished.
        """
        record = {"attempt": self.attempt, "time": time.time(), "values": as_json(values, what="the final values")}
        with self.fence():
            write_json(self.path / "finished.json", record)
        self.finished = record
        FINISHED_HERE.add(self._run_id)

    def mark_saved(self) -> None:
        """Record that a checkpoint is published, so that a later attempt without one knows of a loss. Like `finish`.

        Raises:
            FencedError: a newer attempt owns the run.
        """
        if not self.saved:
            with self.fence():
                record = read_json(self.path / "attempt.json") or {}
                write_json(self.path / "attempt.json", {**record, "saved": True})
            self.saved = True

    def mark_interrupted(self, reason: str, step: int) -> None:
        """Record that this attempt saved and stopped because it was asked to. Like `finish`.

        Args:
            reason: what asked it to stop.
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
        """Release the run, so that another process may open it. A second call does nothing."""
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
            raise FencedError(f"{self.path} no longer exists: the run was moved or removed; nothing was published")
        self._short = FileLock(self.path / "lock", what=f"the lock of {self.path}")
        self._short.acquire(wait_s=_FENCE_WAIT_S)
        try:
            self._check_ours()
        except BaseException:
            self._short.release()
            raise
        self._fence_depth = 1

    def _owner_mark(self) -> tuple[int, ...]:
        """Return an identifier of this version of ``attempt.json``: each version is a new file."""
        try:
            found = os.stat(self._attempt_file)  # noqa: PTH116  (at every line of metrics)
        except OSError:
            return (0,)
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _check_ours(self) -> None:
        mark = self._owner_mark()
        now = read_json(self.path / "attempt.json")
        if now is None:  # a checkpoint in the making may have made the folder anew
            raise FencedError(
                f"{self.path} no longer has an attempt.json: the run was moved or removed while this process, attempt "
                f"{self.attempt}, worked in it; nothing was published"
            )
        if now.get("run") != self._run_id or now.get("attempt") != self.attempt:
            owner = f"attempt {now.get('attempt')} (process {now.get('pid')} on host {now.get('host')})"
            raise FencedError(
                f"this process is attempt {self.attempt} of {self.path}, which {owner} owns now: nothing was "
                "published; this process is left over from an earlier attempt and should be stopped"
            )
        if (self.path / "finished.json").exists():
            raise RunDirError(f"{self.path} is finished and is never overwritten; {WAYS}")
        self._seen, self._seen_s = mark, time.monotonic()


def _agree(world: World, config: Mapping[str, Any]) -> None:
    """Raise if the ranks' configurations differ: only the main rank's would be recorded."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    digests = world.all_gather_object(digest)
    different = tuple(rank for rank, other in enumerate(digests) if other != digests[0])
    if different:
        raise DesyncError(
            f"the run's configuration differs between ranks: {list(different)} have another one than rank 0; "
            "put values of a single rank into environment=",
            ranks=different,
        )


def default_run_dir(argv: Sequence[str] | None = None) -> Path:
    """Return the run directory of this script: RANKWISE_RUN_DIR if it is set, else ``runs/<script name>``.

    A script without a name (an interactive session, ``python -c``) gets ``runs/session``; a module run by
    ``python -m package`` gets the package's name.

    Args:
        argv: the command line, script first; default ``sys.argv``.

    Raises:
        ConfigError: in a notebook, because all notebooks would share one name.
    """
    if given := os.environ.get("RANKWISE_RUN_DIR"):
        return Path(given)
    line = sys.argv if argv is None else argv
    script = Path(line[0]) if line and line[0] not in ("", "-c", "-m", "-") else Path("session")
    name = script.parent.name if script.name == "__main__.py" and script.parent.name else script.stem
    if name in _NOTEBOOKS:
        raise ConfigError(
            "a run in a notebook needs a name, as there is no script to name it after: Trainer(run='runs/NAME'); "
            "run=False writes nothing"
        )
    return Path("runs") / name
