"""A training run on disk, seen by the loop: open, restore, log, save, finish. With ``run=False`` nothing is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rankwise.checkpoint import Checkpointer, RandomState, Replicated, RestoreReport
from rankwise.data.contract import BatchLoader, Stateful
from rankwise.errors import ConfigError
from rankwise.tracking import RunDir, Tracker, default_run_dir
from rankwise.train.parts import Progressed, seed_training
from rankwise.train.record import environment_record
from rankwise.train.wrapping import unwrapped
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Resume", "RunChoice", "Session"]

Resume = Literal["auto", "must", "never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """Where a run is written and whether it may continue one.

    Attributes:
        path: run directory; None = RANKWISE_RUN_DIR, else ``runs/<script>``; False writes nothing.
        resume: None = RANKWISE_RESUME, else "auto".
        tensorboard: also write TensorBoard event files.
        keep: how many checkpoints stay.
    """

    path: str | os.PathLike[str] | Literal[False] | None = None
    resume: Resume | None = None
    tensorboard: bool = False
    keep: int = 3

    def __post_init__(self) -> None:
        if self.chosen_resume not in ("auto", "must", "never"):
            raise ConfigError(f"resume is 'auto', 'must' or 'never', got {self.chosen_resume!r}")

    @property
    def chosen_resume(self) -> Resume:
        """What was asked for, by argument or by the launcher."""
        return self.resume or cast("Resume", os.environ.get("RANKWISE_RESUME", "auto"))


@dataclass(slots=True, kw_only=True)
class Session:
    """The run directory, tracker and checkpoints of one `fit`, and how far the run is."""

    world: World
    parts: dict[str, Stateful]
    run_dir: RunDir | None = None
    tracker: Tracker | None = None
    checkpointer: Checkpointer | None = None
    progressed: Progressed = field(default_factory=Progressed)
    resumed_step: int = 0
    resumed_text: str = ""
    last_values: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(
        cls, choice: RunChoice, *, world: World, record: Mapping[str, Any], parts: Mapping[str, Stateful]
    ) -> Iterator[Session]:
        """Open the run directory (every rank calls it) and close everything at the end, whatever happens."""
        session = cls(world=world, parts=dict(parts))
        session.parts["progress"] = session.progressed
        if choice.path is False:
            yield session
            return
        path = choice.path or os.environ.get("RANKWISE_RUN_DIR") or default_run_dir()
        with RunDir.open(
            Path(path),
            config=record,
            environment=environment_record(world),
            world=world,
            resume=choice.chosen_resume,
            fresh=os.environ.get("RANKWISE_FRESH") == "1",
        ) as run_dir:
            session.run_dir = run_dir
            if run_dir.finished is None:
                session.tracker = Tracker(run_dir, world=world, tensorboard=choice.tensorboard)
                session.checkpointer = Checkpointer(
                    run_dir.checkpoints, world=world, keep=choice.keep, fence=run_dir.fence, attempt=run_dir.attempt
                )
            try:
                yield session
            finally:
                if session.tracker is not None:
                    session.tracker.close()

    @property
    def path(self) -> Path | None:
        """The run directory, None if nothing is written."""
        return None if self.run_dir is None else self.run_dir.path

    @property
    def finished(self) -> Mapping[str, Any] | None:
        """What the run came to when it was finished before, None otherwise."""
        return None if self.run_dir is None else self.run_dir.finished

    def restore(self) -> None:
        """Load the newest good checkpoint into the parts, or start afresh. Every rank calls it."""
        seed_training(self.world, 0)
        report = None if self.checkpointer is None else self.checkpointer.restore(self.parts)
        if report is not None:
            self.resumed_step = self.progressed.num_steps
            self.last_values = dict(cast("Mapping[str, float]", report.meta.get("values", {})))
            self.resumed_text = self._continued(report)
            if report.rederived:
                seed_training(self.world, self.resumed_step)
        if self.tracker is not None:
            self.tracker.start_attempt(self.resumed_step)

    def _continued(self, report: RestoreReport) -> str:
        """Say what is continued, and what another world size changes."""
        assert self.run_dir is not None
        text = f"continuing {self.run_dir.path} after step {report.step} (attempt {self.run_dir.attempt})"
        if report.world_size != self.world.world_size:
            text += f"; it was saved by {report.world_size} ranks and goes on with {self.world.world_size}"
        if report.rederived:
            text += f", so each rank derives anew: {', '.join(report.rederived)}"
        return text

    def log(self, values: Mapping[str, float], *, epoch: int) -> None:
        """Write one line of reduced numbers for the current step (the main rank does)."""
        if self.tracker is not None:
            self.tracker.log(self.progressed.num_steps, values, epoch=epoch)

    def save(self, values: Mapping[str, float]) -> None:
        """Publish a checkpoint of the completed step. Every rank calls it."""
        self.last_values = values
        if self.checkpointer is not None:
            self.checkpointer.save(self.progressed.num_steps, self.parts, meta={"values": dict(values)})

    def finish(self, values: Mapping[str, float]) -> None:
        """Record the final values: from now on the run is never written again. Every rank calls it."""
        error = None
        if self.run_dir is not None and self.world.is_main:
            try:
                self.run_dir.finish({"num_steps": self.progressed.num_steps, **_finite(values)})
            except Exception as caught:  # noqa: BLE001  (raised on every rank below)
                error = caught
        self.world.raise_together(error)


def training_parts(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, train: BatchLoader
) -> dict[str, Stateful]:
    """Return what a checkpoint of a training run holds, beside the trainer's own numbers."""
    parts: dict[str, Stateful] = {
        "model": Replicated(unwrapped(model)),
        "optimizer": Replicated(optimizer),
        "order": Replicated(train),
        "random": RandomState(),
    }
    if scheduler is not None:
        parts["scheduler"] = Replicated(scheduler)
    return parts


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN and no infinity."""
    return {name: value if abs(value) < float("inf") else None for name, value in values.items()}
