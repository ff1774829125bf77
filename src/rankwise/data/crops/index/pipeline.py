"""`IndexPipeline`: batches of the crops of an index, in the sequence of an `Order`; `CropSource`: crops as samples."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np

from rankwise.data.contract import (
    BaseSource,
    Batch,
    BatchBuffer,
    FieldSpec,
    Locality,
    Order,
    ReadReport,
    Share,
    choose_fields,
    num_micro_batches,
)
from rankwise.data.crops.budget import Budget, Caps
from rankwise.data.crops.devices import NumaStrategy, place_in_world
from rankwise.data.crops.exceptions import BudgetExceeded, ShutdownError
from rankwise.data.crops.fields import MASK_SUFFIX, CropField, column_specs, sample_bytes
from rankwise.data.crops.index.compiled import Compiled
from rankwise.data.crops.index.crop_index import CropIndex, CropPlace
from rankwise.data.crops.index.layout import FieldLayout
from rankwise.data.crops.plan import CropPlan, plan_crops
from rankwise.data.feed import FeedLoader, FeedOptions
from rankwise.data.feed.options import refuse_unknown
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.reader import BoxReader
from rankwise.data.store.remote import RemoteOptions
from rankwise.errors import ConfigError

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World

_LOG = logging.getLogger("rankwise.crops")
_STEPS_IN_FLIGHT = 3  # the one being read, and two with hints


class CropSource(BaseSource):
    """Implements `Source` over a `CropIndex`.

    The places of random crops depend on seed and epoch of a share's step. The fields of a curriculum's stage may
    have other shapes than `fields`, which describes the first epoch.
    """

    stateless = True  # the content depends on the share alone: loaders may read before an epoch is asked for

    def __init__(
        self,
        index: CropIndex,
        *,
        cache: ChunkCache | int = DEFAULT_CACHE_BYTES,
        threads: int | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        self.index, self.fingerprint, self.num_samples = index, index.fingerprint, index.num_samples
        self.reader = BoxReader(cache=cache, threads=threads, remote=remote)
        self._names = tuple(index.fields)
        self._chosen: dict[Compiled, dict[str, CropField]] = {}
        self._warned_fill = False

    def __len__(self) -> int:
        return self.num_samples

    @property
    def locality(self) -> Locality:
        """What neighbouring crops share; see `CropIndex.locality`."""
        return self.index.locality

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """The fields of a crop by name, as in the first epoch."""
        return MappingProxyType({name: self.index.fields[name] for name in self._names})

    def select(self, fields: Sequence[str]) -> CropSource:
        """Return a source with some of the fields, with the same reader and cache.

        Raises:
            ConfigError: there is no such field, or a mask is requested without its field.
        """
        names = choose_fields(self._names, fields, of="index")
        for name in names:
            if name.endswith(MASK_SUFFIX) and name.removesuffix(MASK_SUFFIX) in self.index.takes:
                base = name.removesuffix(MASK_SUFFIX)
                if base not in fields:
                    raise ConfigError(f"the mask {name!r} is read with its field: select {base!r} too")
        chosen = object.__new__(type(self))
        vars(chosen).update(vars(self))
        chosen._names = names
        chosen._chosen = {}
        return chosen

    def plan(self, share: Share) -> CropPlan:
        """Return the plan for reading `share`. Thread-safe; reads metadata only.

        Raises:
            IndexError: the share contains a crop that the index does not have.
        """
        ids = np.asarray(share.ids, dtype=np.int64)
        epoch, seed = share.step.epoch, share.step.resume.seed
        made, found = self.index.compiled(epoch), self.index.places(ids, seed=seed, epoch=epoch)
        fields = self._fields_of(made)
        boxes = {name: [made.layouts[name].boxes(found.images, found.starts)] for name in fields}
        labels = {name: values[found.images] for name, values in self.index.columns.items() if name in self._names}
        return plan_crops(fields, boxes, self.reader, ids=ids, columns=labels, share=share)

    def hint(self, plan: CropPlan) -> None:
        """Ask the system to read the bytes of a plan soon. Best effort."""
        plan.hint()

    def read(self, plan: CropPlan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer, which this reserves. Thread-safe; failed crops are reported, not raised."""
        report = plan.read(into)
        if report.all_fill and not self._warned_fill:  # usually a mistake
            self._warned_fill = True
            step = plan.share.step
            first = self.index.describe(plan.ids[:1], seed=step.resume.seed, epoch=step.epoch)[0].image
            warnings.warn(
                f"all {plan.num_samples} crops of a batch are where nothing was ever written (the first one in image "
                f"{first.name!r}): they hold only the fill value. Check the store for missing parts, or exclude them "
                "with mask= or where=",
                stacklevel=2,
            )
        return report

    def close(self) -> None:
        """Close threads and files. Reading again reopens them."""
        self.reader.close()

    def _fields_of(self, made: Compiled) -> dict[str, CropField]:
        """Return the selected fields of a stage, each with its mask if that is selected, too."""
        if made not in self._chosen:
            fields = {name: made.layouts[name].field for name in self._names if name in made.layouts}
            masked = {n: replace(f, mask=f.mask and n + MASK_SUFFIX in self._names) for n, f in fields.items()}
            self._chosen[made] = masked
        return self._chosen[made]


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
        self._cursor.follows_world = world is None
        self._cursor.equal_because = "the memory of a crop pipeline is planned for these"
        if place.rank == 0:
            files = most_files(index, num_crops=_STEPS_IN_FLIGHT * math.ceil(self.order.batch_size / place.world_size))
            self._crops.reader.warn_few_handles(files, local_ranks=place.local_world_size)
        self.budget = self._planned_budget(caps)
        self._buffer_limit_bytes = self.budget.slot_limit_bytes
        self._caps = {"cap_bytes": self.budget.num_slots * self.budget.slot_limit_bytes, "over_cap": BudgetExceeded}
        _LOG.info("batches of crops use\n%s", self.budget)

    def _planned_budget(self, caps: Caps) -> Budget:
        """Return the memory for the batches of this rank; raise `BudgetExceeded` if they do not fit."""
        step, world_size, micro_batch = self.order.batch_size, self._cursor.world_size, self.micro_batch
        num_micro = num_micro_batches(step, world_size=world_size, micro_batch=micro_batch)
        rows = math.ceil(math.ceil(step / world_size) / num_micro)
        ahead = max(1, self._depth)  # the consumer may still hold the previous step for a moment while the next is read
        slots = (ahead + 1) * num_micro  # the steps that lie ready, and the one in use or being read
        specs = [{**column_specs(self.index.columns), **made.specs} for made in self.index.stages]
        crop = max(sample_bytes({name: one[name] for name in self.source.fields if name in one}) for one in specs)
        batch, cache_bytes = max(1, rows * crop), self._crops.reader.cache.capacity_bytes
        budget = Budget(
            batch_bytes=batch,
            num_slots=slots,
            scratch_bytes=batch if self._transform is not None else 0,
            cache_bytes=cache_bytes,
            caps=caps,
        )
        what = f"{ahead + 1} steps of {num_micro} batches of {rows} crops must fit ({ahead} ready, one in use), but do"
        remedies = [
            "a smaller batch_size of the order",
            *["a smaller depth"] * (self._depth > 0),
            *["a smaller cache"] * (cache_bytes > 0),
        ]
        budget.check_fits(what=f"{what} not", remedies=remedies, slots=slots)
        return budget

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
