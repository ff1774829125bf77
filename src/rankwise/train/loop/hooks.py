"""Hooks: observe and control a training run without writing a loop."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rankwise.checkpoint import Replicated
from rankwise.data.contract import Stateful
from rankwise.errors import ConfigError, DesyncError
from rankwise.train.loop.monitors import SystemMetrics
from rankwise.train.step.ledger import StepReport

if TYPE_CHECKING:
    from rankwise.train.trainer import Trainer

_LOG = logging.getLogger("rankwise.train")
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions that the trainer calls, on every rank (so they may use collectives).

    Any object with some methods of these names is also a hook: ``Trainer(hooks=[EarlyStopping(), Throughput()])``.
    If it has `state_dict` and `load_state_dict`, it is part of the checkpoints. A hook that raises stops the run on all
    ranks: at once with one rank, at the next log step, validation or checkpoint with several. Until then the rank
    continues without its hooks, because the others are in the middle of a step.

    Attributes:
        fit_start: once, after resuming and before the first step.
        step_end: after each optimizer step, with its report; the gradients still exist.
        numbers: at each log step, before the reduction: returns further values of the line, equal on all ranks.
        rank_numbers: the same with values of this rank, which are logged as ``name/min``, ``/mean`` and ``/max``,
            or unchanged if the name ends in ``/rank<number>``.
        log: at each log step, with the step number and the reduced values (equal on all ranks).
        validation_end: after an epoch's validation, before its checkpoint, with the epoch and its reduced values.
        epoch_end: after an epoch's validation and checkpoint, with the epoch and its reduced values.
        checkpoint_begin: before a checkpoint is written, with the step number.
        checkpoint_end: after it is published, with the step number.
        failure: with the error that ends the training, before it propagates; on the ranks that raised one.
        fit_end: once, after the last epoch.
    """

    fit_start: Callable[[Trainer], None] | None = None
    step_end: Callable[[Trainer, StepReport], None] | None = None
    numbers: Callable[[Trainer], Values] | None = None
    rank_numbers: Callable[[Trainer], Values] | None = None
    log: Callable[[Trainer, int, Values], None] | None = None
    validation_end: Callable[[Trainer, int, Values], None] | None = None
    epoch_end: Callable[[Trainer, int, Values], None] | None = None
    checkpoint_begin: Callable[[Trainer, int], None] | None = None
    checkpoint_end: Callable[[Trainer, int], None] | None = None
    failure: Callable[[Trainer, Exception], None] | None = None
    fit_end: Callable[[Trainer], None] | None = None


EVENTS = tuple(field.name for field in fields(Hooks))


class HookReport(NamedTuple):
    """What a rank's hooks report to the other ranks, sent with an existing reduction."""

    error: str | None
    stop: str
    numbers: Mapping[str, float]


_NOTHING_TO_REPORT = HookReport(None, "", {})


class HookChain:
    """The hooks of a trainer, called one after another; agrees with the other ranks on errors and on stopping.

    Args:
        trainer: passed to the hooks.
        hooks: one object, or several, with methods of `EVENTS`; missing ones and None are skipped.
        system_metrics: as the trainer's.

    Attributes:
        parts: hooks that are part of the checkpoints.
        at_steps: whether any is called at the end of each step.
        wanted_stop: why this rank wants to stop, "" if it does not.
        stop: why all ranks stop after this step, as agreed.
        spread: the last numbers of all ranks.

    Raises:
        ConfigError: an object has none of these methods.
    """

    def __init__(self, trainer: Trainer, hooks: Any, system_metrics: bool | str = False) -> None:  # noqa: FBT001, FBT002
        # weak: a trainer that nobody holds frees its model and loader at once, not at the next garbage collection
        self._trainer, self._world = weakref.ref(trainer), trainer.world
        self._calls: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}
        self.parts: dict[str, Stateful] = {}
        self.stop = self.wanted_stop = ""
        self.spread: dict[str, float] = {}
        self._error: Exception | None = None
        several = hooks if isinstance(hooks, Sequence) else () if hooks is None else (hooks,)
        system = (SystemMetrics(per_rank=system_metrics == "per_rank"),) if system_metrics else ()
        for hook in (*several, *system):
            found = {event: getattr(hook, event, None) for event in EVENTS}
            if not isinstance(hook, Hooks) and not any(map(callable, found.values())):
                raise ConfigError(
                    f"a hook needs at least one of the methods {', '.join(EVENTS)}; {hook!r} has none of them"
                )
            for event, call in found.items():
                self._calls[event] += [call] if call is not None else []
            if hasattr(hook, "load_state_dict"):
                name = f"hook_{type(hook).__name__}"
                self.parts[f"{name}_{len(self.parts)}" if name in self.parts else name] = Replicated(hook)
        self.at_steps = bool(self._calls["step_end"])

    def begin(self, stopped: str) -> None:
        """Begin a training; `stopped` is the reason why it was stopped before."""
        self.stop = self.wanted_stop = stopped
        self._error = None

    def call(self, event: str, *args: Any) -> None:
        """Call all hooks of an event.

        Also after an error: on the other ranks, which do not know of it yet, a hook may wait in a collective for this.

        Raises:
            Exception: see `attempt`.
        """
        for call in self._calls[event]:
            self.attempt(call, self._trainer(), *args)

    def attempt(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return what `act` returns; after an error None. The other ranks, in the middle of a step, do not wait.

        Raises:
            Exception: the error of `act`, if this is the only rank; otherwise `settle` raises it.
        """
        try:
            return act(*args, **options)
        except Exception as error:
            # a broken group cannot report the error, and no rank waits in it
            if self._world.world_size == 1 or (self._world.channel is not None and self._world.channel.broken):
                raise
            self._error = self._error or error

    def call_together(self, event: str, *args: Any) -> None:
        """Call all hooks of an event and agree at once on errors. Every rank calls it."""
        if self._calls[event]:
            self.call(event, *args)
            self.settle(self._world.all_gather_object(self.report()))

    def report(self, *, numbers: bool = False) -> HookReport:
        """Return what the other ranks must know; `numbers` also calls the hooks for values of this rank."""
        mine = self.numbers("rank_numbers") if numbers else {}
        if self._error is None and not self.wanted_stop and not mine:
            return _NOTHING_TO_REPORT
        return HookReport(
            None if self._error is None else f"{type(self._error).__name__}: {self._error}", self.wanted_stop, mine
        )

    def settle(self, reports: Sequence[HookReport]) -> None:
        """Process the reports of all ranks: errors, requests to stop, and the numbers of their hooks.

        Raises:
            Exception: the error of a hook or tracker on this rank.
            DesyncError: one of another rank raised.
        """
        if self._error is not None:
            raise self._error
        if reports.count(_NOTHING_TO_REPORT) == len(reports):
            self.spread = {}
            return
        failed = {rank: one.error for rank, one in enumerate(reports) if one.error is not None}
        if failed:
            lines = "; ".join(f"rank {rank}: {error}" for rank, error in failed.items())
            raise DesyncError(
                f"a hook or tracker failed on another rank, so the training stops here: {lines}", ranks=(*failed,)
            )
        self.stop = self.stop or next((one.stop for one in reports if one.stop), "")
        self.spread = {}
        for name in sorted({name for one in reports for name in one.numbers}):
            values = [one.numbers[name] for one in reports if name in one.numbers]
            own = re.search(r"/rank\d+$", name) is not None
            spread = {"/min": min(values), "/mean": sum(values) / len(values), "/max": max(values)}
            self.spread |= {name: values[0]} if own else {f"{name}{what}": value for what, value in spread.items()}

    def numbers(self, event: Literal["numbers", "rank_numbers"]) -> dict[str, float]:
        """Return the hooks' values for the next log line: those equal on all ranks, or those of this rank."""

        def read(call: Callable[..., Any]) -> dict[str, float]:
            answer = call(self._trainer())
            if not isinstance(answer, Mapping):
                raise ConfigError(f"a hook's {event} must return numbers by name, a dict; got {answer!r:.60}")
            return {name: float(value) for name, value in answer.items()}

        answers = [self.attempt(read, call) or {} for call in self._calls[event]]
        return {name: value for answer in answers for name, value in answer.items()}

    def fail(self, error: Exception) -> None:
        """Tell the hooks about an error that ends the training; log and ignore errors of these hooks."""
        for call in self._calls["failure"]:
            try:
                call(self._trainer(), error)
            except Exception:  # noqa: BLE001  (the error that ended the training is the one to raise)
                _LOG.exception("the hook %r failed while it handled a failure", call)
