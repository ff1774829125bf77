"""The loop: epochs of steps; after each step mark done, log, save; after each epoch validate and save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rankwise import vitals
from rankwise.data.contract import Batch, BatchLoader
from rankwise.errors import Interrupted, StepError
from rankwise.guard import Guard
from rankwise.tracking import Progress
from rankwise.train.ahead import expect_last_epoch
from rankwise.train.balance import Balance
from rankwise.train.exact import ExactStep, StepReport
from rankwise.train.health import Health, Trouble, describe_trouble
from rankwise.train.hooks import HookChain, Told
from rankwise.train.options import TrainOptions
from rankwise.train.parts import RunningMeans, on_host
from rankwise.train.session import Session
from rankwise.world import World

__all__ = ["Loop"]

_FEW_STEPS = 10  # about as many as a loader has ready
_SHOW_S = 0.1


class _Pace:
    """Samples per second and the share of time spent waiting for data.

    Attributes:
        num_samples: samples so far; the loop counts them.
        began_s: when the last step was there.
    """

    def __init__(self) -> None:
        self.num_samples = 0
        self.began_s = 0.0
        self._wait_s = 0.0
        self._measured = (0, 0.0, time.perf_counter())
        self._shown = (0, 0.0)

    def next_of(self, steps: Iterator[tuple[Batch, ...]]) -> tuple[Batch, ...] | None:
        """Return the loader's next step, None at its end, and time how long it was waited for."""
        asked_s = time.perf_counter()
        batches = next(steps, None)
        self.began_s = now_s = time.perf_counter()
        self._wait_s += now_s - asked_s
        return batches

    def measure(self) -> dict[str, float]:
        """Return the pace since the last call, and start anew."""
        samples, wait_s, since_s = self._measured
        self._measured = (self.num_samples, self._wait_s, time.perf_counter())
        elapsed_s = max(self._measured[2] - since_s, 1e-9)
        rates = (self.num_samples - samples) / elapsed_s, (self._wait_s - wait_s) / elapsed_s
        return {"samples_per_s": rates[0], "wait_share": rates[1]}

    def since_shown(self) -> tuple[int, float]:
        """Return samples and seconds of waiting since the last call."""
        samples, wait_s = self._shown
        self._shown = (self.num_samples, self._wait_s)
        return self.num_samples - samples, self._wait_s - wait_s


@dataclass(slots=True, kw_only=True)
class Loop:
    """Runs the epochs that are left. Every rank runs one, over the same order.

    Attributes:
        world: this rank's world.
        step: takes one optimizer step.
        health: whether what the step does stays finite.
        guard: looks at steps after their update; tells which module was not finite.
        session: where numbers and checkpoints go, and how far the run is.
        options: how often to log and to save, and when to stop.
        recent: means since the last log line.
        whole: means since the start of the epoch.
        progress: the line on the main rank.
        learning_rate: returns the current one, for the log.
        validate: returns an epoch's validation values, told whether it is the last and what to call between batches;
            called on every rank.
        before_validation: called when an epoch has a few steps left.
        hooks: called along the way, on every rank.
    """

    world: World
    step: ExactStep
    health: Health
    guard: Guard
    session: Session
    options: TrainOptions
    recent: RunningMeans
    whole: RunningMeans
    progress: Progress
    learning_rate: Callable[[], float]
    validate: Callable[[bool, Callable[[], None]], Mapping[str, float]]
    before_validation: Callable[[], None]
    hooks: HookChain
    _balance: Balance | None = field(init=False, default=None)
    _pace: _Pace = field(init=False, default_factory=_Pace)
    _loss: float = field(init=False, default=math.nan)
    _saved_step: int = field(init=False, default=-1)
    _shown_s: float = field(init=False, default=-math.inf)
    _now: tuple[int, tuple[Batch, ...]] = field(init=False, default=(0, ()))  # epoch and batches of the last step
    _untold: bool = field(init=False, default=False)  # the last step was fine, and health has not heard of it

    def run(self, train: BatchLoader, *, first_epoch: int, epochs: int) -> Mapping[str, float]:
        """Run the epochs from `first_epoch` on and return the last epoch's values."""
        values, wish = self.session.last_values, self.options.balance
        if wish is not None:
            self._balance = Balance(self.step.model, self.world, speeds=wish)
        if self.session.unvalidated is not None:  # all its steps were done when the run was interrupted
            values = self._end_epoch(
                self.session.unvalidated, values, is_last=first_epoch >= epochs or self._limit_reached()
            )
        for epoch in range(first_epoch, epochs):
            if self._limit_reached():
                break
            train.set_epoch(epoch)
            is_last = epoch + 1 == epochs or self._ends_within(train)
            if is_last:
                expect_last_epoch(train)
            self._epoch(train, epoch)
            # an epoch that was left in its middle is gone on with by a run of more steps
            ended = int(str(train.state_dict()["epoch"])) > epoch
            trained, _ = self._reduce(self.whole, reset=ended)
            values = self._end_epoch(epoch, trained, is_last=is_last)
        return values

    def _end_epoch(self, epoch: int, trained: Mapping[str, float], *, is_last: bool) -> Mapping[str, float]:
        vitals.beat(epoch=epoch, phase="validate")
        self.session.flush()  # it may take long
        try:
            values = {**trained, **self.validate(is_last, self._between_batches)}
        except Interrupted:
            self._leave(trained, unvalidated=epoch)
        self.hooks.call_together("validation_end", epoch, values)
        self.session.log({f"epoch_{name}": value for name, value in values.items()}, epoch=epoch)
        self._save(values)
        self.hooks.call_together("epoch_end", epoch, values)
        if self.hooks.stop != self.session.progressed.stopped:  # asked for after the epoch was saved
            self._save(values)
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
        """Save, unless that is done, and end this process, as all ranks have agreed."""
        if unvalidated is not None or self._saved_step != self.session.progressed.num_steps:
            self._save(values, unvalidated=unvalidated)
        self.session.leave()

    def _epoch(self, train: BatchLoader, epoch: int) -> None:
        few_left = max(0, self._steps_left(train) - _FEW_STEPS)
        progressed, options, hooks = self.session.progressed, self.options, self.hooks
        limit = math.inf if options.limit_steps is None else options.limit_steps
        steps = iter(train if self._balance is None else self._balance.steps(train))
        # what a step calls at all, settled here: each call costs, and an attribute of an attribute does, too
        beat, take, mark_done, log_every = vitals.beat, self.step, train.mark_done, options.log_every
        interruption, next_of, record, number = self.session.interruption, self._pace.next_of, self._record, -1
        while (batches := next_of(steps)) is not None:
            beat(epoch=epoch, step=progressed.num_steps, phase="step")
            self._now = epoch, batches  # no longer than here: what is kept is not filled again
            number += 1
            if number == few_left:
                self.before_validation()
            report = take(batches)
            mark_done(report.resume)
            record(report)
            if progressed.num_steps % log_every == 0:
                self._log(report, epoch)
            ended = report.resume.epoch > epoch
            if hooks.at_steps:
                hooks.call("step_end", report)
            if options.asynchronous:
                self.session.poll()
            if hooks.stop or progressed.num_steps >= limit:
                break
            if interruption is not None and not ended and interruption.should_stop(progressed.num_steps, where="train"):
                self._leave(self.session.last_values)
            # the last step of an epoch is saved after its validation, so that a restart does not skip it
            if options.save_every is not None and not ended and progressed.num_steps % options.save_every == 0:
                self._save(self.session.last_values)
            beat(phase="data")
        self._tell()
        self._now = epoch, ()
        self._show(epoch)

    def _record(self, report: StepReport) -> None:
        progressed, pace, num_samples = self.session.progressed, self._pace, report.num_samples
        progressed.num_steps += 1
        progressed.num_samples += num_samples
        progressed.num_lost += report.num_lost
        pace.num_samples += num_samples
        if report.overflowed:  # it was skipped: its numbers are no part of the training
            for means in (self.recent, self.whole):
                means.add("loss", 0.0, 0.0)
        else:
            total, weight = report.loss
            loss = on_host(total), weight if type(weight) is float else on_host(weight)
            gradient = self.health.look_at_gradients() if report.grad_norm is None else report.grad_norm
            plain = type(loss[0]) is float
            # what is known here to be fine needs no note; the rest may still be on the device
            self._untold = plain and type(gradient) is float and math.isfinite(loss[0] + gradient)
            if not self._untold:
                self._note(loss[0], gradient)
            if plain and type(loss[1]) is float and not report.metrics:
                self.recent.waiting += loss
                self.whole.waiting += loss
            else:
                self.recent.add_all(loss, report.metrics)
                self.whole.add_all(loss, report.metrics)
        if pace.began_s - self._shown_s >= _SHOW_S:
            self._show(self._now[0])

    def _note(self, loss: Any, gradient: Any) -> None:
        epoch, batches = self._now
        self._untold = False
        self.health.note(
            epoch=epoch,
            step=batches[0].share.step.index,
            ids=[batch.ids for batch in batches],
            loss=loss,
            gradient=gradient,
            module=self.guard.not_finite,
        )

    def _tell(self) -> None:
        """Tell health of the last step where it has not heard of it: it names the step if a parameter is not finite."""
        if self._untold:
            self._note(0.0, 0.0)

    def _show(self, epoch: int) -> None:
        """Tell the progress line how far the run is: as often as an eye can follow."""
        self._shown_s = self._pace.began_s
        self.recent.add_waiting()  # however far apart log lines lie, what waits stays short
        self.whole.add_waiting()
        samples, wait_s = self._pace.since_shown()
        loss = None if math.isnan(self._loss) else self._loss
        self.progress.update(self.session.progressed.num_steps, epoch=epoch, loss=loss, samples=samples, wait_s=wait_s)

    def _log(self, report: StepReport, epoch: int) -> None:
        pace, further = self._pace.measure(), self.hooks.numbers()
        values, waits = self._reduce(self.recent, note=pace["wait_share"])
        self._loss = values["loss"]
        extra = {} if report.grad_norm is None else {"grad_norm": report.grad_norm}
        if (scale := self.step.loss_scale) is not None:
            extra["loss_scale"] = scale
        # the slowest reader decides: the others wait for it in the step
        ours = {"lr": self.learning_rate(), **extra, **pace, "wait_share": max(waits)}
        line = _joined(_joined(values, ours), {**further, **self.hooks.spread})
        self.session.log(line, epoch=epoch)
        self.hooks.call("log", self.session.progressed.num_steps, line)

    def _reduce(
        self, means: RunningMeans, *, reset: bool = True, note: Any = None
    ) -> tuple[dict[str, float], list[Any]]:
        """Reduce, and look at the steps since the last look on the same way: a collective of its own would cost."""
        told = self.hooks.told(numbers=note is not None)
        self._tell()
        values, noted = means.reduce_noted(self.world, (self.health.look(), told, note), reset=reset)
        self._settle([(trouble, told) for trouble, told, _ in noted])
        return values, [note for *_, note in noted]

    def _settle(self, heard: list[tuple[Trouble | None, Told]]) -> None:
        if any(trouble is not None for trouble, _ in heard):
            raise StepError(describe_trouble([trouble for trouble, _ in heard], self.session.newest_text))
        self.hooks.settle([told for _, told in heard])

    def _save(self, values: Mapping[str, float], *, unvalidated: int | None = None) -> None:
        vitals.beat(phase="checkpoint")
        self._tell()
        if self.health.pending:  # between two log lines: saving talks anyway
            self._settle(self.world.all_gather_object((self.health.look(), self.hooks.told())))
        step = self.session.progressed.num_steps
        self.hooks.call_together("checkpoint_begin", step)
        self.session.progressed.stopped = self.hooks.stop
        self.session.save(values, unvalidated=unvalidated)
        self._saved_step = step
        self.hooks.call_together("checkpoint_end", step)

    def _steps_left(self, train: BatchLoader) -> int:
        """Steps until the epoch ends, or the run."""
        limit = self.options.limit_steps
        return len(train) if limit is None else min(len(train), limit - self.session.progressed.num_steps)

    def _ends_within(self, train: BatchLoader) -> bool:
        limit = self.options.limit_steps
        return limit is not None and self.session.progressed.num_steps + len(train) >= limit

    def _limit_reached(self) -> bool:
        limit = self.options.limit_steps
        return bool(self.hooks.stop) or (limit is not None and self.session.progressed.num_steps >= limit)


def _joined(metrics: Mapping[str, float], ours: Mapping[str, float]) -> dict[str, float]:
    taken = sorted(metrics.keys() & ours.keys())
    if taken:
        raise StepError(
            f"the step function, or a hook, returned metrics named {', '.join(taken)}, under which the loop logs other "
            "numbers: give them other names"
        )
    return {**metrics, **ours}
