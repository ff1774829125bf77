"""Defaults for orders, sources and loaders of one's own: what a simple one need not say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from rankwise.data.contract.protocols import BatchLoader, Grid, Order, Samples, Source, Stateful
from rankwise.data.contract.values import Locality, OrderState
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


class _Closed:
    """What a ``with`` block closes."""

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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


class BaseSource(_Closed, BaseSamples):
    """A `Source` without choices; a subclass has `fingerprint`, `num_samples`, `fields`, `plan` and `read`.

    Its samples are read step by step, after their epoch was asked for. Leaving its context closes it.
    """

    @property
    def stateless(self) -> bool:
        """What is read may change between epochs."""
        return False

    def hint(self, plan: Any) -> None:
        """Tell nobody that `plan` will be read soon."""

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


class BaseLoader(_Closed, BatchLoader):
    """All that the trainer asks of a loader, each where nothing is known; a subclass has what `BatchLoader` wants."""

    @property
    def order(self) -> Order | None:
        """The order of its steps, as resumed; None = no order knows them."""
        return None

    @property
    def samples(self) -> Any:
        """The `Source`, or the map-style dataset, in which its samples lie; None = unknown."""
        return None

    @property
    def num_epoch_steps(self) -> int | None:
        """Steps of the whole epoch, done or not, while ``len`` counts those that are left; None = nobody knows."""
        return None

    @property
    def micro_batch(self) -> int | None:
        """Most samples of this rank in one batch; None = its whole share at once."""
        return None

    @property
    def takes_speeds(self) -> bool:
        """Whether its steps are those of an order that `set_speeds` may cut, but for what `equal_because` says."""
        return False

    @property
    def equal_because(self) -> str:
        """Why a loader that takes speeds cuts equal shares only; "" where it need not."""
        return ""

    @property
    def speeds(self) -> tuple[int, ...] | None:
        """By which the ranks' shares are cut, see `shares`; None where they are equal."""
        return None

    def set_speeds(self, speeds: Sequence[float] | None) -> None:
        """Cut shares in proportion to the speeds of the ranks, from the next iteration on; None makes them equal."""
        raise ConfigError(f"speeds={speeds} want a loader over an Order; {type(self).__name__} cannot cut its steps")

    def start_prefetch(self) -> bool:
        """Begin to read what the next iteration brings, which it does not change; return whether anything is read."""
        return False

    def expect_last_epoch(self) -> None:
        """Say that no iteration follows the next one soon, which it does not change."""

    @property
    def rank_state(self) -> Stateful | None:
        """What a checkpoint keeps of each rank beside `state_dict`; None = nothing."""
        return None
