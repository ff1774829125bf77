"""`guarded`: check the first steps and then a few, on all ranks at once, in a process group of its own."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rankwise._shutdown import let_gloo_finish
from rankwise.errors import ConfigError, GuardError, RankwiseError
from rankwise.guard.check import Check, CheckedStep, Devices, Finite, Subject
from rankwise.guard.findings import Finding
from rankwise.guard.inputs import Epochs, RandomStreams, Samples, compare_loaders, loader_facts
from rankwise.guard.replicas import Gradients, Parameters, Reductions, Unused, compare_signatures
from rankwise.guard.tensors import tensors_apart
from rankwise.world import World
from rankwise.world.adopt import joined_world
from rankwise.world.collectives.channel import Channel

if TYPE_CHECKING:
    from torch import nn

_LOG = logging.getLogger("rankwise.guard")
_KINDS: dict[str, type[Check]] = {
    kind.name: kind
    for kind in (Gradients, Parameters, Finite, Samples, Epochs, Devices, RandomStreams, Reductions, Unused)
}
CHECKS = ("signature", *_KINDS)
_ALONE = ("finite", "loader", "devices")  # checks that make sense for a single rank


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Which checks run, and how often.

    Attributes:
        checks: "cheap" checks the first steps and then a few; "all" checks every step; or names of `CHECKS`.
        every: steps between two checks in the long run; at the start the distance doubles until it reaches this. None =
            500, with "all" 1.
        first: number of steps at the start that are all checked.
        on_finding: "raise" raises certain errors and logs suspicions; "warn" logs both.
        timeout_s: how long a check waits for the other ranks before the guard turns itself off.
    """

    checks: Literal["cheap", "all"] | Sequence[str] = "cheap"
    every: int | None = None
    first: int = 3
    on_finding: Literal["raise", "warn"] = "raise"
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if isinstance(self.checks, str) and self.checks not in ("cheap", "all"):
            raise ConfigError(f"checks= must be 'cheap', 'all' or a list of names, got {self.checks!r}")
        if unknown := sorted(set(self.names) - set(CHECKS)):
            raise ConfigError(f"there is no check named {', '.join(unknown)}; available checks: {', '.join(CHECKS)}")
        if self.on_finding not in ("raise", "warn"):
            raise ConfigError(f"on_finding= must be 'raise' or 'warn', got {self.on_finding!r}")
        if self.spacing < 1 or self.first < 0 or not self.timeout_s > 0:
            raise ConfigError(
                f"every= must be at least 1, first= at least 0, timeout_s= above 0; got {self.every!r}, {self.first!r} "
                f"and {self.timeout_s!r}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checks that run."""
        return CHECKS if isinstance(self.checks, str) else tuple(self.checks)

    @property
    def spacing(self) -> int:
        """The number of steps between two checks in the long run."""
        return (1 if self.checks == "all" else 500) if self.every is None else self.every

    def is_due(self, step: int) -> bool:
        """Whether to check a step: pure arithmetic, so all ranks check the same steps."""
        return self.next_due(step) == step

    def next_due(self, step: int) -> int:
        """Return the first step from `step` on that is checked."""
        if step <= self.first:
            return step
        due, doubled = -(-step // self.spacing) * self.spacing, 1 << (step - 1).bit_length()
        return min(due, doubled) if doubled < self.spacing else due


class Guard:
    """Watches a training loop; created by `guarded`. A context manager; `close` ends it.

    Attributes:
        findings: findings so far, equal on all ranks.
        num_steps: optimizer steps since its creation.
        active: False once it was closed or has turned itself off.
        not_finite: if the check "finite" is exempt, a text about the last step's first non-finite value; "" if all
            values are finite, or the step was not checked.
    """

    def __init__(
        self, subject: Subject, options: GuardOptions, *, optimizer: Any = None, exempt: Sequence[str] = ()
    ) -> None:
        self._subject, self._options = subject, options
        self.findings: list[Finding] = []
        self.num_steps = 0
        self.active = True
        self.not_finite = ""
        self._due = self._wake = sys.maxsize  # the next step that is checked, and the next at which there is work
        self._said: set[tuple[str, str, bool]] = set()
        self._failed: set[str] = set()
        hooked = None if optimizer is None else _plain_optimizer(optimizer)
        alone = subject.world.world_size == 1
        names = [name for name in options.names if name not in exempt and (name in _ALONE or not alone)]
        self._world = _own_world(subject.world, options.timeout_s) if names else subject.world
        self._checks: list[Check] = [_KINDS[name](subject) for name in names if name in _KINDS]
        # if the trainer judges non-finite values, still find the module that produces them
        self._finite = Finite(subject) if "finite" in exempt and "finite" in options.names else None
        self._handle = None if hooked is None else hooked.register_step_post_hook(self.step)
        try:
            self._together(functools.partial(self._check_before, names))
        except BaseException:
            self.close()
            raise
        if self.active:
            self._look_ahead()
        apart = len(tensors_apart(subject.model)) + sum(hasattr(p, "placements") for p in subject.model.parameters())
        if apart and self._checks and self._world.is_main:
            _LOG.info("%d parameters are sharded or ignored by their wrapper and are not compared", apart)

    def _check_before(self, names: Sequence[str], step: CheckedStep) -> None:
        loader = self._subject.loader
        if "signature" in names:
            compare_signatures(self._subject.model, step)
        if "loader" in names and loader is not None:
            facts = self._whole("loader", step.gather(_safely(lambda: loader_facts(loader))))
            if facts is not None:
                compare_loaders(facts, step)

    @property
    def num_checked(self) -> int:
        """Number of checked steps."""
        return self._subject.num_checked

    def saw(self, ids: Sequence[int]) -> None:
        """Set the samples of this rank's share of the next step, in row order, for messages."""
        self._subject.ids = ids

    def step(self, *_from_hook: Any) -> None:
        """Note an optimizer step. Call it only without `optimizer=`, on every rank and at every step.

        Raises:
            GuardError: there is a certain error (``on_finding="raise"``); on every rank.
        """
        self.num_steps += 1
        if self.num_steps < self._wake:
            return
        self.not_finite = ""
        if self.num_steps == self._due:
            self._subject.disarm()
            self.not_finite = "" if self._finite is None else self._finite.first()
            self._together(self._check)
        if self.active:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Find the next step that is checked; if it is the very next one, register the hooks."""
        checks, following = [*self._checks, *([] if self._finite is None else [self._finite])], self.num_steps + 1
        if not checks:
            return
        self._due = self._options.next_due(following)
        self._wake = max(following, self._due - 1)
        if self._due > following or self._subject.is_compiled:  # a hook would be compiled into the model and stay
            return
        for check in checks:
            _, failed = _safely(check.arm)
            self._subject.trouble = failed or self._subject.trouble

    def _check(self, step: CheckedStep) -> None:
        """Gather all facts with one call, and compare them; further communication depends on gathered facts only."""
        mine = [_safely(check.facts) for check in self._checks]
        *by_check, of_hooks = zip(*step.gather([*mine, (None, self._subject.trouble)]), strict=True)
        self._whole("of a hook", of_hooks)
        for check, tried in zip(self._checks, by_check, strict=True):
            facts = self._whole(check.name, tried)
            if facts is not None:
                check.compare(facts, step)

    def _whole(self, name: str, tried: Sequence[tuple[Any, str]]) -> Sequence[Any] | None:
        """Return the facts of all ranks for a check; None if it failed on one, which is said once."""
        facts, failures = zip(*tried, strict=True)
        for rank, failed in enumerate(failures):
            if failed:
                if name not in self._failed:
                    self._failed.add(name)
                    self._log(f"the check {name!r} has no result: it failed on rank {rank} with {failed}")
                return None
        return facts

    def _together(self, act: Callable[[CheckedStep], None]) -> None:
        subject = self._subject
        subject.whole = subject.num_checked < self._options.first or self._options.checks == "all"
        step = CheckedStep(world=self._world, number=self.num_steps)
        try:
            act(step)
        except RankwiseError as error:
            # a rank missing here is late, dead or at another step: the training's own collectives will show it
            self.close()
            _LOG.warning("the guard turns itself off after step %d: %s", self.num_steps, error)
            return
        subject.num_checked += self.num_steps > 0
        if step.found:
            self._report(step.found)

    def _report(self, found: list[Finding]) -> None:
        new = [one for one in found if (one.check, one.where, one.certain) not in self._said]
        self._said |= {(one.check, one.where, one.certain) for one in new}
        self.findings += new
        certain = [f for f in new if f.certain] if self._options.on_finding == "raise" else []
        for finding in new:
            if finding not in certain:
                self._log(str(finding))
        if certain:
            self.close()
            raise GuardError("\n".join(map(str, certain)), findings=tuple(certain))

    def _log(self, text: str) -> None:
        if self._world.is_main:
            _LOG.warning("%s", text)

    def close(self) -> None:
        """Remove all hooks. Not a collective."""
        self.active, self._wake = False, sys.maxsize
        self._subject.disarm()
        if self._handle is not None:
            self._handle.remove()
        for check in self._checks:
            check.close()
        if self._world.channel is not self._subject.world.channel:
            _leave(self._world)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _leave(world: World) -> None:
    """Destroy the guard's own group, except after a failed gather, which may still be running."""
    import torch.distributed as dist

    channel = world.channel
    group = channel.group if isinstance(channel, Channel) else None
    if isinstance(channel, Channel) and group is not None:
        let_gloo_finish()  # freeing the group waits for its threads with the interpreter's lock, which they may need
        channel.close()
        if dist.is_initialized() and not channel.broken.startswith("all_gather"):
            dist.destroy_process_group(group)


def _safely(act: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of `act`, and its error in words: a rank that raises alone would leave the others waiting."""
    try:
        return act(), ""
    except Exception as error:  # noqa: BLE001  (told to all ranks)
        return None, f"{type(error).__name__}: {error}"


def guarded(
    model: nn.Module,
    *,
    loader: Any = None,
    optimizer: Any = None,
    loss: Any = None,
    world: World | None = None,
    **options: Any,
) -> Guard:
    """Watch a training loop for silent errors of multi-rank training. Collective: every rank calls it.

    It checks the first steps and then a few, right after `optimizer.step()`; all other steps only increase a counter::

        with rankwise.guarded(model, optimizer=optimizer, loader=loader):
            for batch in loader: ...

    It works with plain DistributedDataParallel, `prepare`, Accelerate and Lightning (pass what they return), and with
    sharded models, whose shards are not compared. The ranks communicate in a separate group with its own timeout, at
    steps chosen by arithmetic only.

    Args:
        model: the model as the loop calls it: wrapped.
        loader: the training data: torch's DataLoader, or a loader of rankwise. Its iterations are counted.
        optimizer: the optimizer whose steps count. Without it, call `Guard.step` after each step.
        loss: a loss module, whose targets and weights are checked too.
        world: this rank's world; `World.current()` if None.
        **options: the fields of `GuardOptions`: ``checks=``, ``every=``, ``first=``, ``on_finding=``, ``timeout_s=``.

    Raises:
        ConfigError: an argument is invalid.
        GuardError: the ranks' models or loaders do not match.
    """
    known = [field.name for field in dataclasses.fields(GuardOptions)]
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(f"guarded has no option {', '.join(unknown)}; it has {', '.join(known)}")
    subject = Subject(world=joined_world(world, "a guard"), model=model, loss=loss, loader=loader)
    return Guard(subject, GuardOptions(**options), optimizer=optimizer)


def trainer_guard(options: GuardOptions, model: nn.Module, world: World) -> Guard:
    """Return a trainer's guard, without the checks that the trainer does itself: data shares and non-finite values.

    Every rank calls it. The trainer reports its steps with `Guard.step`.
    """
    return Guard(Subject(world=world, model=model), options, exempt=("samples", "loader", "finite"))


def guard_wish(wish: bool | Literal["warn"] | GuardOptions) -> GuardOptions:  # noqa: FBT001
    """Return the options for a trainer's ``guard=``; False runs no check.

    Raises:
        ConfigError: it is none of True, False, "warn" and `GuardOptions`.
    """
    if isinstance(wish, GuardOptions):
        return wish
    if wish not in (True, False, "warn"):
        raise ConfigError(f"guard= must be True, False, 'warn' or GuardOptions(...), got {wish!r}")
    return GuardOptions(checks="cheap" if wish else (), on_finding="warn" if wish == "warn" else "raise")


def _plain_optimizer(optimizer: Any) -> Any:
    """Return torch's optimizer inside those of Accelerate and Lightning; of several the last, which ends a step."""
    if isinstance(optimizer, list | tuple):
        optimizer = optimizer[-1]
    while hasattr(getattr(optimizer, "optimizer", None), "param_groups"):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "register_step_post_hook"):
        raise ConfigError(
            f"optimizer= must be a torch optimizer, got a {type(optimizer).__name__}; or call guard.step()"
        )
    return optimizer


def _own_world(world: World, timeout_s: float) -> World:
    """Return the world with a separate CPU group, where waiting does not block the training's collectives."""
    if not isinstance(world.channel, Channel):
        return world
    import torch.distributed as dist

    if world.world_size != dist.get_world_size():
        # a part of the job's ranks needs equal group counts, which `subgroup` ensures; it uses the world's timeout
        return world.subgroup(range(world.world_size)) or world
    timeout = timedelta(seconds=timeout_s)
    return dataclasses.replace(world, channel=Channel(dist.new_group(backend="gloo", timeout=timeout), timeout))
