"""Defaults for orders and sources of one's own: what a simple one need not say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from rankwise.data.contract.protocols import Grid, Order, Samples, Source
from rankwise.data.contract.values import Locality, OrderState
from rankwise.errors import ConfigError

__all__ = ["BaseOrder", "BaseSamples", "BaseSource", "not_drawn"]


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
