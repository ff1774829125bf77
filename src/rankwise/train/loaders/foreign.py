"""Adapts other loaders: an object with a part of a `BatchLoader` becomes a complete one, or is refused.

Only this module probes the members of a loader. Behind it every loader is a `BaseLoader`, with all members.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankwise.data.contract import JSON, BaseLoader, BaseOrder, BaseSource, Batch, Order, OrderState, Stateful, Step
from rankwise.errors import ConfigError

__all__ = ["ForeignLoader", "as_loader", "check_loader", "check_val", "is_stream", "kind_of"]

_WANTED = ("__iter__", "__len__", "set_epoch", "mark_done", "state_dict", "load_state_dict")


class ForeignLoader(BaseLoader):
    """Adapts a loader that does not inherit from `BaseLoader`: passes calls on, with defaults for missing members.

    Args:
        loader: written by a user, or from another library.

    Attributes:
        loader: the loader as given.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader) if hasattr(self.loader, "__len__") else sys.maxsize

    def set_epoch(self, epoch: int) -> None:
        """Pass the call on."""
        self.loader.set_epoch(epoch)

    def mark_done(self, state: OrderState) -> None:
        """Pass the call on."""
        self.loader.mark_done(state)

    def state_dict(self) -> dict[str, JSON]:
        """Return the loader's state; held-out data may have none."""
        state: dict[str, JSON] = self.loader.state_dict() if hasattr(self.loader, "state_dict") else {}
        return state

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Pass the call on."""
        self.loader.load_state_dict(state)

    @property
    def order(self) -> Order | None:
        """The loader's order, if it has one."""
        order = getattr(self.loader, "order", None)
        return order if order is None or isinstance(order, Order) else _PartialOrder(order)

    @property
    def num_epoch_steps(self) -> int | None:
        """The number from its order, if known."""
        order: Any = getattr(self.loader, "order", None)
        if not hasattr(order, "start"):
            return None
        return int(order.num_steps(order.start(int(str(self.state_dict()["epoch"])))))

    @property
    def micro_batch(self) -> int | None:
        """The loader's value."""
        most: int | None = getattr(self.loader, "micro_batch", None)
        return most

    @property
    def takes_speeds(self) -> bool:
        """Whether it has `set_speeds`."""
        return callable(getattr(self.loader, "set_speeds", None))

    @property
    def equal_because(self) -> str:
        """The loader's value."""
        return str(getattr(self.loader, "equal_because", ""))

    @property
    def speeds(self) -> tuple[int, ...] | None:
        """The loader's value."""
        speeds: tuple[int, ...] | None = getattr(self.loader, "speeds", None)
        return speeds

    def set_speeds(self, speeds: Sequence[float] | None) -> None:
        """Pass the call on."""
        self.loader.set_speeds(speeds)

    def start_prefetch(self) -> bool:
        """Pass the call on, if the loader has this method."""
        tell = getattr(self.loader, "start_prefetch", None)
        return tell is not None and bool(tell())

    def expect_last_epoch(self) -> None:
        """Pass the call on, if the loader has this method."""
        tell = getattr(self.loader, "expect_last_epoch", None)
        if tell is not None:
            tell()

    @property
    def rank_state(self) -> Stateful | None:
        """The loader's value."""
        state: Stateful | None = getattr(self.loader, "rank_state", None)
        return state

    @property
    def samples(self) -> Any:
        """The loader's dataset or source, if it has one."""
        shown = getattr(self.loader, "dataset", None)
        return getattr(self.loader, "source", None) if shown is None else shown


class _PartialOrder(BaseOrder):
    """An order with only some members; 0 and "" stand for unknown values."""

    def __init__(self, order: Any) -> None:
        self._order = order

    @property
    def recipe(self) -> str:
        return str(getattr(self._order, "recipe", ""))

    @property
    def batch_size(self) -> int:
        return int(getattr(self._order, "batch_size", None) or 0)

    @property
    def remainder(self) -> str:
        return str(getattr(self._order, "remainder", ""))

    @property
    def fingerprint(self) -> str | None:
        found: str | None = getattr(self._order, "fingerprint", "")
        return found

    def num_samples(self, epoch: int) -> int:
        return int(self._order.num_samples(epoch)) if hasattr(self._order, "num_samples") else 0

    def start(self, epoch: int = 0) -> OrderState:
        state: OrderState = self._order.start(epoch)
        return state

    def num_steps(self, state: OrderState) -> int:
        return int(self._order.num_steps(state))

    def step(self, state: OrderState) -> Step:
        step: Step = self._order.step(state)
        return step


def as_loader(loader: Any) -> BaseLoader:
    """Return a loader with all members. Refuses nothing."""
    return loader if isinstance(loader, BaseLoader) else ForeignLoader(loader)


def is_stream(data: Any) -> bool:
    """Whether it is an iterable without steps; an object with a part of a `BatchLoader` counts as a loader."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, BaseLoader):
        return False
    # every IterableDataset inherits a __getitem__ that only raises
    if isinstance(data, DataLoader) or (isinstance(data, IterableDataset) and not hasattr(data, "mark_done")):
        return True
    ours = any(hasattr(data, name) for name in ("mark_done", "set_epoch", "__getitem__"))
    return hasattr(data, "__iter__") and not ours


def kind_of(loader: BaseLoader) -> str:
    """Return the name of the user's class, for messages."""
    return type(loader.loader if isinstance(loader, ForeignLoader) else loader).__name__


def check_loader(loader: BaseLoader) -> None:
    """Refuse training data without a position to mark, save and load: such a run could not be resumed.

    Raises:
        ConfigError: it is not a `BatchLoader`.
    """
    missing = _missing(loader, _WANTED)
    if missing:
        raise ConfigError(
            "train= must be a loader with a position (SampleLoader, DatasetLoader, OrderedLoader, IndexPipeline, or "
            f"your own BatchLoader), got {_named(loader)}, which has no {', '.join(missing)}: "
            f"{_other_way(loader)}"
        )


def check_val(loader: BaseLoader | None, train: BaseLoader) -> None:
    """Refuse validation data that `evaluate` cannot iterate, before the first epoch rather than after it.

    Raises:
        ConfigError: it has no epochs, cannot be iterated, or is the loader that trains.
    """
    inner = [each.loader if isinstance(each, ForeignLoader) else each for each in (loader, train)]
    if inner[0] is inner[1]:
        raise ConfigError(
            "val= is the loader that trains: validation would move its position, and a restart would train samples of "
            "the epoch again. Make a second loader: SampleLoader(source, order=Order(source, batch_size=..., "
            "kind='sequential'))"
        )
    missing = [] if loader is None else _missing(loader, ("__iter__", "set_epoch"))
    if loader is not None and missing:
        raise ConfigError(
            "val= must be a loader over held-out data, such as SampleLoader(held_out, order=Order(held_out, "
            f"batch_size=..., kind='sequential')), got "
            f"{_named(loader)}, which has no {', '.join(missing)}: {_other_way(loader)}"
        )


def _missing(loader: BaseLoader, wanted: Sequence[str]) -> list[str]:
    if not isinstance(loader, ForeignLoader):  # an abstract method guarantees this
        return []
    return [name for name in wanted if not callable(getattr(loader.loader, name, None))]


def _named(loader: BaseLoader) -> str:
    kind = kind_of(loader)
    return f"a{'n' * (kind[0] in 'AEIOU')} {kind}"


def _other_way(loader: BaseLoader) -> str:
    given = loader.loader if isinstance(loader, ForeignLoader) else None
    if isinstance(given, BaseSource):
        return "give the source to its loader, such as SampleLoader(source, order=Order(source, batch_size=...))"
    if isinstance(given, Order):
        return "an order says which samples form a step; a loader reads them: SampleLoader(source, order=order)"
    if hasattr(given, "__getitem__"):
        return (
            "give it to DatasetLoader(dataset, order=Order(len(dataset), batch_size=...), num_workers=...), "
            "whose batch_size is that of all ranks together, or to a torch DataLoader"
        )
    return "use DatasetLoader for a map-style Dataset, and StreamLoader for any other iterable of batches"
