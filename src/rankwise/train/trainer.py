"""`Trainer`: turns a model, an optimizer and a step function into a training run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, cast

from rankwise.data.contract import JSON, BaseLoader
from rankwise.errors import ConfigError
from rankwise.guard import GuardOptions, guard_wish, trainer_guard
from rankwise.tracking import Progress
from rankwise.train.loaders.agreement import agree, data_facts
from rankwise.train.loaders.foreign import check_loader, check_val
from rankwise.train.loaders.streams import as_held_out, as_steps
from rankwise.train.loop.configuration import optimizer_record, read_options, run_record
from rankwise.train.loop.hooks import HookChain
from rankwise.train.loop.loop import FitResult, Loop, found_finished, is_done, steps_left
from rankwise.train.loop.parts import checked_parts, training_parts
from rankwise.train.loop.session import Resume, RunChoice, Session
from rankwise.train.models.passes import autocasting, make_scaler
from rankwise.train.models.wrapped_models import Strategy, uncompiled, unwrapped
from rankwise.train.step.balance import Balance
from rankwise.train.step.checks import lone_sample
from rankwise.train.step.exact import ExactStep, StepFn
from rankwise.train.step.ledger import Ledger, RunningMeans
from rankwise.train.strategy import Evidence, prepare_training, wrap_options
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rankwise.tracking import Service, Sink
    from rankwise.tracking.tracker import SinkName

_LOG = logging.getLogger("rankwise.train")


class Trainer:
    """Trains a model data-parallel: exact steps, resumable, with reduced metrics. Every rank makes one and calls `fit`.

    Args:
        model: a plain module (passed through `prepare`) or a prepared one.
        optimizer: torch optimizer over the model's parameters, or a function of them; see `prepare_optimizer`.
        step_fn: ``step_fn(model, batch)`` returns per-sample losses [B], or (sum, weight); see
            `rankwise.train.step.output`.
        world: this rank's world; `World.current()` if None.
        run: run directory; None = RANKWISE_RUN_DIR, else ``runs/<script>``; False writes nothing.
        resume: "auto" continues a run with a matching configuration, or starts one if there is none; "must" requires
            one to continue; "never" requires that there is none. None = RANKWISE_RESUME, else "auto".
        fresh: move an existing run aside and start over; None = whether RANKWISE_FRESH is 1. A restart of the same
            start by its launcher continues nevertheless.
        init_from: another run's directory, or a folder of checkpoints: a new run starts with the weights of its newest
            one, at step 0, with a new optimizer; a continued run has its own.
        scheduler: stepped once after each optimizer step, at any world size; or a function of the optimizer.
        val_fn: like `step_fn`, for validation; `step_fn` if None.
        hooks: a `Hooks` with functions to call during the run, or several objects with methods of these names.
        system_metrics: log CPU, memory and GPU of every rank: True as min, mean and max, "per_rank" each.
        config: JSON values that define this run (hyperparameters): recorded, and compared on resume; secrets masked.
        progress: show a progress line on the main rank.
        tensorboard: also write TensorBoard event files into the run directory.
        trackers: destinations of the numbers besides ``metrics.jsonl``, also several: "tensorboard", "mlflow", "wandb",
            `MlflowSink(...)`, `WandbSink(...)`, or objects with the methods of `rankwise.tracking.Sink`.
        sinks: the older name of `trackers`.
        parts: further parts of the checkpoints, restored on resume: ``{"ema": Replicated(ema)}``, or a dict.
        strategy: "ddp" (the default), "zero1", "fsdp", or "auto", decided when `fit` begins; see `prepare`.
        ddp: further options of `prepare`, if `model` is a plain module.
        guard: detect silent errors on several ranks: True checks the first steps and then a few, and raises certain
            errors; "warn" logs them, False does not check, `rankwise.guard.GuardOptions` has more options.
        counted, scaler: see `ExactStep`; the scaler is a part of the checkpoints.
        **options: the fields of `TrainOptions`.

    Attributes:
        world, model, optimizer, scheduler, options: as given; `model` is the prepared one.
        hooks: the hooks, as one `HookChain`.
        session: the open run during and after `fit`: its directory, attempt, and progress. For hooks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Callable[[Any], torch.optim.Optimizer],
        step_fn: StepFn,
        *,
        world: World | None = None,
        run: str | os.PathLike[str] | Literal[False] | None = None,
        resume: Resume | None = None,
        fresh: bool | None = None,
        init_from: str | os.PathLike[str] | None = None,
        scheduler: Any = None,
        val_fn: StepFn | None = None,
        hooks: Any = None,
        system_metrics: bool | Literal["per_rank"] = False,
        config: Mapping[str, JSON] | None = None,
        progress: bool = True,
        tensorboard: bool = False,
        trackers: SinkName | Sink | Service | Sequence[SinkName | Sink | Service] = (),
        sinks: Sequence[SinkName | Sink | Service] = (),
        parts: Mapping[str, Any] | None = None,
        strategy: Strategy | None = None,
        ddp: Mapping[str, Any] | None = None,
        guard: bool | Literal["warn"] | GuardOptions = True,
        counted: bool | None = None,
        scaler: torch.amp.GradScaler | None = None,
        **options: Any,
    ) -> None:
        self._guard = guard_wish(guard)
        self.world = joined_world(world, "a Trainer")
        self.options = read_options(options)
        self.model, self.optimizer, self.scheduler = model, cast("torch.optim.Optimizer", optimizer), scheduler
        self._wrapping = wrap_options(model, strategy, ddp)
        if strategy != "auto":
            self._wrap()
        self.hooks = HookChain(self, hooks, system_metrics)
        self._step_fn = step_fn
        self._val_fn = autocasting(step_fn if val_fn is None else val_fn, self.options.precision, self.world)
        self._scaler = make_scaler(self.options.precision, self.world, scaler)
        self._config = dict(config or {})
        self._parts = checked_parts(parts)
        self._choice = RunChoice(
            path=run,
            resume=resume,
            tensorboard=tensorboard,
            sinks=(*_several(trackers), *_several(sinks)),
            options=self.options,
            fresh=fresh,
            init_from=init_from,
        )
        self._show_progress = progress
        self.session: Session | None = None
        self._fitted_epochs: int | None = None
        self._kept_steps = 0  # of a `fit` that failed: the model has them
        self._optimizer_records: tuple[JSON, JSON] | None = None  # as the last `fit` found it, and as it left it
        self._counted = counted

    def fit(self, train: Any, *, val: Any = None, epochs: int = 1) -> FitResult:
        """Train for `epochs` epochs in total, continuing after the run directory's newest valid checkpoint.

        Collective: every rank calls it with loaders over the same orders. A run that is already finished is restored:
        model, optimizer and loader have their final state. With more epochs than before, it continues.

        Args:
            train: steps of the training data, a `BatchLoader`; or a torch DataLoader or another iterable of batches,
                which is wrapped in a `StreamLoader`, which logs missing guarantees.
            val: an unpadded order over held-out data, validated after each epoch; or a DataLoader, treated likewise.
            epochs: epochs of the whole run, including those before a restart.

        Raises:
            ConfigError: `train` or `val` cannot be iterated in steps, or would not divide its samples among ranks; or
                `balance` is set, and the shares of `train`, or this model, do not support it.
            RunDirError: the run directory belongs to another configuration, is in use, must (not) exist, has passed
                `epochs`, or was finished by this very process (by this trainer, with more epochs, is allowed).
            DesyncError: ranks have different data, orders, positions or seeds.
            StepError: the step function broke its contract, or the loss is no longer finite.
            GuardError: the ranks do not train one model any more; names parameters and cause.
            CheckpointError: a checkpoint could not be written; the previous one is intact.
            Interrupted: a signal came, or the time limit passed: everything is saved, and the same command continues.
        """
        if not isinstance(epochs, Integral) or epochs < 1:
            raise ConfigError(f"epochs must be an integer of at least 1, got {epochs!r}")
        train, val = as_steps(train, self.world), None if val is None else as_held_out(val, self.world)
        check_loader(train)
        check_val(val, train)
        if self._wrapping is not None:
            self._wrap(train)
        balance = self._balance(train)
        recent, whole = RunningMeans(), RunningMeans()
        parts = training_parts(self.model, self.optimizer, self.scheduler, train, self._parts, scaler=self._scaler)
        with ExitStack() as stack:
            session = stack.enter_context(
                Session.open(
                    self._choice,
                    world=self.world,
                    record=self._record(train, epochs),
                    parts={**parts, **self.hooks.parts, "recent_means": recent, "epoch_means": whole},
                    by_length=train.order is not None and train.order.fingerprint is None,
                    reopen=self._fitted_epochs is not None and epochs > self._fitted_epochs,
                )
            )
            self.session = session
            stack.callback(self._note_optimizer, session.record["optimizer"])
            if session.finished is not None:
                session.restore()
                if is_done(session, train, epochs, self.options.limit_steps):
                    return found_finished(session, epochs)
                session.reopen()
            session.restore()
            self.hooks.begin(session.progressed.stopped)
            agree(self.world, self._facts(train, val, epochs))
            if not is_done(session, train, epochs, self.options.limit_steps):
                train.start_prefetch()
            progress = stack.enter_context(self._progress(session, train, epochs)) if self._show_progress else None
            if progress is not None and session.resumed_text:
                progress.print(session.resumed_text)
            guard = stack.enter_context(trainer_guard(self._guard, self.model, self.world))
            stack.callback(session.keep_findings, guard)  # whether it succeeds or fails
            stack.enter_context(session.listen())
            ledger = Ledger(recent, whole, unwrapped(self.model), guard)
            return self._fit(session, train, val, epochs, ledger=ledger, progress=progress, balance=balance)

    def stop(self, reason: str) -> None:
        """Request, from a hook, that the run ends: all ranks stop at the next log step, checkpoint or end of an epoch.

        The run then counts as finished, also for a restart.

        Args:
            reason: the reason, for `FitResult.stopped`. A request by one rank is enough.
        """
        self.hooks.wanted_stop = reason or "requested by a hook"

    def overfit(self, train: Any, *, steps: int = 100) -> list[float]:
        """Train repeatedly on the first global batch of `train`, and return the loss of each step.

        The quickest test of a model and its step function: the loss should approach zero. Nothing is written, and
        the loader's state does not change. Every rank calls it.
        """
        train = as_steps(train, self.world)
        if self._wrapping is not None:
            self._wrap(train)
        step, means = self._new_step(), RunningMeans()
        losses = []
        for batches in train:
            for _ in range(steps):
                report = step(batches)
                means.add((report.loss, report.metrics))
                losses.append(means.reduce(self.world)["loss"])
            break
        return losses

    def _balance(self, train: BaseLoader) -> Balance | None:
        if self.options.balance is None:
            return None
        balance = Balance(self.model, self.world, speeds=self.options.balance)
        balance.check(train)
        return balance

    def _wrap(self, train: BaseLoader | None = None) -> None:
        seen = None if train is None else Evidence.of_data(self._step_fn, train, self.optimizer, self.world)
        self.model, self.optimizer, self.scheduler = prepare_training(
            self.model, self.optimizer, self.scheduler, world=self.world, options=self._wrapping, evidence=seen
        )
        self._wrapping = None

    def _fit(
        self,
        session: Session,
        train: BaseLoader,
        val: BaseLoader | None,
        epochs: int,
        *,
        ledger: Ledger,
        progress: Progress | None,
        balance: Balance | None,
    ) -> FitResult:
        if self._kept_steps and not session.resumed_step and self.world.is_main:
            _LOG.warning(
                "an earlier fit of this Trainer failed after step %d: weights, optimizer and loader stay as it left "
                "them, and steps count from 0; to start afresh make them anew; to continue, save_every= into a run=",
                self._kept_steps,
            )
        step = self._new_step()
        step.lone_sample = lone_sample(train, self.world, self.options.limit_steps, self.options.balance)
        loop = Loop(
            world=self.world,
            step=step,
            ledger=ledger,
            session=session,
            options=self.options,
            progress=progress,
            optimizer=self.optimizer,
            val=val,
            val_fn=self._val_fn,
            hooks=self.hooks,
            balance=balance,
        )
        try:
            self.hooks.call_together("fit_start")
            if not uncompiled(unwrapped(self.model)).training:
                self.model.train()  # else parts that are in eval mode are frozen, and stay so
            values = loop.run(train, first_epoch=int(str(train.state_dict()["epoch"])), epochs=epochs)
        except Exception as error:
            self.hooks.fail(error)
            raise
        finally:
            self._kept_steps = session.progressed.num_steps
            lost, seen = session.progressed.num_lost, session.progressed.num_samples  # over all ranks and restarts
            if lost and self.world.is_main:
                _LOG.warning("%d of %d samples were damaged and left out of the training", lost, lost + seen)
        if not session.progressed.num_steps and self.world.is_main:
            _LOG.warning("nothing was trained: the loader has passed epochs=%d, which counts earlier ones too", epochs)
        session.finish(values)
        self._fitted_epochs, self._kept_steps = epochs, 0
        self.hooks.call_together("fit_end")
        return FitResult(
            num_steps=session.progressed.num_steps,
            metrics=values,
            run_dir=session.path,
            resumed_step=session.resumed_step,
            stopped=session.progressed.stopped,
        )

    def _new_step(self) -> ExactStep:
        return ExactStep(
            self.model,
            self.optimizer,
            self._step_fn,
            world=self.world,
            scheduler=self.scheduler,
            max_grad_norm=self.options.max_grad_norm,
            counted=self._counted,
            precision=self.options.precision,
            scaler=self._scaler,
        )

    def _facts(self, train: BaseLoader, val: BaseLoader | None, epochs: int) -> dict[str, Any]:
        """Return facts that must be equal on all ranks before the first step; reads samples if there are several."""
        if self.world.world_size == 1:
            return {}
        facts = {"epochs": epochs, "seed of the world": self.world.seed, **data_facts("train", train)}
        return {**facts, "validation": val is not None, **({} if val is None else data_facts("val", val))}

    def _note_optimizer(self, before: JSON) -> None:
        self._optimizer_records = (before, optimizer_record(self.optimizer))

    def _record(self, train: BaseLoader, epochs: int) -> dict[str, JSON]:
        record = run_record(
            model=unwrapped(self.model),
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            step_fn=self._step_fn,
            train=train,
            world=self.world,
            epochs=epochs,
            options=self.options,
            user=self._config,
            init_from=None if self._choice.init_from is None else os.fspath(self._choice.init_from),
        )
        # what a schedule or a hook has changed during the last `fit` is not another configuration
        if self._optimizer_records is not None and record["optimizer"] == self._optimizer_records[1]:
            record["optimizer"] = self._optimizer_records[0]
        return record

    def _progress(self, session: Session, train: BaseLoader, epochs: int) -> Progress:
        left, limit = steps_left(train, epochs), self.options.limit_steps
        total = None if left is None else session.progressed.num_steps + left
        return Progress(
            self.world,
            total_steps=total if limit is None or total is None else min(total, limit),
            epochs=epochs,
        )


def _several(given: Any) -> Sequence[Any]:
    """One tracker is as good as a list of one."""
    return given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
