"""`Trainer`: a model, an optimizer and a step function become a training run."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankwise.data.contract import JSON, BatchLoader
from rankwise.errors import ConfigError, RunDirError
from rankwise.tracking import Progress
from rankwise.train.agreement import agree, data_facts
from rankwise.train.ahead import expect_last_epoch, start_prefetch
from rankwise.train.checks import check_loader, check_model, check_optimizer, check_scheduler, check_val, lone_sample
from rankwise.train.exact import ExactStep, StepFn, StepReport
from rankwise.train.health import Health
from rankwise.train.hooks import Hooks
from rankwise.train.loop import Loop
from rankwise.train.options import TrainOptions
from rankwise.train.parts import RunningMeans
from rankwise.train.record import run_record
from rankwise.train.session import Resume, RunChoice, Session, checked_parts, training_parts
from rankwise.train.validation import evaluate
from rankwise.train.wrapping import prepare, unwrapped
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.tracking import Sink

__all__ = ["FitResult", "Trainer"]

_LOG = logging.getLogger("rankwise.train")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """What a finished run came to; equal on all ranks.

    Attributes:
        num_steps: optimizer steps since the run's first start.
        metrics: the last epoch's reduced values: "loss", the step function's metrics, and "val_..." of each.
        run_dir: where everything is written, None if nothing is.
        resumed_step: the step that this process resumed after, 0 when it started fresh.
        already_finished: True when the run was found finished: its model was restored, nothing was trained.
    """

    num_steps: int
    metrics: Mapping[str, float]
    run_dir: Path | None
    resumed_step: int = 0
    already_finished: bool = False


class Trainer:
    """Trains a model data-parallel: exact steps, resumable, with reduced numbers. Every rank makes one and calls `fit`.

    Args:
        model: a plain module (it is passed through `prepare`) or what `prepare` returned.
        optimizer: torch optimizer over the model's parameters.
        step_fn: ``step_fn(model, batch)`` returns per-sample losses [B], or (sum, weight); see `rankwise.train.output`.
        world: this rank's world; `World.current()` if None.
        run: run directory; None = RANKWISE_RUN_DIR, else ``runs/<script>``; False writes nothing.
        resume: "auto" continues a run whose configuration matches and starts one where there is none; "must" wants one
            to continue; "never" wants none. None = RANKWISE_RESUME, else "auto".
        fresh: move a run that is there aside and start anew; None = whether RANKWISE_FRESH is 1. A restart of the same
            start by its launcher goes on all the same.
        init_from: another run's directory, or a folder of checkpoints: a new run begins with the weights of its newest
            one, at step 0, with a new optimizer; a run that continues has its own.
        scheduler: stepped once after each optimizer step; replicated, never scaled by the world size.
        val_fn: like `step_fn`, for validation; `step_fn` if None.
        hooks: functions called along the way.
        config: JSON values that made this run (your hyperparameters): recorded, and compared on resume; secrets masked.
        progress: show a progress line on the main rank.
        tensorboard: also write TensorBoard event files into the run directory.
        sinks: objects with the methods of `rankwise.tracking.Sink`, which get every line of numbers on the main rank.
        parts: further parts of the checkpoints, restored on resume: ``{"ema": Replicated(ema)}``, or a dict.
        ddp: options for DistributedDataParallel, when `model` is a plain module.
        counted: see `ExactStep`.
        **options: the fields of `TrainOptions`.

    Attributes:
        world, model, optimizer, scheduler, options, hooks: as given; `model` is the prepared one.
        session: the open run during and after `fit`: its directory, attempt, and how far it is. For hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        step_fn: StepFn,
        *,
        world: World | None = None,
        run: str | os.PathLike[str] | Literal[False] | None = None,
        resume: Resume | None = None,
        fresh: bool | None = None,
        init_from: str | os.PathLike[str] | None = None,
        scheduler: Any = None,
        val_fn: StepFn | None = None,
        hooks: Hooks | None = None,
        config: Mapping[str, JSON] | None = None,
        progress: bool = True,
        tensorboard: bool = False,
        sinks: Sequence[Sink] = (),
        parts: Mapping[str, Any] | None = None,
        ddp: Mapping[str, Any] | None = None,
        counted: bool | None = None,
        **options: Any,
    ) -> None:
        self.world = joined_world(world, "a Trainer")
        self.options = _options(options)
        plain = unwrapped(model) is model
        if ddp and not plain:
            raise ConfigError("ddp= holds options for wrapping a plain module, but this model is wrapped already")
        self.model = prepare(model, self.world, **(ddp or {})) if plain else model
        self.optimizer = optimizer
        check_model(self.model, self.world)
        check_optimizer(self.model, optimizer, self.world)
        check_scheduler(scheduler)
        self.scheduler = scheduler
        self.hooks = Hooks() if hooks is None else hooks
        self._step_fn = step_fn
        self._val_fn = step_fn if val_fn is None else val_fn
        self._config = dict(config or {})
        if run is not False and hasattr(optimizer, "consolidate_state_dict"):
            raise ConfigError(
                f"{type(optimizer).__name__} keeps a part of its state on each rank, a run's checkpoints hold whole "
                "ones: take the plain optimizer, or run=False, or an own loop with ExactStep, in which you call "
                "consolidate_state_dict() before saving"
            )
        self._parts = checked_parts(parts)
        self._choice = RunChoice(
            path=run,
            resume=resume,
            tensorboard=tensorboard,
            sinks=tuple(sinks),
            keep=self.options.keep,
            fresh=fresh,
            init_from=init_from,
        )
        self._show_progress = progress
        self.session: Session | None = None
        self._fitted_epochs: int | None = None
        self._counted = counted

    def fit(self, train: BatchLoader, *, val: BatchLoader | None = None, epochs: int = 1) -> FitResult:
        """Train for `epochs` epochs in all, continuing after the run directory's newest good checkpoint.

        Collective: every rank calls it with loaders over the same orders. A run that is finished already is restored:
        model, optimizer and loader are as they were at its end. With more epochs than it had, it goes on.

        Args:
            train: steps of the training data.
            val: an unpadded order over held-out data; validated after each epoch.
            epochs: epochs of the whole run, those before a restart included.

        Raises:
            ConfigError: `train` or `val` is no `BatchLoader`, such as a torch DataLoader.
            RunDirError: the run directory belongs to another configuration, is in use, must (not) exist, is further
                than `epochs`, or was finished by this very process (by this trainer, with more epochs, is fine).
            DesyncError: the ranks come with different data, orders, positions or seeds.
            StepError: the step function broke its contract, or the loss is no longer finite.
            CheckpointError: a checkpoint could not be written; the previous one is intact.
        """
        if epochs < 1:
            raise ConfigError(f"epochs is at least 1, got {epochs}")
        check_loader(train)
        check_val(val)
        recent, whole = RunningMeans(), RunningMeans()
        parts = training_parts(self.model, self.optimizer, self.scheduler, train, self._parts)
        with ExitStack() as stack:
            session = stack.enter_context(
                Session.open(
                    self._choice,
                    world=self.world,
                    record=self._record(train, epochs),
                    parts={**parts, "recent_means": recent, "epoch_means": whole},
                    by_length=getattr(getattr(train, "order", None), "fingerprint", "") is None,
                    reopen=self._fitted_epochs is not None and epochs > self._fitted_epochs,
                )
            )
            self.session = session
            if session.finished is not None:
                session.restore()
                if self._is_done(session, train, epochs):
                    return self._found_finished(session, epochs)
                session.reopen()
            session.restore()
            agree(self.world, self._facts(train, val, epochs))
            self._is_done(session, train, epochs)
            if int(str(train.state_dict()["epoch"])) < epochs:
                start_prefetch(train)
            progress = stack.enter_context(self._progress(session, train, epochs))
            if session.resumed_text:
                progress.say(session.resumed_text)
            return self._fit(session, train, val, epochs, recent=recent, whole=whole, progress=progress)

    def overfit(self, train: BatchLoader, *, steps: int = 100) -> list[float]:
        """Train on the first global batch of `train` again and again, and return the loss of each step.

        The quickest test of a model and its step function: the loss should go towards zero. Nothing is written, and
        the loader's state does not move. Every rank calls it.
        """
        step, means = self._new_step(), RunningMeans()
        losses = []
        for batches in train:
            for _ in range(steps):
                means.add_step(step(batches))
                losses.append(means.reduce(self.world)["loss"])
            break
        return losses

    def _fit(
        self,
        session: Session,
        train: BatchLoader,
        val: BatchLoader | None,
        epochs: int,
        *,
        recent: RunningMeans,
        whole: RunningMeans,
        progress: Progress,
    ) -> FitResult:
        step = self._new_step()
        step.lone_sample = lone_sample(train, self.world, self.options.limit_steps)
        loop = Loop(
            world=self.world,
            step=step,
            health=Health(unwrapped(self.model)),
            session=session,
            options=self.options,
            recent=recent,
            whole=whole,
            progress=progress,
            learning_rate=lambda: float(self.optimizer.param_groups[0]["lr"]),
            validate=lambda is_last: self._validate(val, is_last=is_last),
            before_validation=lambda: None if val is None else start_prefetch(val),
            on_step=self._on_step,
            on_log=self._on_log,
            on_epoch=self._on_epoch,
        )
        if self.hooks.fit_start is not None:
            self.hooks.fit_start(self)
        self.model.train()
        try:
            values = loop.run(train, first_epoch=int(str(train.state_dict()["epoch"])), epochs=epochs)
        finally:
            self._say_lost(session)
        session.finish(values)
        self._fitted_epochs = epochs
        if self.hooks.fit_end is not None:
            self.hooks.fit_end(self)
        return FitResult(
            num_steps=session.progressed.num_steps,
            metrics=values,
            run_dir=session.path,
            resumed_step=session.resumed_step,
        )

    def _say_lost(self, session: Session) -> None:
        """Name the samples that were left out as damaged, over all ranks and restarts of the run."""
        lost, seen = session.progressed.num_lost, session.progressed.num_samples
        if lost and self.world.is_main:
            _LOG.warning("%d of %d samples were damaged and left out of the training", lost, lost + seen)

    def _new_step(self) -> ExactStep:
        return ExactStep(
            self.model,
            self.optimizer,
            self._step_fn,
            world=self.world,
            scheduler=self.scheduler,
            max_grad_norm=self.options.max_grad_norm,
            counted=self._counted,
        )

    def _facts(self, train: BatchLoader, val: BatchLoader | None, epochs: int) -> dict[str, Any]:
        """Return what must be equal on all ranks before the first step; reads samples, and so on several ranks only."""
        if self.world.world_size == 1:
            return {}
        facts = {"epochs": epochs, "seed of the world": self.world.seed, **data_facts("train", train)}
        return {**facts, "validation": val is not None, **({} if val is None else data_facts("val", val))}

    def _record(self, train: BatchLoader, epochs: int) -> dict[str, JSON]:
        return run_record(
            model=unwrapped(self.model),
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            step_fn=self._step_fn,
            train=train,
            world=self.world,
            options={"epochs": epochs, **asdict(self.options)},
            user=self._config,
            init_from=None if self._choice.init_from is None else os.fspath(self._choice.init_from),
        )

    def _progress(self, session: Session, train: BatchLoader, epochs: int) -> Progress:
        left, limit = _steps_left(train, epochs), self.options.limit_steps
        total = None if left is None else session.progressed.num_steps + left
        return Progress(
            self.world,
            total_steps=total if limit is None or total is None else min(total, limit),
            epochs=epochs,
            file=None if self._show_progress else io.StringIO(),
        )

    def _validate(self, val: BatchLoader | None, *, is_last: bool) -> dict[str, float]:
        if val is None:
            return {}
        if is_last:
            expect_last_epoch(val)
        values = evaluate(self.model, val, self._val_fn, world=self.world)
        return {f"val_{name}": value for name, value in values.items()}

    def _is_done(self, session: Session, train: BatchLoader, epochs: int) -> bool:
        """Whether the restored run is where this call wants it.

        Raises:
            RunDirError: it is further.
        """
        state, num_steps, limit = train.state_dict(), session.progressed.num_steps, self.options.limit_steps
        epoch, position = int(str(state["epoch"])), int(str(state["position"]))
        if (epoch, position) > (epochs, 0) or (limit is not None and num_steps > limit):
            wanted = f"{epochs} epochs" + ("" if limit is None else f" and {limit} steps at most")
            raise RunDirError(
                f"{session.path} is further than was asked for: it has done {num_steps} steps ({epoch} whole epochs "
                f"and {position} samples), and {wanted} are wanted; ask for at least as much, or take another run="
            )
        return epoch >= epochs or num_steps == limit

    def _found_finished(self, session: Session, epochs: int) -> FitResult:
        assert session.finished is not None
        values, num_steps = dict(session.finished["values"]), session.progressed.num_steps
        values.pop("num_steps", None)
        if self.world.is_main:
            sizes = {"epoch": epochs, "step": num_steps, "rank": session.saved_by}
            told = ", ".join(f"{number} {what}{'s' * (number != 1)}" for what, number in sizes.items())
            print(  # noqa: T201  (the answer to the user's command, whatever is shown on the way)
                f"run {session.path} is finished ({told}): its "
                "model was restored, nothing was trained; --fresh, RANKWISE_FRESH=1 or another name trains anew",
                flush=True,
            )
        return FitResult(
            num_steps=num_steps, metrics=values, run_dir=session.path, resumed_step=num_steps, already_finished=True
        )

    def _on_step(self, report: StepReport) -> None:
        if self.hooks.step_end is not None:
            self.hooks.step_end(self, report)

    def _on_log(self, num_steps: int, values: Mapping[str, float]) -> None:
        if self.hooks.log is not None:
            self.hooks.log(self, num_steps, values)

    def _on_epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        if self.hooks.epoch_end is not None:
            self.hooks.epoch_end(self, epoch, values)


def _options(given: Mapping[str, Any]) -> TrainOptions:
    known = [f.name for f in fields(TrainOptions)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"Trainer has no option {', '.join(unknown)}; its numbers are {', '.join(known)}")
    return TrainOptions(**given)


def _steps_left(train: BatchLoader, epochs: int) -> int | None:
    """Return the optimizer steps that the run still takes, for the progress line; None if the loader does not tell."""
    order: Any = getattr(train, "order", None)
    state, now = train.state_dict(), len(train)
    epoch = int(str(state["epoch"]))
    startable = hasattr(order, "start")
    if not startable and state["position"]:
        return None
    whole = int(order.num_steps(order.start(epoch))) if startable else now
    return now + whole * (epochs - epoch - 1) if epoch < epochs else 0
