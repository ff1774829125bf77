"""`Tracker`: the numbers of a run, written by the main rank alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rankwise.errors import ConfigError
from rankwise.tracking.jsonl import JsonlSink
from rankwise.tracking.metrics_file import RESERVED
from rankwise.tracking.run_dir import RunDir
from rankwise.tracking.sink import Sink
from rankwise.tracking.verdict import on_main, world_or_current

if TYPE_CHECKING:
    from rankwise.world import World

__all__ = ["Tracker"]


class Tracker:
    """Takes numbers at log steps and hands them to its sinks, on the main rank; does nothing on the others.

    Reduce the numbers first (`rankwise.metrics.reduce`, which is a collective); `log` itself never communicates, so
    calling it on one rank only is fine.

    Args:
        run_dir: the run, or a folder for a tracker without one (then nothing fences it).
        world: default ``World.current()``. Every rank must construct the tracker.
        sinks: "jsonl", or any object with the methods of `Sink`. The JSON lines are always written.
        tensorboard: also write event files into ``<run>/tensorboard``.

    Raises:
        ConfigError: an unknown sink.
        MissingExtraError: `tensorboard` without the packages. Raised on every rank.
    """

    def __init__(
        self,
        run_dir: RunDir | str | Path,
        *,
        world: World | None = None,
        sinks: Sequence[Literal["jsonl"] | Sink] = ("jsonl",),
        tensorboard: bool = False,
    ) -> None:
        for sink in sinks:
            if sink != "jsonl" and not isinstance(sink, Sink):
                raise ConfigError(f"a sink is 'jsonl' or an object with start, log and close; got {sink!r}")
        world = world_or_current(world)
        self._sinks: list[Sink] = []
        self._attempt = 1
        self._started = False
        on_main(world, lambda: self._open(run_dir, sinks, tensorboard=tensorboard))

    def start_attempt(self, restored_step: int | None) -> None:
        """Say where this attempt goes on: lines of earlier attempts past `restored_step` are superseded.

        Call it once, before the first `log`; a tracker that was not told logs as if it began at nothing.

        Args:
            restored_step: step of the restored checkpoint; None when the training starts from nothing.
        """
        self._started = True
        for sink in self._sinks:
            sink.start(self._attempt, restored_step)

    def log(self, step: int, values: Mapping[str, Any], **tags: Any) -> None:
        """Write the numbers of one log step. Main rank only, a no-op elsewhere; not a collective.

        Args:
            step: optimizer steps done.
            values: number by name; NaN and infinities are kept. A tensor of one element is read (which waits for its
                device).
            **tags: what tells this line from others of the step: ``epoch=3``, ``phase="val"``. JSON scalars.

        Raises:
            ConfigError: a value is not a number, or a name is one of the file's own.
            FencedError: a newer attempt owns the run.
        """
        if not self._sinks:
            return
        numbers = {name: _number(name, value) for name, value in values.items()}
        _check_names([*numbers, *tags])
        _check_tags(tags)
        if not self._started:
            self.start_attempt(None)
        for sink in self._sinks:
            sink.log(int(step), numbers, tags)

    def close(self) -> None:
        """Close the sinks. Calling it twice is fine."""
        while self._sinks:
            self._sinks.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, run_dir: RunDir | str | Path, sinks: Sequence[Any], *, tensorboard: bool) -> None:
        if isinstance(run_dir, RunDir):
            folder = run_dir.path
            lines = JsonlSink(run_dir.metrics, attempt=run_dir.attempt, fence=run_dir.fence)
        else:
            folder = Path(run_dir)
            folder.mkdir(parents=True, exist_ok=True)
            lines = JsonlSink(folder / "metrics.jsonl")
        self._attempt = lines.attempt
        opened: list[Sink] = [lines, *(sink for sink in sinks if sink != "jsonl")]
        if tensorboard:
            from rankwise.tracking.tensorboard import TensorBoardSink

            opened.append(TensorBoardSink(folder / "tensorboard"))
        self._sinks = opened


def _number(name: str, value: Any) -> float | int:
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise ConfigError(f"the value of {name!r} is not one number but {type(value).__name__} of many") from error
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    raise ConfigError(
        f"the value of {name!r} is no number but {value!r}; text belongs into tags: log(step, {{...}}, tag=...)"
    )


def _check_tags(tags: Mapping[str, Any]) -> None:
    for name, value in tags.items():
        if not (
            value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))
        ):
            raise ConfigError(f"the tag {name!r} is {value!r}; tags are strings, finite numbers, bools or None")


def _check_names(names: Sequence[str]) -> None:
    taken = sorted({name for name in names if name in RESERVED or names.count(name) > 1})
    if taken:
        raise ConfigError(
            f"names that a metrics line uses itself, or that stand twice: {', '.join(taken)}; rename them "
            f"(taken: {', '.join(RESERVED)})"
        )
