"""`IndexPipeline`: batches of the crops of an index, in the sequence of an `Order`, on this rank's device."""

from __future__ import annotations

import logging
import math
import warnings
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from rankwise.data.contract import Batch, Order
from rankwise.data.crops.budget import Caps
from rankwise.data.crops.devices import NumaStrategy, place_in_world
from rankwise.data.crops.exceptions import BudgetExceeded, ShutdownError
from rankwise.data.crops.index.crop_index import CropIndex, CropPlace
from rankwise.data.crops.index.layout import FieldLayout
from rankwise.data.crops.index.source import CropSource, index_budget
from rankwise.data.feed import FeedLoader, FeedOptions
from rankwise.data.feed.options import refuse_unknown
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.remote import RemoteOptions
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World

_LOG = logging.getLogger("rankwise.crops")
_STEPS_IN_FLIGHT = 3  # the one being read, and two with hints


class IndexPipeline(FeedLoader):
    """Implements `BatchLoader` over a `CropIndex`: shuffled, sharded and resumed exactly, at any world size.

    Iterating yields one tuple of micro-batches per step, to the end of the epoch; see `FeedLoader` for how batches are
    released and positions marked. ``rankwise.Trainer.fit`` accepts it. Rank, world size and device come from the
    world. Leaving the context closes it: files and threads are closed, and iterating raises `ShutdownError`.

    Args:
        index: the crops.
        order: which crops form which step, ``Order(index, batch_size=...)``; its batch size is that of all ranks.
        micro_batch: most crops of this rank in one batch; None = its whole share at once.
        device: "auto" = the world's device, any torch device, or None for NumPy arrays; ``"jax"`` or a
            ``jax.sharding.Sharding`` as `FeedLoader` says.
        world: the world; None = `World.current()`.
        depth: steps that may lie ready; 0 reads in the calling thread.
        cache: bytes of decoded chunks to keep in memory (0 = none), or a `ChunkCache` that several sources share.
        threads: threads that read and decode; None = the cores that this rank may use.
        remote: options for object stores (endpoint, credentials, timeouts); None = the environment's settings. Open
            images with the same options: ``open_image(uri, nodes=StoredNodes(RemoteFiles(options)))``.
        max_gpu_memory_bytes: hard limit for batches on the device (with the CPU as device: in host memory); divided
            if ranks share a GPU. None = limited by the existing memory only.
        max_host_memory_bytes: hard limit for what the pipelines of this machine hold in host memory, divided by its
            ranks: batch buffers, scratch, decoded chunks. None = the existing memory.
        numa_strategy: where the reader's threads run.
        numa_node: node for `NumaStrategy.PIN_TO`, else -1.
        **options: `transform`, `batch_transform`, `fields`, `on_bad_sample` and `across_epochs`, as `FeedLoader` says.

    Attributes:
        budget: the memory for batches; ``print(pipeline.budget)`` lists the parts.

    Raises:
        ConfigError: an argument is out of range, or the order was made for other data.
        BudgetExceeded: the batches do not fit; the message lists the parts and the needed total.
        InvalidArgument: the device does not exist, or differs from the one in use.
        MissingExtraError: a device was asked for and torch is not installed.
    """

    _closed_error = ShutdownError

    def __init__(
        self,
        index: CropIndex,
        *,
        order: Order | None = None,
        micro_batch: int | None = None,
        device: str | torch.device | jax.sharding.Sharding | None = "auto",
        world: World | None = None,
        depth: int = 2,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
        remote: RemoteOptions | None = None,
        max_gpu_memory_bytes: int | None = None,
        max_host_memory_bytes: int | None = None,
        numa_strategy: NumaStrategy = NumaStrategy.AUTO,
        numa_node: int = -1,
        **options: Unpack[FeedOptions],
    ) -> None:
        refuse_unknown(type(self), options)
        if not isinstance(index, CropIndex):
            raise ConfigError(
                f"IndexPipeline needs a CropIndex, got {index!r}: for crops of stored arrays use CropIndex(URIs, "
                "shape=...); for pushed samples use Pipeline(Config(...))"
            )
        for_jax = is_jax_target(device)
        place = place_in_world(None if for_jax else cast("Any", device), world)
        caps = Caps(place=place, max_gpu_memory_bytes=max_gpu_memory_bytes, max_host_memory_bytes=max_host_memory_bytes)
        self._on_thread = place.pinning(numa_strategy, numa_node)
        self.index = index
        self._crops = CropSource(index, cache=cache, threads=threads, remote=remote)
        super().__init__(
            self._crops,
            order=order,
            micro_batch=micro_batch,
            device=device if for_jax else place.device,
            world=cast("World", place),
            depth=depth,
            **options,
        )
        order = self._cursor.order
        self._cursor.follows_world = world is None
        self._cursor.equal_because = "the memory of a crop pipeline is planned for these"
        if place.rank == 0:
            files = most_files(index, num_crops=_STEPS_IN_FLIGHT * math.ceil(order.batch_size / place.world_size))
            self._crops.reader.warn_few_handles(files, local_ranks=place.local_world_size)
        self.budget = index_budget(
            index,
            order,
            fields=tuple(self.source.fields),
            micro_batch=micro_batch,
            depth=depth,
            transformed=self._transform is not None,
            cache_bytes=self._crops.reader.cache.capacity_bytes,
            caps=caps,
        )
        self._buffer_limit_bytes = self.budget.slot_limit_bytes
        self._caps = {"cap_bytes": self.budget.num_slots * self.budget.slot_limit_bytes, "over_cap": BudgetExceeded}
        _LOG.info("batches of crops use\n%s", self.budget)

    def _warn_small_cache(self, order: Order) -> None:
        """Warn on the main rank if the regions that the order reads at a time do not fit into the cache."""
        grid, capacity = order.grid, self._crops.reader.cache.capacity_bytes
        if grid is None or self._cursor.rank != 0 or capacity == 0 or grid.chunk_samples == 1:
            return
        regions = -(-grid.lanes // self._cursor.world_size) * grid.window
        needed = regions * self.index.chunk_bytes
        # A neighbourhood whose crops are in one batch is decoded once, with or without a cache.
        near = self.index.rules.neighbourhood
        together = near > 1 and near * grid.lanes <= order.batch_size
        if needed > capacity and not together:
            warnings.warn(
                f"the order draws from {regions} regions at a time on each rank ({needed / 2**20:.0f} MiB decoded), "
                f"the cache keeps {capacity / 2**20:.0f} MiB: chunks will be decoded several times. Set "
                f"cache={needed} or more on the pipeline, or use fewer lanes or a smaller region_bytes",
                stacklevel=4,
            )

    def places(self, batch: Batch) -> tuple[CropPlace, ...]:
        """Return the image and box of each crop of a batch of this pipeline."""
        step = batch.share.step
        return self.index.describe(batch.ids, seed=step.resume.seed, epoch=step.epoch)


def most_files(index: CropIndex, *, num_crops: int) -> int:
    """Return the largest number of files for so many crops of an epoch, over all fields and stages."""

    def of_field(layout: FieldLayout) -> int:
        files = np.array([array.files for array in layout.arrays], dtype=np.int64)
        there = -(-np.array([array.shape for array in layout.arrays], dtype=np.int64) // files)
        per_box = np.minimum((np.array(layout.shape) - 2) // files + 2, there)
        per_crop = float(np.prod(per_box, axis=1, dtype=np.float64).max()) * layout.channels.shape[1]
        return int(min(per_crop * num_crops, float(np.prod(there, axis=1, dtype=np.float64).sum())))

    return max(sum(map(of_field, made.layouts.values())) for made in index.stages)
