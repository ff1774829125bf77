"""Adapts other loaders: an object with a part of a `BatchLoader` becomes a complete one, or is refused.

Only this module probes the members of a loader. Behind it every loader is a `BaseLoader`, with all members.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rankwise.data.contract import BaseLoader, BaseOrder, BaseSource, Batch, Order
from rankwise.errors import ConfigError

_WANTED = ("__iter__", "__len__", "set_epoch", "mark_done", "state_dict", "load_state_dict")


def _theirs(name: str, default: Any = None) -> Any:
    """Return a member of an adapter: that of the adapted object, or the default if it has none."""
    return property(lambda adapter: getattr(adapter.given, name, default))


class ForeignLoader(BaseLoader):
    """Adapts a loader that does not inherit from `BaseLoader`: its own members, and defaults for missing ones.

    Args:
        given: a loader written by a user, or from another library.
    """

    def __init__(self, given: Any) -> None:
        self.given = given

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given) if hasattr(self.given, "__len__") else sys.maxsize

    set_epoch = _theirs("set_epoch")
    mark_done = _theirs("mark_done")
    state_dict = _theirs("state_dict", dict)  # held-out data may have none
    load_state_dict = _theirs("load_state_dict")
    micro_batch = _theirs("micro_batch")
    equal_because = _theirs("equal_because", "")
    speeds = _theirs("speeds")
    set_speeds = _theirs("set_speeds")
    start_prefetch = _theirs("start_prefetch", bool)
    expect_last_epoch = _theirs("expect_last_epoch", bool)
    rank_state = _theirs("rank_state")

    @property
    def order(self) -> Order | None:
        """The loader's order, if it has one."""
        order = getattr(self.given, "order", None)
        return order if order is None or isinstance(order, Order) else _PartialOrder(order)

    @property
    def num_epoch_steps(self) -> int | None:
        """The number from its order, if known."""
        order: Any = getattr(self.given, "order", None)
        if not hasattr(order, "start"):
            return None
        return int(order.num_steps(order.start(int(str(self.state_dict()["epoch"])))))

    @property
    def takes_speeds(self) -> bool:
        """Whether it has `set_speeds`."""
        return callable(self.set_speeds)

    @property
    def samples(self) -> Any:
        """The loader's dataset or source, if it has one."""
        shown = getattr(self.given, "dataset", None)
        return getattr(self.given, "source", None) if shown is None else shown


class _PartialOrder(BaseOrder):
    """An order with only some members; 0 and "" stand for unknown values."""

    def __init__(self, given: Any) -> None:
        self.given = given

    recipe = _theirs("recipe", "")
    batch_size = _theirs("batch_size", 0)
    remainder = _theirs("remainder", "")
    fingerprint = _theirs("fingerprint", "")
    num_samples = _theirs("num_samples", lambda epoch: 0)  # noqa: ARG005  (as it is called)
    start = _theirs("start")
    num_steps = _theirs("num_steps")
    step = _theirs("step")


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
    return type(loader.given if isinstance(loader, ForeignLoader) else loader).__name__


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
    inner = [each.given if isinstance(each, ForeignLoader) else each for each in (loader, train)]
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
    return [name for name in wanted if not callable(getattr(loader.given, name, None))]


def _named(loader: BaseLoader) -> str:
    kind = kind_of(loader)
    return f"a{'n' * (kind[0] in 'AEIOU')} {kind}"


def _other_way(loader: BaseLoader) -> str:
    given = loader.given if isinstance(loader, ForeignLoader) else None
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
