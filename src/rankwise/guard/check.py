"""What a check is, and what all of them look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rankwise.errors import GuardError
from rankwise.guard.findings import Finding
from rankwise.guard.tensors import replicas_in

if TYPE_CHECKING:
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from rankwise.world import World

__all__ = ["Check", "Look", "Subject"]


@dataclass(slots=True, kw_only=True)
class Subject:
    """What is watched.

    Attributes:
        world: this rank's.
        model: as it is called: wrapped or not.
        loss: a loss module, if the user has named one.
        loader: the training data, if the user has named them.
        handles: hooks that stand until the step that is looked at has ended.
        ids: samples of the step, where somebody told.
        trouble: how a hook failed, "" if none did.
    """

    world: World
    model: nn.Module
    loss: Any = None
    loader: Any = None
    handles: list[Any] = field(default_factory=list)
    ids: Sequence[int] = ()
    trouble: str = ""

    @property
    def wrapper(self) -> DistributedDataParallel | None:
        """The DistributedDataParallel in the model: it may have come later than the guard."""
        return replicas_in(self.model)

    @property
    def is_compiled(self) -> bool:
        """Whether torch.compile has taken in the model or a part of it."""
        marks = ("_orig_mod", "_compiled_call_impl")
        return any(getattr(module, mark, None) is not None for module in self.model.modules() for mark in marks)

    def place(self, register: Callable[..., Any], see: Callable[..., None], **options: Any) -> None:
        """Register a hook until the next look. It raises `GuardError` only: its own bugs must not end a training."""

        def hook(*given: Any) -> None:
            try:
                see(*given)
            except GuardError:
                raise
            except Exception as error:  # noqa: BLE001  (told to all ranks at the look)
                self.trouble = f"{type(error).__name__}: {error}"

        self.handles.append(register(hook, **options))

    def disarm(self) -> None:
        """Take all hooks away."""
        while self.handles:
            self.handles.pop().remove()


@dataclass(slots=True, kw_only=True)
class Look:
    """One look at a step, on all ranks at once.

    Attributes:
        world_size: number of ranks.
        number: how many looks there were before.
        step: optimizer steps taken.
        whole: whether every tensor is looked at, or a share that changes from look to look.
        talk: gathers an object of every rank; every rank must call it, so only what was gathered may decide on it.
        found: what earlier checks of this look found.
    """

    world_size: int
    number: int
    step: int
    whole: bool
    talk: Callable[[Any], list[Any]]
    found: list[Finding] = field(default_factory=list)

    @classmethod
    def at(cls, world: World, *, number: int = 0, step: int = 0, whole: bool = True) -> Look:
        """Return a look of the ranks of a world."""
        return cls(world_size=world.world_size, number=number, step=step, whole=whole, talk=world.all_gather_object)

    def tell(
        self, check: str, ranks: Sequence[int], where: str, *, wanted: str, came: str, mend: str, certain: bool = True
    ) -> None:
        """Add a finding."""
        told = Finding(
            check=check,
            ranks=tuple(ranks),
            where=where,
            wanted=wanted,
            came=came,
            mend=mend,
            certain=certain,
            step=self.step,
        )
        self.found.append(told)


class Check(Protocol):
    """One check. `facts` is local and never talks; `judge` sees the facts of all ranks and is the same on each.

    It may have ``arm()``, which places hooks for a step that will be looked at, and ``close()``.
    """

    name: str

    def facts(self, look: Look) -> Any:
        """Return what this rank saw, small and picklable."""
        ...

    def judge(self, facts: Sequence[Any], look: Look) -> None:
        """Tell the look what is wrong, from the facts by rank."""
        ...
