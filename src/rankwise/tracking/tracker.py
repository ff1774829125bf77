"""`Tracker`: log the numbers of a run, on the main rank only."""

from __future__ import annotations

import contextlib
import math
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from rankwise._process.lock import lock_folder
from rankwise.errors import ConfigError, RunDirError
from rankwise.tracking.config import as_json
from rankwise.tracking.files import read_json, write_json
from rankwise.tracking.jsonl import JsonlSink
from rankwise.tracking.metrics_file import RESERVED
from rankwise.tracking.run_dir import RunDir
from rankwise.tracking.services.mlflow import MlflowSink
from rankwise.tracking.services.outbox import Outbox, RunFacts, Service, Table, is_nonfinite
from rankwise.tracking.services.tensorboard import TensorBoardSink
from rankwise.tracking.services.wandb import WandbSink
from rankwise.tracking.verdict import on_main
from rankwise.world import World

SinkName = Literal["jsonl", "tensorboard", "mlflow", "wandb"]
_NAMES: tuple[SinkName, ...] = ("jsonl", "tensorboard", "mlflow", "wandb")


@runtime_checkable
class Sink(Protocol):
    """A destination for numbers. Called on the main rank only, from one thread.

    If it also has a method `table`, it receives the tables.
    """

    def start(self, attempt: int, restored_step: int | None) -> None:
        """Begin an attempt: values logged past `restored_step` become invalid (None: all values)."""
        ...

    def log(self, step: int, values: Mapping[str, float], tags: Mapping[str, Any]) -> None:
        """Log the numbers of one step. Values may be non-finite."""
        ...

    def close(self) -> None:
        """Flush buffered values. Called once."""
        ...


class Tracker:
    """On the main rank, passes the numbers of each log step to its sinks; on other ranks it does nothing.

    Reduce the numbers first with `rankwise.metrics.reduce`, which is a collective. `log` itself does not communicate,
    so you may call it on one rank only.

    Args:
        run_dir: the run, or a folder for a tracker without a run (then there is no fence).
        world: default ``World.current()``. Every rank must construct the tracker.
        sinks: one or several of "jsonl", "tensorboard", "mlflow", "wandb", a `MlflowSink` or `WandbSink` with your own
            settings, any other `Service`, or any object with the methods of `Sink`. JSON lines are always written.
            Services get their lines from an `Outbox`.
        tensorboard: also write event files into ``<run>/tensorboard``; the same as the sink "tensorboard".
        hold_s: seconds that a JSON line may be buffered, to be written together with others; `flush` and `close` write
            all. 0 writes each line at once.

    Raises:
        ConfigError: a sink is unknown.
        RunDirError: another process logs into this folder.
        MissingExtraError: a sink's package is not installed. Raised on every rank.
    """

    def __init__(
        self,
        run_dir: RunDir | str | Path,
        *,
        world: World | None = None,
        sinks: Sequence[SinkName | Sink | Service] = ("jsonl",),
        tensorboard: bool = False,
        hold_s: float = 0.0,
    ) -> None:
        for sink in sinks:
            if sink not in _NAMES and not isinstance(sink, (Sink, Service)):
                names = ", ".join(map(repr, _NAMES))
                raise ConfigError(
                    f"a sink must be {names}, a service, or an object with start, log and close; got {sink!r}"
                )
        world = World.current() if world is None else world
        self._sinks: list[Sink] = []
        self._outboxes: list[Outbox] = []
        self._run = run_dir if isinstance(run_dir, RunDir) else None
        self._folder = run_dir.path if isinstance(run_dir, RunDir) else Path(run_dir)
        self._fence = contextlib.nullcontext if self._run is None else self._run.fence
        self._attempt = 1
        self._lines: JsonlSink | None = None
        self._unlock: Callable[[], Any] = contextlib.nullcontext
        self._started = False
        self._ids: dict[str, str] = {}
        self._known: dict[str, Any] = {}
        self._checked: list[str] = []  # names of the last line
        wanted = [*sinks, "tensorboard"] if tensorboard and "tensorboard" not in sinks else list(sinks)
        on_main(world, lambda: self._open(wanted, hold_s))

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the run's curves, by service title, for services that have answered; empty on other ranks."""
        return {**self._ids, **{box.service.title: box.id for box in self._outboxes if box.id}}

    def start_attempt(self, restored_step: int | None, *, ids: Mapping[str, str] | None = None) -> None:
        """Set where this attempt continues: lines of earlier attempts past `restored_step` become invalid.

        Call it once, before the first `log`; without it the tracker logs as if training started from scratch.

        Args:
            restored_step: step of the restored checkpoint; None if training starts from scratch.
            ids: the value of `ids` when that checkpoint was written; for a service that is not in it, the id in the run
                directory is used.
        """
        self._started = True
        self._ids |= ids or {}
        for box in self._outboxes:
            box.known_id = self._ids.get(box.service.title)
        for sink in self._sinks:
            sink.start(self._attempt, restored_step)

    def log(self, step: int, values: Mapping[str, Any], **tags: Any) -> None:
        """Log the numbers of one step. Main rank only, a no-op elsewhere; not a collective.

        Args:
            step: optimizer steps done.
            values: number by name; NaN and infinities are kept. Reading a tensor of one element synchronises with its
                device.
            **tags: JSON scalars that distinguish this line from others of the step: ``epoch=3``, ``phase="val"``.

        Raises:
            ConfigError: a value is not a number, or a name is reserved.
            FencedError: a newer attempt owns the run.
        """
        if not self._sinks:
            return
        numbers = {name: value if type(value) is float else _number(name, value) for name, value in values.items()}
        names = [*numbers, *tags]
        if names != self._checked:  # most lines have the same names as the previous line
            _check_names(names)
            self._checked = names
        _check_tags(tags)
        if not self._started:
            self.start_attempt(None)
        for sink in self._sinks:
            sink.log(int(step), numbers, tags)
        if self._outboxes:
            self._note_ids()

    def table(self, step: int, name: str, columns: Mapping[str, Any]) -> None:
        """Write a small table to ``<run>/tables/<name>/`` and pass it to sinks that accept tables. Not a collective.

        Main rank only, a no-op elsewhere.

        Args:
            step: optimizer steps done.
            name: name of the table.
            columns: a value for each row, by column: one-dimensional lists, arrays or tensors of numbers or texts. NaN
                and infinities are kept: in the file as null, with their kind by row under ``"nonfinite"``.

        Raises:
            ConfigError: the columns have different lengths, or values that JSON does not support.
            FencedError: a newer attempt owns the run.
        """
        if not self._sinks:
            return
        listed = {
            key: [
                value if is_nonfinite(value) else as_json(value, what=f"the column {key!r}")
                for value in _listed(values)
            ]
            for key, values in columns.items()
        }
        lengths = {key: len(values) for key, values in listed.items()}
        if len(set(lengths.values())) != 1 or not name or "/" in name or name.startswith("."):
            raise ConfigError(f"a table needs a name and columns of equal length, got {name!r} with {lengths}")
        made = Table(name=name, step=int(step), columns=listed)
        folder = self._folder / "tables" / name
        with self._fence():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / f"step-{made.step:08}.json", _table_record(made))
        for sink in self._sinks:
            if hasattr(sink, "table"):
                sink.table(made)

    def flush(self) -> None:
        """Write the buffered JSON lines. Main rank only, a no-op elsewhere; not a collective.

        Raises:
            FencedError: a newer attempt owns the run.
        """
        if self._lines is not None and self._sinks:
            self._lines.flush()

    def close(self) -> None:
        """Close the sinks; waits a few seconds for services. A second call does nothing."""
        with contextlib.ExitStack() as stack:  # the first sink, the JSON lines, last; even if the others raise
            stack.callback(self._unlock)
            while self._sinks:
                stack.callback(self._sinks.pop(0).close)
        # do not write to a run that is finished or owned by another attempt
        with contextlib.suppress(RunDirError):
            if self._outboxes:
                self._note_ids()
        self._outboxes = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, sinks: Sequence[Any], hold_s: float) -> None:
        run, folder = self._run, self._folder
        if run is None:
            folder.mkdir(parents=True, exist_ok=True)
            self._unlock = weakref.finalize(self, lock_folder(folder))
        self._lines = lines = JsonlSink(folder / "metrics.jsonl", run, hold_s=hold_s)
        self._attempt = lines.attempt
        self._known = read_json(folder / "trackers.json") or {}
        self._ids = dict(self._known.get("ids", {}))
        opened: list[Sink] = [lines]
        made: dict[str, Callable[[], Service]] = {
            "tensorboard": lambda: TensorBoardSink(folder / "tensorboard"),
            "mlflow": MlflowSink,
            "wandb": WandbSink,
        }
        for sink in sinks:
            if isinstance(sink, (str, Service)):
                if sink != "jsonl":
                    service = made[sink]() if isinstance(sink, str) else sink
                    self._outboxes.append(Outbox(service, self._facts, self._is_done))
            else:
                opened.append(sink)
        self._sinks = [*opened, *self._outboxes]

    def _is_done(self) -> bool:
        """Whether the run is finished; a tracker without a run counts as finished when it is closed."""
        return self._run is None or self._run.finished is not None

    def _facts(self, restored_step: int | None) -> RunFacts:
        """Return the facts for the services, from the run directory."""
        record = {} if self._run is None else read_json(self._folder / "config.json") or {}
        run_id = record.get("run") or self._known.setdefault("run", uuid.uuid4().hex)
        return RunFacts(
            run_id=run_id,
            folder=self._folder.absolute(),
            attempt=self._attempt,
            restored_step=restored_step,
            config=record.get("config", {}),
            environment=record.get("environment", {}).get(str(self._attempt), {}),
        )

    def _note_ids(self) -> None:
        """Record the services' ids once they are known: services may answer long after the start."""
        known = {**self._known, "ids": self.ids}
        if known != self._known and (known["ids"] or "run" in known):
            with self._fence():
                write_json(self._folder / "trackers.json", known)
            self._known = known


def _table_record(table: Table) -> dict[str, Any]:
    odd = {
        key: {str(row): str(value) for row, value in enumerate(cells) if is_nonfinite(value)}
        for key, cells in table.columns.items()
    }
    odd = {key: found for key, found in odd.items() if found}
    return {"step": table.step, "columns": table.json_columns, **({"nonfinite": odd} if odd else {})}


def _listed(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _number(name: str, value: Any) -> float | int:
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise ConfigError(f"the value of {name!r} must be one number, not a {type(value).__name__}") from error
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    raise ConfigError(
        f"the value of {name!r} must be a number, got {value!r}; log text as a tag: log(step, {{...}}, tag=...)"
    )


def _check_tags(tags: Mapping[str, Any]) -> None:
    for name, value in tags.items():
        if not (
            value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
        ):
            raise ConfigError(f"the tag {name!r} is {value!r}; tags must be strings, finite numbers, bools or None")


def _check_names(names: Sequence[str]) -> None:
    if odd := [name for name in names if not isinstance(name, str)]:
        raise ConfigError(f"names of metrics must be strings, got {odd[0]!r}: pass str(...)")
    if len({*names, *RESERVED}) < len(names) + len(RESERVED):
        taken = sorted({name for name in names if name in RESERVED or names.count(name) > 1})
        raise ConfigError(
            f"these names are reserved or occur twice: {', '.join(taken)}; rename them "
            f"(reserved: {', '.join(RESERVED)})"
        )
