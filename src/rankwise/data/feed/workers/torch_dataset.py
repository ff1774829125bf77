"""A loader as a dataset of torch's `DataLoader`. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils.collate import default_collate_fn_map

from rankwise.data.contract import JSON, BaseLoader
from rankwise.data.feed.batch import FeedBatch
from rankwise.errors import ConfigError


class LoaderDataset(IterableDataset[Any]):
    """Implements `IterableDataset` over a loader, for ``DataLoader(loader.as_dataset(), batch_size=None)``.

    In each worker it yields the worker's part of the steps; epochs and positions are those of the loader.

    Args:
        loader: the loader whose `as_dataset` was called.
        iterate: returns the batches that this process reads in a pass of the DataLoader.
    """

    def __init__(self, loader: BaseLoader, iterate: Callable[[], Iterator[Any]]) -> None:
        teach_collating()
        self.loader, self.iterate = loader, iterate

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def __len__(self) -> int:
        """Return the steps from the last one marked done to the end of its epoch, or the length of a `FullLength`."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done."""
        return dict(self.loader.state_dict())

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`, at any world size."""
        self.loader.load_state_dict(state)


def teach_collating() -> None:
    """Make torch's default collate function return a single step unchanged, for a DataLoader without batch_size."""
    default_collate_fn_map[FeedBatch] = _only


def _only(batches: Sequence[Any], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001  (torch passes it)
    if len(batches) > 1:
        raise ConfigError(
            f"a loader's steps are batches already, but {len(batches)} of them were to be collated: use "
            "DataLoader(loader.as_dataset(), batch_size=None); Order(..., batch_size=...) sets how many samples a step "
            "has"
        )
    return batches[0]
