"""Defaults for orders, sources and loaders of one's own: what a simple one need not say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from rankwise.data.contract.protocols import Batch, Grid, Order, Samples, Source, Stateful
from rankwise.data.contract.values import JSON, Locality, OrderState
from rankwise.errors import ConfigError

__all__ = ["BaseLoader", "BaseOrder", "BaseSamples", "BaseSource", "not_drawn"]


class BaseOrder:
    """An `Order` without lanes and draws; a subclass has `recipe`, `batch_size`, `fingerprint` and the steps."""

    @property
    def samples(self) -> int | None:
        """It serves data of any size."""
        return None

    @property
    def kind(self) -> str:
        """Each epoch is another order."""
        return "shuffle"

    @property
    def remainder(self) -> str:
        """The last batch is split over the ranks."""
        return "split"

    @property
    def grid(self) -> Grid | None:
        """No lanes."""
        return None

    @property
    def draw(self) -> Any:
        """No draws."""
        return None

    def resumed(self, state: OrderState) -> Self:
        """Return this order: nothing of it follows from the batch size."""
        del state
        return self


def not_drawn(asked: Iterable[str], samples: object) -> str:
    """What to say where draws were asked of samples that have none."""
    return (
        f"{', '.join(f'{name}=' for name in asked)} want samples that can be drawn, such as a collection of rows; "
        f"got {type(samples).__name__}"
    )


class BaseSamples:
    """`Samples` that say nothing about their storage; a subclass has `fingerprint`, `num_samples` and `fields`."""

    @property
    def locality(self) -> Locality:
        """Neighbours share nothing."""
        return Locality()

    @property
    def draw_options(self) -> Any:
        """The samples were not drawn."""
        return None

    def drawn(self, *args: Any, **options: Any) -> Samples:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        del args
        raise ConfigError(not_drawn(options, self))


class BaseSource(BaseSamples):
    """A `Source` without choices; a subclass has `fingerprint`, `num_samples`, `fields`, `plan` and `read`.

    Its samples are read step by step, after their epoch was asked for.
    """

    @property
    def stateless(self) -> bool:
        """What is read may change between epochs."""
        return False

    def hint(self, plan: Any) -> None:
        """Tell nobody that `plan` will be read soon."""

    def close(self) -> None:
        """Nothing is open."""

    def select(self, fields: Sequence[str]) -> Source:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"fields={list(fields)} needs a source that can select fields; {type(self).__name__} cannot")

    def bound_to(self, order: Order) -> Self:
        """Return this source: there is one way to count its samples."""
        del order
        return self

    def fused_with(self, batch_transform: Any) -> Source | None:
        """Return None: transforms of batches are done after reading."""
        del batch_transform
        return None


class BaseLoader(ABC):
    """A `BatchLoader` of which only the steps and the position are known: a subclass has the abstract methods.

    No order knows its steps, nothing is read ahead, and no shares are cut by speed.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        """Iterate from the current state to the end of its epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps that an iteration started now would take; `sys.maxsize` where nobody knows."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""

    @abstractmethod
    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed."""

    @abstractmethod
    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`."""

    @property
    def order(self) -> Order | None:
        """No order knows its steps."""
        return None

    @property
    def num_epoch_steps(self) -> int | None:
        """Nobody knows."""
        return None

    @property
    def micro_batch(self) -> int | None:
        """A share is one batch."""
        return None

    @property
    def takes_speeds(self) -> bool:
        """Shares are as they come."""
        return False

    @property
    def equal_because(self) -> str:
        """Nothing but `takes_speeds` forbids it."""
        return ""

    @property
    def speeds(self) -> tuple[int, ...] | None:
        """Shares are as they come."""
        return None

    def set_speeds(self, speeds: Sequence[float] | None) -> None:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"speeds={speeds} want a loader over an Order; {type(self).__name__} cannot cut its steps")

    def start_prefetch(self) -> bool:
        """Read nothing."""
        return False

    def expect_last_epoch(self) -> None:  # noqa: B027  (a default, not a gap)
        """Nothing is read ahead at the end of an epoch."""

    @property
    def rank_state(self) -> Stateful | None:
        """No rank has anything to keep."""
        return None

    def first_sample(self) -> Any:
        """Nobody knows."""
        return None
