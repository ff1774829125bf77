"""Weights & Biases as a tracking service."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from rankwise.errors import MissingExtraError
from rankwise.tracking.files import read_json, write_json
from rankwise.tracking.services.outbox import Line, RunFacts, Table

_HELD = 10_000  # lines in memory that wandb-core may not have stored yet; a line of ten numbers is about 2 kB
_START_S = 8.0  # of an online run; with a start offline after it shorter than `Outbox.close` waits
_log = logging.getLogger("rankwise.tracking")


@dataclass(slots=True, kw_only=True)
class WandbSink:
    """Curves, configuration and code version in W&B; give it to `Tracker(sinks=)` or `Trainer(trackers=)`.

    Offline by default: every attempt writes a folder in ``<run>/wandb``, and ``wandb sync`` uploads all of them into
    one run. Steps that an earlier attempt has logged are not logged again. An online run that cannot be started within
    8 s (``settings={"init_timeout": ...}``, WANDB_INIT_TIMEOUT) goes on offline. If W&B's process dies, the run is
    opened again, and the lines that it had not stored are logged again.

    Attributes:
        project: None = WANDB_PROJECT, else W&B's own default.
        mode: "offline" or "online"; None = WANDB_MODE, else "offline".
        name: name of the W&B run; None = that of the run directory.
        settings: additional settings for ``wandb.Settings``.
    """

    project: str | None = None
    mode: Literal["offline", "online"] | None = None
    name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = field(init=False, default="W&B")
    _run: Any = field(init=False, default=None, repr=False)
    _first: tuple[int, list[str]] = field(init=False, default=(-1, []), repr=False)  # where this part begins
    _open: Any = field(init=False, default=None, repr=False)  # opens another part
    _held: deque[Line] = field(init=False, default_factory=lambda: deque(maxlen=_HELD), repr=False)
    _bookmark: Path | None = field(init=False, default=None)
    _step: int = field(init=False, default=-1)
    _names: list[str] = field(init=False, default_factory=list, repr=False)

    def load(self) -> None:
        """Import W&B.

        Raises:
            MissingExtraError: W&B is not installed.
        """
        try:
            import wandb as _  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                f"the tracker 'wandb' needs W&B ({error}); install it with pip install 'rankwise[wandb]'"
            ) from error

    def connect(self, run: RunFacts, known_id: str | None) -> str:
        """Begin this attempt's part of the run's curves."""
        run_id = known_id or run.run_id
        folder = run.folder / "wandb"
        folder.mkdir(exist_ok=True)
        self._bookmark = folder / "sent.json"
        sent = (read_json(self._bookmark) or {}) if run.attempt > 1 else {}
        if sent.get("id") == run_id:
            self._step, self._names = sent["step"], sent["names"]
        self._open = partial(self._opened, run, run_id)
        self._run = self._open()
        self._step = max(self._step, int(self._run.step) - 1)
        self._first = (self._step, self._names)
        return run_id

    def _opened(self, run: RunFacts, run_id: str) -> Any:
        import wandb

        mode = self.mode or os.environ.get("WANDB_MODE", "offline")
        try:
            return self._started(run, run_id, mode)
        except Exception as error:
            if mode != "online" or wandb.run is not None:  # the user's own run, which `teardown` would end
                raise
            _log.warning(
                "W&B cannot be reached; training continues, and the lines of this attempt stay in %s: upload them with "
                "`wandb sync` (for a slow server set WANDB_INIT_TIMEOUT to more than 8 seconds): %s: %.300s",
                *(run.folder / "wandb", type(error).__name__, error),
            )
            _teardown()  # it still holds the id, and the exit of the process would wait for it
            return self._started(run, run_id, "offline")

    def _started(self, run: RunFacts, run_id: str, mode: str) -> Any:
        import wandb

        # rankwise itself captures the console and samples this machine
        quiet: dict[str, Any] = {"console": "off", "silent": True, "x_disable_stats": True, "disable_code": True}
        if mode == "online":
            quiet["init_timeout"] = float(os.environ.get("WANDB_INIT_TIMEOUT", _START_S))
        return wandb.init(
            project=self.project or os.environ.get("WANDB_PROJECT"),
            id=run_id,
            name=self.name or run.folder.name,
            dir=str(run.folder),
            mode=cast("Any", mode),
            resume="allow",
            reinit="create_new",
            config={**run.config, f"environment of attempt {run.attempt}": dict(run.environment)},
            settings=wandb.Settings(**{**quiet, **self.settings}),
        )

    def send(self, lines: Sequence[Line]) -> None:
        """Log the lines that were not logged yet; W&B accepts steps in ascending order only."""
        self._call(lambda: self._log_lines(lines))
        self._held += lines
        assert self._bookmark is not None
        write_json(self._bookmark, {"id": self._run.id, "step": self._step, "names": self._names})

    def _log_lines(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if line.step < self._step:
                continue
            known = self._names if line.step == self._step else []
            new = {name: value for name, value in line.values.items() if name not in known}
            if new:
                self._run.log(new, step=line.step)
                self._step, self._names = line.step, [*known, *new]

    def send_table(self, table: Table) -> None:
        """Log the table; at the newest step if later steps were already logged, as W&B accepts ascending steps only."""
        import wandb

        rows = [list(row) for row in zip(*table.columns.values(), strict=True)]
        made = wandb.Table(columns=list(table.columns), data=rows)
        self._call(lambda: self._run.log({table.name: made}, step=max(table.step, self._step)))

    def finish(self, *, done: bool) -> None:
        """Flush and close this attempt's part."""
        self._call(lambda: self._run.finish(exit_code=0 if done else 1))

    def _call(self, call: Callable[[], None]) -> None:
        """Call W&B. If its process has died, open the run again, send what it had not stored, and repeat the call."""
        try:
            call()
        except Exception as error:
            # of a dead process: its socket, or the mailbox of its answers; a server that is away raises neither
            if not isinstance(error, ConnectionError) and type(error).__name__ != "MailboxClosedError":
                raise
            _log.warning(
                "the process of W&B (wandb-core) has died; training continues, and the run is opened again: %s: %.300s",
                *(type(error).__name__, error),
            )
            stored = max(_stored_steps(Path(self._run.settings.sync_file)), default=-1)
            _teardown()
            self._run = self._open()
            # a row is stored when its step is over; a server that answers knows best what has arrived
            if first := stored + 1 if self._run.offline else int(self._run.step):
                self._first = (first, [])
            self._step, self._names = self._first
            self._log_lines(list(self._held))
            call()


def _teardown() -> None:
    """End W&B's process; without one this raises, or exits with its code."""
    import wandb

    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown()


def _stored_steps(path: Path) -> Iterator[int]:
    """Yield the steps of a file of W&B, in LevelDB's log format: records with a head of 7 bytes, in 32 KiB blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, parts = path.read_bytes() if path.exists() else b"", 7, b""
    while at + 7 <= len(raw):
        if (room := -at % 32768) and room < 7:
            at += room
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        at += 7 + length
        if at > len(raw):  # cut off
            return
        parts += raw[at - length : at]
        if kind in (1, 4):  # whole, or the last part
            record, parts = Record.FromString(parts), b""
            if record.HasField("history"):
                yield record.history.step.num
