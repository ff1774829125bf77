"""`FullLength`: a loader for loops that count the steps of an epoch from its beginning, also after resuming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from rankwise.data.contract import JSON, OrderState
from rankwise.data.feed.workers.iterable import take_part

if TYPE_CHECKING:
    from rankwise.data.feed.cursor import CursorLoader

__all__ = ["FullLength"]


class FullLength:
    """A loader whose length is that of the whole epoch. Made by `CursorLoader.with_full_length`.

    A loader that was resumed after 4 of 15 steps has length 11. Lightning counts the 4 itself and compares with 15, so
    that it would end the epoch 4 steps early. It also sets the epoch of ``sampler``, which a loader has none of, at the
    start of each: the only word about where it is when it was resumed between two epochs. All else is the loader's own.

    Args:
        loader: the loader.
    """

    def __init__(self, loader: CursorLoader) -> None:
        self.loader = loader
        take_part(self)

    def __reduce__(self) -> tuple[type[FullLength], tuple[CursorLoader]]:
        return FullLength, (self.loader,)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        """Number of steps of the whole epoch that the loader is in."""
        return self.loader.num_epoch_steps

    @property
    def sampler(self) -> Self:
        """Itself: what a loop calls `set_epoch` of."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        self.loader.set_epoch(epoch)

    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed.

        Raises:
            ConfigError: the state belongs to another order.
        """
        self.loader.mark_done(state)

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`, at any world size.

        Raises:
            ConfigError: the state belongs to other data, another kind of order or another seed.
        """
        self.loader.load_state_dict(state)
