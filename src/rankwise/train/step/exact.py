"""`ExactStep`: one optimizer step from the micro-batches of one global batch. Can be used in a loop of your own."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from rankwise.data.contract import Batch, Share, smallest_share
from rankwise.errors import StepError
from rankwise.train.loaders.agreement import agree, step_facts
from rankwise.train.loaders.streams import after_step, counted_samples
from rankwise.train.models.passes import Precision, autocasting, held_pass, make_scaler
from rankwise.train.models.sharding import prepared_as, shards_state, watch_gradients
from rankwise.train.models.wrapped_models import finds_unused
from rankwise.train.step.checks import check_model, check_optimizer, check_precision, check_scheduler
from rankwise.train.step.ledger import StepReport, describe_problems, first_nonfinite, step_place
from rankwise.train.step.output import StepOutput, on_host, read_output
from rankwise.train.step.schedules import step_schedule
from rankwise.train.step.warmup import FirstPass, explained, held_sample, reduced_names, unused_text, warm_up
from rankwise.train.step.window import Window, note_synchronised
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

_NOTHING = nullcontext()
_SMALLEST_SCALE = 1e-6  # about 36 skipped steps in a row from 65536: no scale will work
StepFn = Callable[["nn.Module", Batch], Any]


class ExactStep:
    """Takes the same exact step on every rank: the gradient is the mean over the global batch.

    Call it with the tuple of micro-batches that a `BatchLoader` yields, on every rank, step by step::

        step = ExactStep(model, optimizer, step_fn, world=world)
        for batches in loader:
            report = step(batches)
            loader.mark_done(report.resume)

    The first call runs the warm-up pass (see `warm_up`) and agrees with the other ranks on how to get the global
    weight: from the order, without communication, if the step function returns per-sample losses or a mean; by one
    small all-reduce per step if it returns (sum, weight), or if the loader may skip damaged samples.

    Args:
        model: what `prepare` returned.
        optimizer: a torch optimizer over its parameters.
        step_fn: see `rankwise.train.step.output`.
        world: this rank's world; `World.current()` if None.
        scheduler: any object with a `step()`, called once after each optimizer step.
        max_grad_norm: clip the exact gradient to this norm; None does not clip.
        counted: False forces the all-reduce; None decides as above.
        precision: run the step function under autocast to "bf16" or "fp16"; losses are summed in float32.
        scaler: the `torch.amp.GradScaler` of the loss; None makes one for "fp16". The order is unscale, clip, step;
            an overflow on one rank skips the step on all.

    Attributes:
        lone_sample: the later step that leaves a rank a single sample, if any: if the model cannot take it, the error
            comes at the first step.
        scaler: the scaler in use, None without one: for checkpoints, ``{"scaler": Replicated(step.scaler)}``.

    Raises:
        ConfigError: the model does not sum its gradients over the ranks of the world (pass it through `prepare`) or
            is sharded in an unsupported way; the optimizer has tensors that are not the model's, is a list,
            or needs a closure; the scheduler's step needs a value; the loss is scaled, but parameters are float16.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        step_fn: StepFn,
        *,
        world: World | None = None,
        scheduler: Any = None,
        max_grad_norm: float | None = None,
        counted: bool | None = None,
        precision: Precision | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise StepError(f"max_grad_norm must be a positive number or None, got {max_grad_norm}")
        self._model = model
        self._optimizer = optimizer
        self._world = joined_world(world, "an ExactStep")
        self._step_fn = autocasting(step_fn, precision, self._world)
        check_model(model, self._world)
        check_optimizer(model, optimizer, self._world)
        check_scheduler(scheduler, optimizer)
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm
        self._counted = counted
        self.scaler = make_scaler(precision, self._world, scaler)
        check_precision(model, optimizer, self.scaler, self._world)
        # a rank whose optimizer has only a part of the gradient may miss an overflow in the others' parts
        self._shares_overflows = self._world.world_size > 1 and shards_state(optimizer)
        self._held: Batch | None = None
        self._reduced: tuple[str, ...] = ()
        self._may_skip = False
        self.lone_sample = ""

    def __call__(self, batches: tuple[Batch, ...]) -> StepReport:
        """Take one step. Collective: every rank calls it with its own share of the same global batch.

        Raises:
            StepError: the step function broke its contract, or the gradient is not finite although it is to be clipped.
            DesyncError: at the first step, ranks have different orders, positions, seeds or micro-batches.
        """
        if self._held is None:
            self._prepare_first(batches)
        self._optimizer.zero_grad(set_to_none=True)
        first = batches[0]
        step, resume = first.share.step, first.resume
        known = float(step.count) if self._counted else None
        window = Window(self._model, self._world, num_micro=len(batches), total_weight=known)
        if self._may_skip:
            window.add_samples(counted_samples(batches))
        with self._watch_used(first.share, num_micro=len(batches)) as used:
            try:
                outputs = self._micro_batches(window, batches, used)
                weight = window.finish()
            except Exception as error:
                error.add_note(f"in {step_place([batch.share for batch in batches])}")
                raise
        arrived = step.count
        if self._may_skip:
            arrived, resume = after_step(first, window.num_samples or 0)
        loss, metrics = _totals(outputs)
        finite = not weight or self.scaler is None or self._unscale(self.scaler)
        grad_norm = self._clip(batches, loss[0]) if finite and self._max_grad_norm is not None else None
        if weight and self.scaler is not None:
            self.scaler.step(self._optimizer)  # unless the gradients are not finite
            self.scaler.update()
        elif weight:
            self._optimizer.step()
        if not finite and self.scaler is not None and self.scaler.get_scale() < _SMALLEST_SCALE:
            self._refuse(batches, loss[0], math.nan, "No loss scale makes it finite, so every step was skipped")
        if finite and weight and self._scheduler is not None:
            step_schedule(self._scheduler, arrived)
        return StepReport(
            num_samples=arrived,
            weight=weight,
            loss=loss,
            metrics=metrics,
            grad_norm=grad_norm,
            resume=resume,
            num_lost=max(0, step.count - arrived),  # the count of a stream is unknown
            overflowed=not finite,
        )

    @property
    def model(self) -> nn.Module:
        """The model that it trains, as given."""
        return self._model

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss, None without a scaler; waits for the device."""
        return None if self.scaler is None else float(self.scaler.get_scale())

    def _prepare_first(self, batches: tuple[Batch, ...]) -> None:
        # a DataLoader over one of our loaders yields lists instead of tuples
        known = isinstance(batches, tuple | list) and batches and all(hasattr(batch, "share") for batch in batches)
        if not known:
            raise StepError(
                f"ExactStep needs the tuple of micro-batches that a rankwise loader yields, got a "
                f"{type(batches).__name__}: put a torch DataLoader over other data into a StreamLoader, or pass its "
                "dataset to a DatasetLoader"
            )
        agree(self._world, step_facts(batches, self._world))
        held = held_sample(batches, self._world)
        mine = warm_up(self._model, self._step_fn, held, self._world)
        note_synchronised(self._model)
        self._reduced = prepared_as(self._model).reduced or reduced_names(self._model)
        skips = any(getattr(batch, "may_skip", False) for batch in batches)
        # ranks must agree: a rank that does not need the all-reduce would leave the others waiting in it
        seen: list[FirstPass] = self._world.all_gather_object(replace(mine, may_skip=skips))
        self._refuse_first(seen)
        counted_by_all = all(first.counted for first in seen)
        self._may_skip = any(first.may_skip for first in seen)
        if self._counted and self._may_skip:
            raise StepError(
                "counted=True takes the number of samples from the order, but this loader may leave out damaged ones "
                "(on_bad_sample=), or is a stream without an order: leave counted= out"
            )
        if self._counted is None:
            self._counted = counted_by_all and not self._may_skip
        self._held = held

    def _refuse_first(self, seen: list[FirstPass]) -> None:
        """Raise an error on every rank for problems in any rank's first pass."""
        if len({first.units for first in seen}) > 1:
            ways = "; ".join(f"rank {rank}: {', '.join(first.units)}" for rank, first in enumerate(seen))
            raise StepError(
                f"the ranks went through the sharded units of the model in different ways ({ways}), but all ranks must "
                "gather a unit together: pass find_unused=True, which makes one unit of them, or strategy='ddp'"
            )
        unused = {rank: first.unused for rank, first in enumerate(seen) if first.unused}
        if unused:
            names = list(dict.fromkeys(name for found in unused.values() for name in found))
            raise StepError(unused_text(names, f"in the first pass of rank {', '.join(map(str, unused))}"))
        if self.lone_sample and seen[0].needs_two:
            raise StepError(
                f"{self.lone_sample}, and {', '.join(map(repr, seen[0].needs_two))} of the model takes batch "
                "statistics, which a single sample does not have: torch would fail at that step. Choose another "
                'batch_size or micro_batch, Order(remainder="drop"), or a norm without batch statistics (GroupNorm)'
            )

    def _unscale(self, scaler: torch.amp.GradScaler) -> bool:
        """Divide the gradients by the loss scale; return whether they are finite, the same on all ranks.

        Gradients of replicas are equal, including infinities, so all ranks decide alike without communication.
        """
        scaler.unscale_(self._optimizer)
        found = scaler._found_inf_per_device(self._optimizer)  # noqa: SLF001  (torch's sharded scaler does so, too)
        overflowed = any(flag.item() for flag in found.values())
        if self._shares_overflows:
            overflowed = bool(self._world.all_reduce(overflowed, op="max"))
            for flag in found.values() if overflowed else ():
                flag.fill_(1.0)
        return not overflowed

    def _watch_used(self, share: Share, *, num_micro: int) -> AbstractContextManager[_Used | None]:
        """Remove the gradients at the end that only stand-ins gave, if there may be any.

        Momentum and weight decay treat a zero as a gradient: it would change parameters that one rank leaves alone.
        """
        size = self._world.world_size
        smallest = share.step.size if size == 1 else smallest_share(share)
        if smallest >= num_micro and not self._may_skip:
            return _NOTHING
        return _Used(self._model, self._world) if size == 1 or finds_unused(self._model) else _NOTHING

    def _micro_batches(self, window: Window, batches: tuple[Batch, ...], used: _Used | None) -> list[StepOutput]:
        """Run all micro-batches and return the outputs of those with samples."""
        outputs = []
        for given in batches:
            empty, batch = len(given.ids) == 0, given
            if empty:  # a rank without samples runs its held sample, with weight zero
                assert self._held is not None
                batch = self._held
            if used is not None:
                used.counting = not empty
            context = window.micro_batch()
            if not empty and type(context) is nullcontext:  # the common case: an empty context costs four calls
                output = self._pass(window, batch)
            else:
                with context, held_pass(self._model) if empty else _NOTHING:
                    output = self._pass(window, batch, empty=empty)
            if output is not None:
                outputs.append(output)
        return outputs

    def _pass(self, window: Window, batch: Batch, *, empty: bool = False) -> StepOutput | None:
        try:
            answer = self._step_fn(self._model, batch)
        except RuntimeError as error:
            raise explained(error, self._model, self._reduced)  # noqa: B904  (the cause is set where it is explained)
        output = read_output(answer, batch)
        if empty:
            window.backward(output.total * 0, 0.0)
            return None
        if self._counted:
            self._check_count(output, batch)
        total = output.total if self.scaler is None else self.scaler.scale(output.total)
        try:
            window.backward(total, output.weight)
        except RuntimeError as error:
            raise explained(error, self._model, self._reduced)  # noqa: B904
        return output

    def _check_count(self, output: StepOutput, batch: Batch) -> None:
        if not output.counted:
            raise StepError(
                "the step function returned (sum, weight) after a result that the order can count: always return the "
                "same form"
            )
        weights = batch.share.weights
        expected = len(batch.ids) if weights is None else int((weights > 0).sum())
        if output.weight != expected:  # if counted: the number of samples that arrived
            raise StepError(
                f"{expected - batch.count} of the {expected} samples of this share did not arrive, so the order cannot "
                "count the step: pass counted=False to ExactStep or Trainer"
            )

    def _clip(self, batches: tuple[Batch, ...], loss: Any) -> float | None:
        assert self._max_grad_norm is not None
        every = self._model.parameters()
        parameters: list[Any] = [_Values(p) if p.grad.is_sparse else p for p in every if p.grad is not None]
        if not parameters:
            return None
        import torch

        norm_ = torch.nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
        # for sharded gradients this is a DTensor: float() would give only this rank's part
        norm = float(norm_.full_tensor() if hasattr(norm_, "full_tensor") else norm_)
        if not math.isfinite(norm):
            self._refuse(batches, loss, norm, "This step changed nothing")
        return norm

    def _refuse(self, batches: tuple[Batch, ...], loss: Any, gradient: float, after: str) -> NoReturn:
        """Raise on every rank; the gradient, or its check, is equal on all ranks, so all of them call this."""
        problem = first_nonfinite([batch.share for batch in batches], {"loss": loss, "gradient": gradient})
        raise StepError(describe_problems(self._world.all_gather_object(problem), after, self._model))


class _Values:
    """What clipping sees of a parameter with a sparse gradient: its values, over the gradient's own memory."""

    def __init__(self, parameter: Any) -> None:
        parameter.grad = parameter.grad.coalesce()  # a row that stands twice has one norm
        self.grad = parameter.grad.values()


class _Used:
    """Records which parameters get a gradient from real samples; at the end, removes gradients that no rank's gave.

    A context manager around the backward passes of a step, on every rank.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self.counting = False
        self._world = world
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._used = [0] * len(self._parameters)
        self._handles = watch_gradients(model, self._note)

    def _note(self, index: int) -> None:
        if self.counting:
            self._used[index] = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        if kind is not None:
            return
        used = self._world.all_reduce(np.array(self._used, dtype=np.int64), op="max")
        for parameter, is_used in zip(self._parameters, used.tolist(), strict=True):
            if not is_used:
                parameter.grad = None


def _totals(outputs: list[StepOutput]) -> tuple[tuple[Any, Any], dict[str, tuple[Any, Any]]]:
    """Sum the micro-batches of this rank."""
    loss: tuple[Any, Any] = (0.0, 0.0)
    metrics: dict[str, tuple[Any, Any]] = {}
    if len(outputs) == 1:  # 0 + x costs a tensor operation each
        return (outputs[0].total.detach(), outputs[0].weight), dict(outputs[0].metrics)
    for output in outputs:
        loss = (loss[0] + on_host(output.total.detach()), loss[1] + output.weight)
        for name, (total, weight) in output.metrics.items():
            before = metrics.get(name, (0, 0))
            metrics[name] = (before[0] + total, before[1] + weight)
    return loss, metrics
