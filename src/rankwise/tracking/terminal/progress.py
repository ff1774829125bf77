"""`Progress`: one live line on a terminal, plain lines elsewhere; main rank only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rankwise.errors import ConfigError
from rankwise.tracking.terminal.live import LiveLine
from rankwise.tracking.terminal.meter import Meter, format_bytes, format_seconds, peak_memory

if TYPE_CHECKING:
    from rankwise.world import World

__all__ = ["Progress"]

_LIVE_EVERY_S = 0.2


class Progress:
    """Shows the progress of a run. A context manager; not a collective, no communication.

    Args:
        world: decides which rank is the main rank.
        total_steps: steps of the whole run, for the bar and the time left; None if unknown.
        epochs: epochs of the whole run; None if unknown.
        plain_every_s: seconds between plain lines if the output is no terminal.
        file: where to write; default stderr.
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
        self._active = world.is_main
        self._total_steps = total_steps
        self._epochs = epochs
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._meter = Meter(clock())
        self._every_s = plain_every_s
        self._drawn_s: float | None = None
        self._now: dict[str, Any] = {"step": None, "epoch": None, "loss": None}
        self._live: LiveLine | None = None

    def __enter__(self) -> Self:
        self._meter = Meter(self._clock())
        if self._active and self._file.isatty():
            self._live = LiveLine(self._file)
            self._every_s = _LIVE_EVERY_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active and self._now["step"] is not None and not self._is_drawn():
            self._draw()
        if self._live is not None:
            self._live.close()
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

    def say(self, text: str) -> None:
        """Print a separate line, above the live line if there is one."""
        if not self._active:
            return
        if self._live is not None:
            self._live.say(text)
        else:
            self._file.write(text + "\n")
            self._file.flush()

    def _is_drawn(self) -> bool:
        return self._live is None and self._drawn_step == self._now["step"]

    def _draw(self) -> None:
        self._drawn_s = self._clock()
        self._drawn_step = self._now["step"]
        if self._live is None:
            self.say("  ".join(text for _, text in self._fields()))
            return
        (_, head), *tail = self._fields()
        share = min(1.0, self._now["step"] / self._total_steps) if self._total_steps else None
        self._live.draw(head, tail, share)

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
