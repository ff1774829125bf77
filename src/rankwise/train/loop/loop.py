"""The loop of a run: after each step mark done, log, save; after each epoch validate and save; and its result."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rankwise import vitals
from rankwise.data.contract import BaseLoader
from rankwise.errors import Interrupted, RunDirError, StepError
from rankwise.tracking import Progress
from rankwise.train.loop.configuration import TrainOptions
from rankwise.train.loop.hooks import HookChain, HookReport
from rankwise.train.loop.session import Session
from rankwise.train.loop.validation import evaluate
from rankwise.train.step.balance import Balance
from rankwise.train.step.exact import ExactStep, StepFn
from rankwise.train.step.ledger import Ledger, NonFinite, RunningMeans, StepReport, describe_problems
from rankwise.world import World

if TYPE_CHECKING:
    import torch

_FEW_STEPS = 10  # about as many as a loader has ready
_SHOW_S = 0.1


@dataclass(slots=True, kw_only=True)
class Loop:
    """Runs the remaining epochs. Every rank runs one, over the same order.

    Attributes:
        world: this rank's world.
        step: takes one optimizer step.
        ledger: records of steps: losses, metrics, and whether they were finite.
        session: receives numbers and checkpoints, and knows the progress of the run.
        options: how often to log and to save, and when to stop.
        progress: the progress line on the main rank; None shows none.
        optimizer: its learning rate is logged.
        val: the held-out data, None without any.
        val_fn: the step function of their evaluation.
        hooks: called during the run, on every rank.
        balance: cuts the shares of each step by speed; None leaves them unchanged.
    """

    world: World
    step: ExactStep
    ledger: Ledger
    session: Session
    options: TrainOptions
    progress: Progress | None
    optimizer: torch.optim.Optimizer
    val: BaseLoader | None
    val_fn: StepFn
    hooks: HookChain
    balance: Balance | None = None
    _loss: float = field(init=False, default=math.nan)
    _saved_step: int = field(init=False, default=-1)
    _wait_s: float = field(init=False, default=0.0)  # so far, for batches
    # samples, seconds of waiting and the time: at the last log line, and when the progress line was last updated
    _logged: tuple[int, float, float] = field(init=False)
    _shown: tuple[int, float, float] = field(init=False)

    def __post_init__(self) -> None:
        num_samples = self.session.progressed.num_samples
        self._logged, self._shown = (num_samples, 0.0, time.perf_counter()), (num_samples, 0.0, -math.inf)

    def run(self, train: BaseLoader, *, first_epoch: int, epochs: int) -> Mapping[str, float]:
        """Run the epochs from `first_epoch` on and return the last epoch's values."""
        values = self.session.last_values
        if self.session.unvalidated is not None:  # all its steps were done when the run was interrupted
            values = self._end_epoch(
                self.session.unvalidated, values, is_last=first_epoch >= epochs or self._limit_reached()
            )
        for epoch in range(first_epoch, epochs):
            if self._limit_reached():
                break
            train.set_epoch(epoch)
            limit = self.options.limit_steps
            ends_within = limit is not None and self.session.progressed.num_steps + len(train) >= limit
            is_last = epoch + 1 == epochs or ends_within
            if is_last:
                train.expect_last_epoch()
            self._epoch(train, epoch)
            # a run with more steps continues an epoch that was left in its middle
            ended = int(str(train.state_dict()["epoch"])) > epoch
            trained, _ = self._reduce(self.ledger.whole, reset=ended)
            values = self._end_epoch(epoch, trained, is_last=is_last)
        return values

    def _end_epoch(self, epoch: int, trained: Mapping[str, float], *, is_last: bool) -> Mapping[str, float]:
        vitals.beat(epoch=epoch, phase="validate")
        self.session.flush()  # validation may take long
        values = dict(trained)
        if self.val is not None:
            if is_last:
                self.val.expect_last_epoch()
            try:
                held_out = evaluate(
                    self.step.model, self.val, self.val_fn, world=self.world, between=self._between_batches
                )
            except Interrupted:
                self._leave(trained, unvalidated=epoch)
            values |= {f"val_{name}": value for name, value in held_out.items()}
        self.hooks.call_together("validation_end", epoch, values)
        if self.session.tracker is not None:
            line = {f"epoch_{name}": value for name, value in values.items()}
            self.hooks.attempt(self.session.tracker.log, self.session.progressed.num_steps, line, epoch=epoch)
        self._save(values)
        self.hooks.call_together("epoch_end", epoch, values)
        if self.hooks.stop != self.session.progressed.stopped:  # requested after the epoch was saved
            self._save(dict(values))  # as new values, which may be the best ones
        if not is_last and not self._limit_reached() and self._should_stop("train"):
            self._leave(values)
        return values

    def _between_batches(self) -> None:
        if self._should_stop("validate"):
            raise Interrupted

    def _should_stop(self, where: str) -> bool:
        interruption = self.session.interruption
        return interruption is not None and interruption.should_stop(self.session.progressed.num_steps, where=where)

    def _leave(self, values: Mapping[str, float], *, unvalidated: int | None = None) -> NoReturn:
        """Save, if not yet done, and end this process, as all ranks have agreed."""
        if unvalidated is not None or self._saved_step != self.session.progressed.num_steps:
            self._save(values, unvalidated=unvalidated)
        self.session.leave()

    def _epoch(self, train: BaseLoader, epoch: int) -> None:
        # local names for everything that a step calls: each call costs, and so does an attribute of an attribute
        beat, wait, take, mark_done, keep = vitals.beat_step, vitals.wait, self.step, train.mark_done, self.ledger.keep
        progressed, interruption, clock = self.session.progressed, self.session.interruption, time.perf_counter
        heard = {} if interruption is None else interruption.received
        limit = self.options.limit_steps
        left = len(train) if limit is None else min(len(train), limit - progressed.num_steps)
        few_left, number = max(0, left - _FEW_STEPS), -1
        due = self._due(progressed.num_steps)
        asked_s = now_s = clock()
        for batches in train if self.balance is None else self.balance.steps(train):
            now_s = clock()
            self._wait_s += now_s - asked_s
            beat(epoch, progressed.num_steps)
            number += 1
            if number == few_left and self.val is not None:
                self.val.start_prefetch()
            report = take(batches)
            mark_done(report.resume)
            keep(report, batches)
            progressed.num_steps = num_steps = progressed.num_steps + 1
            progressed.num_samples += report.num_samples
            progressed.num_lost += report.num_lost
            is_time = now_s - self._shown[2] >= _SHOW_S
            if is_time:
                self._show(epoch, now_s)
            # most steps have nothing to do after them
            if num_steps >= due or is_time or heard:
                if self._is_last(report, epoch):
                    break
                due = self._due(num_steps)
            wait()
            asked_s = clock()
        self._show(epoch, now_s)

    def _due(self, num_steps: int) -> float:
        """Return the next number of steps at which `_is_last` has something to do, regardless of time."""
        options, interruption = self.options, self.session.interruption
        together = interruption is not None and self.world.world_size > 1  # all ranks must ask equally often
        if together or self.hooks.at_steps or options.asynchronous:
            return num_steps + 1
        due = math.inf if options.limit_steps is None else options.limit_steps
        for every in (options.log_every, options.save_every):
            if every is not None:
                due = min(due, num_steps + every - num_steps % every)
        return due

    def _is_last(self, report: StepReport, epoch: int) -> bool:
        """Do what is due between two steps, and return whether the run ends here."""
        options, num_steps = self.options, self.session.progressed.num_steps
        if num_steps % options.log_every == 0:
            self._log(report, epoch)
        if self.hooks.at_steps:
            self.hooks.call("step_end", report)
        if options.asynchronous:
            self.session.publish()
        if self._limit_reached():
            return True
        # the last step of an epoch is saved after its validation, so that a restart does not skip it
        if report.resume.epoch > epoch:
            return False
        if self._should_stop("train"):
            self._leave(self.session.last_values)
        if options.save_every is not None and num_steps % options.save_every == 0:
            self._save(self.session.last_values)
        return bool(self.hooks.stop)  # agreed together with the checkpoint, which records that the run stopped there

    def _show(self, epoch: int, now_s: float) -> None:
        """Update the progress line, at most about ten times per second."""
        self.ledger.settle()  # keeps the records small, however rare log lines are
        progressed, (num_samples, wait_s, _) = self.session.progressed, self._shown
        self._shown = (progressed.num_samples, self._wait_s, now_s)
        if self.progress is not None:
            self.progress.update(
                progressed.num_steps,
                epoch=epoch,
                loss=None if math.isnan(self._loss) else self._loss,
                samples=progressed.num_samples - num_samples,
                wait_s=self._wait_s - wait_s,
            )

    def _log(self, report: StepReport, epoch: int) -> None:
        num_samples, wait_s, since_s = self._logged
        self._logged = (self.session.progressed.num_samples, self._wait_s, time.perf_counter())
        elapsed_s = max(self._logged[2] - since_s, 1e-9)
        further = self.hooks.numbers("numbers")
        values, waits = self._reduce(self.ledger.recent, note=(self._wait_s - wait_s) / elapsed_s)
        self._loss = values["loss"]
        extra = {} if report.grad_norm is None else {"grad_norm": report.grad_norm}
        if (scale := self.step.loss_scale) is not None:
            extra["loss_scale"] = scale
        ours = {
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            **extra,
            "samples_per_s": (self._logged[0] - num_samples) / elapsed_s,
            "wait_share": max(waits),  # the slowest reader determines it: the others wait for it in the step
        }
        further = {**further, **self.hooks.spread}
        line = {**values, **ours, **further}
        if len(line) < len(values) + len(ours) + len(further):
            taken = {*values, *further} & ours.keys() or values.keys() & further.keys()
            raise StepError(
                f"the step function, or a hook, returned metrics named {', '.join(sorted(taken))}, but the loop logs "
                "other numbers under these names: rename them"
            )
        num_steps = self.session.progressed.num_steps
        if self.session.tracker is not None:
            self.hooks.attempt(self.session.tracker.log, num_steps, line, epoch=epoch)
        self.hooks.call("log", num_steps, line)

    def _reduce(
        self, means: RunningMeans, *, reset: bool = True, note: Any = None
    ) -> tuple[dict[str, float], Sequence[Any]]:
        """Reduce, and check the steps since the last check in the same collective, to save one."""
        report = self.hooks.report(numbers=note is not None)
        self.ledger.settle()
        values, noted = means.reduce_noted(self.world, (self.ledger.first_problem(), report, note), reset=reset)
        problems, reports, notes = zip(*noted, strict=True)
        self._settle(problems, reports)
        return values, notes

    def _settle(self, problems: Sequence[NonFinite | None], reports: Sequence[HookReport]) -> None:
        if problems.count(None) < len(problems):
            raise StepError(describe_problems(problems, self.session.newest_text, self.step.model))
        self.hooks.settle(reports)

    def _save(self, values: Mapping[str, float], *, unvalidated: int | None = None) -> None:
        vitals.beat(phase="checkpoint")
        self.ledger.settle()
        # at a log step, too: a hook may have failed after its line, on one rank alone, and this step must not be saved
        news = self.world.all_gather_object((self.ledger.first_problem(), self.hooks.report()))
        self._settle(*zip(*news, strict=True))
        step = self.session.progressed.num_steps
        self.hooks.call_together("checkpoint_begin", step)
        self.session.progressed.stopped = self.hooks.stop
        self.session.save(values, unvalidated=unvalidated)
        self._saved_step = step
        self.hooks.call_together("checkpoint_end", step)

    def _limit_reached(self) -> bool:
        limit = self.options.limit_steps
        return bool(self.hooks.stop) or (limit is not None and self.session.progressed.num_steps >= limit)


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
            f"{session.path} is past the requested end: it has done {num_steps} steps ({epoch} whole epochs and "
            f"{position} samples), but {wanted} were requested; request at least as much, or use another run="
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
    num_steps = session.progressed.num_steps
    recorded = {name: value for name, value in session.finished["values"].items() if name != "num_steps"}
    values = {name: math.nan if value is None else value for name, value in recorded.items()}
    if session.world.is_main:
        sizes = {"epoch": epochs, "step": num_steps, "rank": session.saved_by}
        told = ", ".join(f"{number} {what}{'s' * (number != 1)}" for what, number in sizes.items())
        print(  # noqa: T201  (the answer to the user's command, whatever is shown on the way)
            f"run {session.path} is finished ({told}): its model was restored and nothing was trained; use --fresh, "
            "RANKWISE_FRESH=1 or another name to train again",
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
