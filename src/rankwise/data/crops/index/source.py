"""`CropSource`: crops of an index as samples; and the memory that a loader of them needs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from rankwise.data.contract import (
    BaseSource,
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
from rankwise.data.crops.fields import MASK_SUFFIX, CropField, column_specs, sample_bytes
from rankwise.data.crops.index.compiled import Compiled
from rankwise.data.crops.index.crop_index import CropIndex
from rankwise.data.crops.plan import CropPlan, plan_crops
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache
from rankwise.data.store.reader import BoxReader
from rankwise.data.store.remote import RemoteOptions
from rankwise.errors import ConfigError


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
        self.index = index
        self.reader = BoxReader(cache=cache, threads=threads, remote=remote)
        self._names = tuple(index.fields)
        self._chosen: dict[Compiled, dict[str, CropField]] = {}
        self._warned_fill = False

    @property
    def fingerprint(self) -> str:
        """Hash of all that decides the crops: array metadata, rules, maps."""
        return self.index.fingerprint

    @property
    def num_samples(self) -> int:
        """Number of crops of an epoch."""
        return self.index.num_samples

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


def index_budget(
    index: CropIndex,
    order: Order,
    *,
    fields: Collection[str],
    micro_batch: int | None,
    depth: int,
    transformed: bool,
    cache_bytes: int,
    caps: Caps,
) -> Budget:
    """Return the memory for batches of an index on one rank.

    Raises:
        BudgetExceeded: the batches do not fit; the message lists the parts and the needed total.
    """
    step, world_size = order.batch_size, caps.place.world_size
    num_micro = num_micro_batches(step, world_size=world_size, micro_batch=micro_batch)
    rows = math.ceil(math.ceil(step / world_size) / num_micro)
    ahead = max(1, depth)  # the consumer may still hold the previous step for a moment while the next one is read
    slots = (ahead + 1) * num_micro  # the steps that lie ready, and the one in use or being read
    specs = [{**column_specs(index.columns), **made.specs} for made in index.stages]
    crop = max(sample_bytes({name: one[name] for name in fields if name in one}) for one in specs)
    batch = max(1, rows * crop)
    budget = Budget(
        batch_bytes=batch,
        num_slots=slots,
        scratch_bytes=batch if transformed else 0,
        cache_bytes=cache_bytes,
        caps=caps,
    )
    what = f"{ahead + 1} steps of {num_micro} batches of {rows} crops must fit ({ahead} ready, one in use), but do not"
    remedies = [
        "a smaller batch_size of the order",
        *["a smaller depth"] * (depth > 0),
        *["a smaller cache"] * (cache_bytes > 0),
    ]
    budget.check_fits(what=what, remedies=remedies, slots=slots)
    return budget
