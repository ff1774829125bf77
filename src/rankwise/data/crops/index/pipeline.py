"""`IndexPipeline`: the crops of an index in the order of an `Order`, as batches on this rank's device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, cast

from rankwise.data.contract import Batch, Order, Source
from rankwise.data.crops.index.crop_index import CropIndex, CropPlace
from rankwise.data.crops.index.source import CropSource
from rankwise.data.crops.pipeline import Pipeline
from rankwise.data.feed import BatchTransform, FeedLoader, Transform
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.errors import ConfigError
from rankwise.world import World

if TYPE_CHECKING:
    import torch

__all__ = ["IndexPipeline"]


@Pipeline.register
class IndexPipeline(FeedLoader):
    """Implements `BatchLoader` over a `CropIndex`: shuffled, sharded and resumed exactly, at any world size.

    Iterating yields one tuple of micro-batches per step, to the end of the epoch; see `FeedLoader` for how batches are
    released and positions marked. It is what ``rankwise.Trainer.fit`` takes. Rank, world size and device come from the
    world. Leaving the context closes files and threads.

    Args:
        index: the crops.
        order: which crops form which step, ``Order(index, batch_size=...)``; its batch size is that of all ranks.
        micro_batch: most crops of this rank in one batch; None = its whole share at once.
        device: "auto" = the world's device, any torch device, or None for NumPy arrays.
        world: the world; None = `World.current()`.
        depth: steps that may lie ready; 0 reads in the calling thread.
        transform: ``transform(fields, key) -> fields`` for one crop, on the reader thread.
        batch_transform: ``batch_transform(fields, keys) -> fields`` for a whole batch, on the device.
        fields: the fields to read; None = all.
        cache: bytes of decoded chunks kept in memory (0 = none), or a `ChunkCache` that several sources share.
        threads: threads that read and decode; None = the cores that this rank may use.
        on_bad_sample: "raise", or how many damaged crops this rank may leave out.

    Raises:
        ConfigError: an argument is out of range, or the order is over other data.
        MissingExtraError: a device was asked for and torch is not installed.
    """

    def __init__(
        self,
        index: CropIndex,
        *,
        order: Order,
        micro_batch: int | None = None,
        device: str | torch.device | None = "auto",
        world: World | None = None,
        depth: int = 2,
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        fields: Sequence[str] | None = None,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
        on_bad_sample: Literal["raise"] | int = "raise",
    ) -> None:
        if not isinstance(index, CropIndex):
            raise ConfigError(f"an ordered pipeline takes a CropIndex, got {type(index).__name__}")
        world = World.current() if world is None else world
        self.index = index
        self._crops = CropSource(index, cache=cache, threads=threads)
        _warn_small_cache(self._crops, order, rank=world.rank, world_size=world.world_size)
        super().__init__(
            cast("Source", self._crops),
            order,
            rank=world.rank,
            world_size=world.world_size,
            micro_batch=micro_batch,
            device=world.device if isinstance(device, str) and device == "auto" else device,
            depth=depth,
            transform=transform,
            batch_transform=batch_transform,
            fields=fields,
            on_bad_sample=on_bad_sample,
        )

    def places(self, batch: Batch) -> tuple[CropPlace, ...]:
        """Return the image and box of each crop of a batch of this pipeline."""
        step = batch.share.step
        return self.index.describe(batch.ids, seed=step.resume.seed, epoch=step.epoch)

    def close(self) -> None:
        """Close files and threads, and say how many crops were left out. Calling it twice is fine."""
        self.say_skipped()
        self._crops.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _warn_small_cache(source: CropSource, order: Order, *, rank: int, world_size: int) -> None:
    """Warn on the main rank if the regions that the order reads from at a time do not fit the cache."""
    grid, capacity = getattr(order, "grid", None), source.cache.capacity_bytes
    if grid is None or rank != 0 or capacity == 0 or grid.chunk_samples == 1:
        return
    regions = -(-grid.lanes // world_size) * grid.window
    needed = regions * source.chunk_bytes
    # A neighbourhood whose crops come in one batch is decoded once, cache or not.
    near = source.index.rules.neighbourhood
    together = near > 1 and near * grid.lanes <= getattr(order, "batch_size", 0)
    if needed > capacity and not together:
        warnings.warn(
            f"the order draws from {regions} regions at a time on each rank ({needed / 2**20:.0f} MiB decoded), the "
            f"cache keeps {capacity / 2**20:.0f} MiB: chunks will be decoded several times. Give the pipeline "
            f"cache={needed} or more, the order fewer lanes, or the index a smaller region_bytes",
            stacklevel=3,
        )
