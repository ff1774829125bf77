"""`Progress`: one live line on a terminal, plain lines elsewhere; main rank only. `Meter` computes its rates."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rankwise.errors import ConfigError
from rankwise.tracking.terminal.live import LiveLine

if TYPE_CHECKING:
    from rankwise.world import World

_LIVE_EVERY_S = 0.2


class Progress:
    """Shows the progress of a run. A context manager; not a collective, no communication.

    It never ends a run: once it cannot write (a full disk, a terminal that was closed), nothing more is shown.

    Args:
        world: decides which rank is the main rank.
        total_steps: steps of the whole run, for the bar and the time left; None if unknown.
        epochs: epochs of the whole run; None if unknown.
        plain_every_s: seconds between plain lines if the output is no terminal.
        file: where to write; default stderr, if it is open.
        clock: seconds, monotonic.

    Raises:
        ConfigError: a total is negative or `plain_every_s` is not above 0.
    """

    def __init__(
        self,
        world: World,
        *,
        total_steps: int | None = None,
        epochs: int | None = None,
        plain_every_s: float = 10.0,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (total_steps or 0) < 0 or (epochs or 0) < 0 or plain_every_s <= 0:
            raise ConfigError(
                "progress needs total_steps >= 0, epochs >= 0 and plain_every_s > 0, got "
                f"{total_steps}, {epochs} and {plain_every_s}"
            )
        self._file: Any = sys.stderr if file is None else file
        self._active = world.is_main and self._file is not None  # without a stderr (`2>&-`) nothing is shown
        self._total_steps = total_steps
        self._epochs = epochs
        self._clock = clock
        self._meter = Meter(clock())
        self._every_s = plain_every_s
        self._drawn_s: float | None = None
        self._now: dict[str, Any] = {"step": None, "epoch": None, "loss": None}
        self._live: LiveLine | None = None

    def __enter__(self) -> Self:
        self._meter = Meter(self._clock())
        if self._active:
            self._write(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active and self._now["step"] is not None and not self._is_drawn():
            self._draw()
        if self._live is not None:
            self._write(self._live.close)
            self._live = None

    def update(
        self, step: int, *, epoch: int | None = None, loss: Any = None, samples: int = 0, wait_s: float = 0.0
    ) -> None:
        """Report that `step` optimizer steps are done. Cheap: the line is drawn at most a few times a second.

        Args:
            step: optimizer steps done, over all attempts.
            epoch: epoch in progress, from 0; shown from 1.
            loss: last known loss; a tensor is read only when the line is drawn. None keeps the previous one.
            samples: samples of all ranks since the last update.
            wait_s: seconds that this rank waited for data since the last update.
        """
        if not self._active:
            return
        now_s = self._clock()
        if self._now["step"] is None:
            self._meter.start_at(max(0, step - 1))
        self._meter.add(now_s, samples=samples, wait_s=wait_s, step=step)
        self._now["step"] = step
        self._now["epoch"] = self._now["epoch"] if epoch is None else epoch
        self._now["loss"] = self._now["loss"] if loss is None else loss
        if self._drawn_s is None or now_s - self._drawn_s >= self._every_s:
            self._draw()

    def print(self, text: str) -> None:
        """Print a separate line, above the live line if there is one."""
        if not self._active:
            return
        if self._live is not None:
            self._write(self._live.print, text)
        else:
            self._write(self._file.write, text + "\n")
            self._write(self._file.flush)

    def _open(self) -> None:
        if self._file.isatty():
            self._live = LiveLine(self._file)
            self._every_s = _LIVE_EVERY_S

    def _write(self, write: Callable[..., Any], *values: Any) -> None:
        """Write, and stop at an error: on the main rank alone it would leave the others waiting in a collective."""
        if self._active:
            try:
                write(*values)
            except (OSError, ValueError):  # ValueError: the file was closed
                self._active = False

    def _is_drawn(self) -> bool:
        return self._live is None and self._drawn_step == self._now["step"]

    def _draw(self) -> None:
        self._drawn_s = self._clock()
        self._drawn_step = self._now["step"]
        if self._live is None:
            self.print("  ".join(text for _, text in self._fields()))
            return
        (_, head), *tail = self._fields()
        share = min(1.0, self._now["step"] / self._total_steps) if self._total_steps else None
        self._write(self._live.draw, head, tail, share)

    def _fields(self) -> list[tuple[int, str]]:
        """Return (rank, text) in display order; on a narrow terminal, high ranks are dropped first."""
        step, epoch, loss = self._now["step"], self._now["epoch"], self._now["loss"]
        fields: list[tuple[int, str]] = []
        if epoch is not None:
            fields.append((0, f"epoch {epoch + 1}" + (f"/{self._epochs}" if self._epochs is not None else "")))
        fields.append((0, f"step {step}" + (f"/{self._total_steps}" if self._total_steps is not None else "")))
        if loss is not None:
            fields.append((1, f"loss {float(loss):.4g}"))
        fields.append((2, f"{self._meter.samples_per_s:,.0f} samples/s"))
        fields.extend((5, f"{name} {format_bytes(peak)}") for name, peak in peak_memory().items())
        fields.append((4, f"wait {self._meter.wait_share:.0%}"))
        if self._total_steps is not None:
            fields.append((3, f"left {format_seconds(self._meter.eta_s(self._total_steps))}"))
        return fields


# Rates average over this many updates: enough to be stable, few enough to show a slow-down within seconds.
_WINDOW = 50


class Meter:
    """Counts samples and seconds of the recent past.

    Args:
        now_s: the clock at the start, in seconds.
    """

    def __init__(self, now_s: float) -> None:
        self._marks: deque[tuple[float, int, float, int]] = deque([(now_s, 0, 0.0, 0)], maxlen=_WINDOW + 1)

    def add(self, now_s: float, *, samples: int, wait_s: float, step: int) -> None:
        """Count one update: samples and seconds spent waiting for data since the last one."""
        _, all_samples, all_wait_s, _ = self._marks[-1]
        self._marks.append((now_s, all_samples + samples, all_wait_s + wait_s, step))

    def start_at(self, step: int) -> None:
        """Set the first step, so that the rate of a resumed run is right."""
        now_s, samples, wait_s, _ = self._marks.pop()
        self._marks.append((now_s, samples, wait_s, step))

    @property
    def samples_per_s(self) -> float:
        """Return the samples per second over the window."""
        return (self._marks[-1][1] - self._marks[0][1]) / self._span_s

    @property
    def wait_share(self) -> float:
        """Return the share of the time spent waiting for data, 0 to 1."""
        return min(1.0, (self._marks[-1][2] - self._marks[0][2]) / self._span_s)

    def eta_s(self, total_steps: int | None) -> float | None:
        """Return the seconds for the remaining steps, None if unknown."""
        done = self._marks[-1][3] - self._marks[0][3]
        if total_steps is None or done <= 0:
            return None
        return max(0, total_steps - self._marks[-1][3]) * self._span_s / done

    @property
    def _span_s(self) -> float:
        return max(self._marks[-1][0] - self._marks[0][0], 1e-9)


def peak_memory() -> dict[str, int]:
    """Return the peak memory of this process in bytes: "ram", and "gpu" if torch has used a CUDA device."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"ram": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peak["gpu"] = int(torch.cuda.max_memory_allocated())
    return peak


def format_bytes(num_bytes: float) -> str:
    """Return ``"1.2 GiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def format_seconds(seconds: float | None) -> str:
    """Return ``"1:02:03"`` or ``"2:03"``; ``"?"`` for None."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
