"""What a check is, the data that all checks share, and how they name modules and find tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankwise.errors import GuardError
from rankwise.guard.findings import Finding

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from rankwise.world import World

__all__ = ["Check", "CheckedStep", "Subject", "plain_name", "replicas_in", "tensors_of"]


@dataclass(slots=True, kw_only=True)
class Subject:
    """The training that the guard watches.

    Attributes:
        world: this rank's world.
        model: the model as the loop calls it: wrapped or not.
        loss: a loss module, if the user passed one.
        loader: the training data, if the user passed them.
        handles: hooks that are registered until the checked step has ended.
        ids: samples of the step, if known.
        trouble: the error of a hook, "" if none failed.
        num_checked: number of checked steps so far.
        whole: whether to check every tensor, or a part that changes from one checked step to the next.
    """

    world: World
    model: nn.Module
    loss: Any = None
    loader: Any = None
    handles: list[Any] = field(default_factory=list)
    ids: Sequence[int] = ()
    trouble: str = ""
    num_checked: int = 0
    whole: bool = True

    @property
    def wrapper(self) -> DistributedDataParallel | None:
        """Return the model's DistributedDataParallel, looked up each time: it may be created after the guard."""
        return replicas_in(self.model)

    @property
    def is_compiled(self) -> bool:
        """Whether the model or a part of it is compiled with torch.compile."""
        marks = ("_orig_mod", "_compiled_call_impl")
        return any(getattr(module, mark, None) is not None for module in self.model.modules() for mark in marks)

    def hook(self, register: Callable[..., Any], see: Callable[..., None], **options: Any) -> None:
        """Register a hook until the next check. It raises `GuardError` only: a bug of a check must not end training."""

        def called(*given: Any) -> None:
            try:
                see(*given)
            except GuardError:
                raise
            except Exception as error:  # noqa: BLE001  (told to all ranks at the check)
                self.trouble = f"{type(error).__name__}: {error}"

        self.handles.append(register(called, **options))

    def disarm(self) -> None:
        """Remove all hooks."""
        while self.handles:
            self.handles.pop().remove()


@dataclass(slots=True, kw_only=True)
class CheckedStep:
    """All checks of one step, on all ranks at once.

    Attributes:
        world: the guard's own world.
        number: optimizer steps taken.
        found: findings of the checks so far.
    """

    world: World
    number: int = 0
    found: list[Finding] = field(default_factory=list)

    def gather(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks. Every rank must call it, so decide about calls by gathered data only."""
        return self.world.all_gather_object(mine) if self.world.world_size > 1 else [mine]

    def report(
        self, check: str, ranks: Sequence[int], where: str, *, wanted: str, came: str, mend: str, certain: bool = True
    ) -> None:
        """Add a finding."""
        finding = Finding(
            check=check,
            ranks=tuple(ranks),
            where=where,
            wanted=wanted,
            came=came,
            mend=mend,
            certain=certain,
            step=self.number,
        )
        self.found.append(finding)


class Check:
    """One check. `facts` is local and does not communicate; `judge` gets the facts of all ranks, equal on each.

    Args:
        subject: the training to check.
    """

    name: str

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def arm(self) -> None:
        """Register hooks before a checked step."""

    def facts(self) -> Any:
        """Return this rank's facts, small and picklable."""
        raise NotImplementedError

    def judge(self, facts: Sequence[Any], step: CheckedStep) -> None:
        """Report findings, from the facts by rank."""
        raise NotImplementedError

    def close(self) -> None:
        """Undo what the check has changed."""


def plain_name(name: str) -> str:
    """Return a parameter's or module's name without the prefixes of wrappers."""
    parts = name.split(".")
    while parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(part for part in parts if part != "_orig_mod")


def replicas_in(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that the model is or contains, or None."""
    from torch.nn.parallel import DistributedDataParallel

    return next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and mappings."""
    import torch

    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [tensor for value in tree.values() for tensor in tensors_of(value)]
    if isinstance(tree, list | tuple):
        return [tensor for value in tree for tensor in tensors_of(value)]
    return []
