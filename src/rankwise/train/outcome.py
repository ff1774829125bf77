"""The result of a training run, and checks whether any work is left."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwise.data.contract import BaseLoader
from rankwise.errors import RunDirError
from rankwise.train.session import Session

__all__ = ["FitResult", "found_finished", "is_done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """The result of a finished run; equal on all ranks.

    Attributes:
        num_steps: optimizer steps since the run's first start.
        metrics: the last epoch's reduced values: "loss", the step function's metrics, and "val_..." of each.
        run_dir: the run directory, None if nothing is written.
        resumed_step: the step after which this process resumed, 0 for a fresh start.
        stopped: why a hook ended the run before its last epoch; "" if none did.
        already_finished: True if the run was already finished: its model was restored, nothing was trained.
    """

    num_steps: int
    metrics: Mapping[str, float]
    run_dir: Path | None
    resumed_step: int = 0
    already_finished: bool = False
    stopped: str = ""


def is_done(session: Session, train: BaseLoader, epochs: int, limit: int | None) -> bool:
    """Whether the restored run has reached the requested number of epochs, or the limit of steps.

    Raises:
        RunDirError: it has passed them.
    """
    state, num_steps = train.state_dict(), session.progressed.num_steps
    epoch, position = int(str(state["epoch"])), int(str(state["position"]))
    if (epoch, position) > (epochs, 0) or (limit is not None and num_steps > limit):
        wanted = f"{epochs} epochs" + ("" if limit is None else f" and {limit} steps at most")
        raise RunDirError(
            f"{session.path} is further than was asked for: it has done {num_steps} steps ({epoch} whole epochs "
            f"and {position} samples), and {wanted} are wanted; ask for at least as much, or take another run="
        )
    return epoch >= epochs or num_steps == limit or bool(session.progressed.stopped)


def steps_left(train: BaseLoader, epochs: int) -> int | None:
    """Return the remaining optimizer steps of the run, for the progress line; None if unknown."""
    state, now, whole = train.state_dict(), len(train), train.num_epoch_steps
    epoch = int(str(state["epoch"]))
    if now == sys.maxsize or (whole is None and state["position"]):  # unknown length, in total or of the rest
        return None
    return now + (now if whole is None else whole) * (epochs - epoch - 1) if epoch < epochs else 0


def found_finished(session: Session, epochs: int) -> FitResult:
    """Log that the run was already finished, and return its result."""
    assert session.finished is not None
    values, num_steps = dict(session.finished["values"]), session.progressed.num_steps
    values.pop("num_steps", None)
    if session.world.is_main:
        sizes = {"epoch": epochs, "step": num_steps, "rank": session.saved_by}
        told = ", ".join(f"{number} {what}{'s' * (number != 1)}" for what, number in sizes.items())
        print(  # noqa: T201  (the answer to the user's command, whatever is shown on the way)
            f"run {session.path} is finished ({told}): its "
            "model was restored, nothing was trained; --fresh, RANKWISE_FRESH=1 or another name trains anew",
            flush=True,
        )
    return FitResult(
        num_steps=num_steps,
        metrics=values,
        run_dir=session.path,
        resumed_step=num_steps,
        already_finished=True,
        stopped=session.progressed.stopped,
    )
