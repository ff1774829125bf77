"""How a DataLoader, or any other iterable of batches, divides its samples among ranks, as far as can be determined."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.samples.dataset_batch import map_tree, no_rows
from rankwise.errors import ConfigError
from rankwise.train.loaders.agreement import digest
from rankwise.world import World

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# options that a DataLoader stores under their own names
_KEPT = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor"),
    *("persistent_workers", "multiprocessing_context", "generator"),
)
_Ids = Iterator[tuple[IntArray, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Facts about a rank's batches.

    Attributes:
        data: the user's object.
        batches: the object to iterate, once for each epoch.
        name: kind of the data, for messages.
        recipe: must be equal on all ranks, and when resuming.
        num_batches: of this rank in an epoch; None if unknown.
        is_known: whether the order is the same each time that an epoch is iterated.
        is_stateful: whether the position of `data` can be saved and loaded.
        pinned: whether batches are in page-locked memory.
        ids: yields for each batch of this rank in an epoch its ids without repeated samples, and the number including
            them; None if unknown.
        warnings: missing guarantees in training.
        held_out: missing guarantees in evaluation.
        mend: what would give all guarantees.
    """

    data: Any
    batches: Iterable[Any]
    name: str
    recipe: str
    num_batches: int | None
    is_known: bool
    is_stateful: bool
    pinned: bool
    ids: Callable[[], _Ids] | None
    warnings: tuple[str, ...]
    held_out: tuple[str, ...]
    mend: str

    def limits_text(self, *, held_out: bool) -> str:
        """Return the missing guarantees as one text; "" if there are none."""
        limits = self.held_out if held_out else self.warnings
        if not limits:
            return ""
        doing = "evaluating" if held_out else "training"
        return f"{doing} from a {self.name}: " + "; ".join(limits) + f". {self.mend}"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of everything that shuffles by epoch."""
        batch_sampler = getattr(self.data, "batch_sampler", None)
        parts = (
            self.data,
            getattr(self.data, "dataset", None),
            getattr(self.data, "sampler", None),
            batch_sampler,
            getattr(batch_sampler, "sampler", None),
        )
        for part in {id(part): part for part in parts}.values():
            tell = getattr(part, "set_epoch", None)
            if callable(tell):
                tell(epoch)


def sharing_of(data: Any, world: World) -> Sharing:
    """Examine the user's object; reads no sample.

    Raises:
        ConfigError: it is not an iterable of batches, or it would not divide the samples among ranks.
    """
    from torch.utils.data import DataLoader, IterableDataset

    name = type(data).__name__
    if isinstance(data, str | bytes) or not hasattr(data, "__iter__"):
        raise ConfigError(f"a stream must be an iterable of batches (a DataLoader, an IterableDataset), got a {name}")
    dataset = getattr(data, "dataset", data)  # one of ours, or its `as_dataset()`
    loader = getattr(dataset, "loader", dataset)
    if hasattr(loader, "mark_done"):
        raise ConfigError(
            f"this {name} wraps a {type(loader).__name__}: pass the {type(loader).__name__} itself, which has a "
            "position"
        )
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return _of_samplers(data, world)
    seen = "every rank must read its own part of it, which cannot be checked"
    mend = (
        "A map-style Dataset that lists the samples (files, offsets), in a DatasetLoader with an Order, has none of "
        "these limits"
    )
    return _sharing(data, recipe=f"v1.stream.{name}", split="" if world.world_size == 1 else seen, mend=mend)


def _of_samplers(data: DataLoader[Any], world: World) -> Sharing:
    from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

    batch_sampler: Any = data.batch_sampler
    # torchdata has its own samplers, with the same meaning; without this module there is no loader of torchdata
    theirs = sys.modules.get("torchdata.stateful_dataloader.sampler")
    plain = type(batch_sampler) in (BatchSampler, getattr(theirs, "BatchSampler", BatchSampler))
    shuffling = (RandomSampler, SubsetRandomSampler, getattr(theirs, "RandomSampler", RandomSampler))
    sampler: Any = batch_sampler.sampler if plain else batch_sampler or data.sampler
    kind, size, rank, num_samples = type(sampler).__name__, world.world_size, world.rank, len(data.dataset)  # type: ignore[arg-type]
    if hasattr(sampler, "num_replicas") and (sampler.num_replicas, sampler.rank) != (size, rank):
        raise ConfigError(
            f"the {kind} was made for rank {sampler.rank} of {sampler.num_replicas}, but this is rank {rank} of "
            f"{size}: make it after the process group, with DistributedSampler(dataset, num_replicas={size}, "
            f"rank={rank})"
        )
    mend = "DatasetLoader(dataset, order=Order(len(dataset), batch_size=...)), whose batch_size is that of all ranks"
    if size > 1 and isinstance(sampler, shuffling):
        raise ConfigError(
            f"this DataLoader shuffles with a {kind}: each of the {size} ranks would read every sample in an order of "
            f"its own, and an epoch would show each sample {size} times. Use {mend} together, or DataLoader(dataset, "
            "batch_size=..., sampler=DistributedSampler(dataset)), whose batch_size is that of one rank"
        )
    known = plain and getattr(data, "in_order", True)
    batch_size = int(batch_sampler.batch_size) if plain else 0
    drops = bool(plain and batch_sampler.drop_last)
    recipe, mend = f"v1.samples.{kind}.{num_samples}", f"{mend} together, has none of these limits"
    if known and type(sampler) is DistributedSampler:
        ids = partial(_distributed_ids, sampler, batch_size, len(range(rank, num_samples, size)))
        return _sharing(data, recipe=recipe, mend=mend, known=True, ids=ids, drops=drops or sampler.drop_last)
    if known and type(sampler) is SequentialSampler:
        mine, ids = _loader_of_rank(data, world), partial(_ids_of_rank, num_samples, batch_size, world)
        return _sharing(data, recipe=recipe, mend=mend, known=True, ids=ids, drops=drops, batches=mine)
    split = "" if size == 1 else f"whether ranks see a sample twice depends on its {kind}"
    return _sharing(
        data, recipe=recipe, mend=mend, known=known and type(sampler) is RandomSampler, split=split, drops=drops
    )


def _sharing(
    data: Any,
    *,
    recipe: str,
    mend: str,
    split: str = "",
    known: bool = False,
    drops: bool = False,
    batches: Any = None,
    ids: Callable[[], _Ids] | None = None,
) -> Sharing:
    batches = data if batches is None else batches
    # a newly divided loader has no state of its own
    stateful = batches is data and all(hasattr(data, name) for name in ("state_dict", "load_state_dict"))
    if stateful:
        on_resume = "a run that was stopped in mid-epoch continues there only at the same number of ranks"
    elif known:
        on_resume = (
            "to continue in mid-epoch, the finished batches are read again, which needs the same number of ranks"
        )
    else:
        on_resume = "a run that was stopped in mid-epoch starts the epoch again, as there is no state_dict"
    order = "which samples form a step depends on the number of ranks, and the batch size is that of one rank"
    limits = [split] * bool(split) + ["the last samples of an epoch are left out (drop_last=True)"] * drops
    return Sharing(
        data=data,
        batches=batches,
        name=type(data).__name__,
        recipe=recipe,
        num_batches=_length(batches),
        is_known=known,
        is_stateful=stateful,
        pinned=bool(getattr(data, "pin_memory", False)),
        ids=ids,
        warnings=(order, on_resume, *limits),
        held_out=tuple(limits),
        mend=mend,
    )


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None


def _distributed_ids(sampler: Any, batch_size: int, num_real: int) -> _Ids:
    """The sampler repeats samples at the end of some ranks' order, so that all ranks have equally many."""
    order = np.fromiter(iter(sampler), dtype=np.int64)
    for start in range(0, len(order), batch_size):
        whole = order[start : start + batch_size]
        yield whole[: max(num_real - start, 0)], len(whole)


def _ids_of_rank(num_samples: int, batch_size: int, world: World) -> _Ids:
    for start in range(world.rank * batch_size, num_samples, world.world_size * batch_size):
        ids = np.arange(start, min(start + batch_size, num_samples), dtype=np.int64)
        yield ids, len(ids)


class _EveryNth:
    """A batch sampler that takes this rank's batches from another one."""

    def __init__(self, batches: Any, rank: int, world_size: int) -> None:
        self._batches, self._rank, self._world_size = batches, rank, world_size

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._batches), self._rank, None, self._world_size)

    def __len__(self) -> int:
        return len(range(self._rank, len(self._batches), self._world_size))


def _loader_of_rank(data: DataLoader[Any], world: World) -> Any:
    """Return a DataLoader like this one over every world_size-th batch: the others are not read."""
    from torch.utils.data import DataLoader

    if world.world_size == 1:
        return data
    options = {name: getattr(data, name) for name in _KEPT}
    mine: Any = _EveryNth(data.batch_sampler, world.rank, world.world_size)
    return DataLoader(data.dataset, batch_sampler=mine, **options)


def digest_of(data: Any) -> str | None:
    """Return a hash of a batch's content; None if it cannot be computed."""
    try:
        return digest(data)
    except (TypeError, ValueError):  # a device, or a dtype that NumPy lacks
        return None


def count_samples(data: Any) -> int:
    """Return the length of the first tensor or array in a batch, or of a list of texts."""
    found: list[int] = []

    def look(leaf: Any) -> Any:
        if getattr(leaf, "ndim", 0):
            found.append(len(leaf))
        return leaf

    map_tree(look, data)
    if not found and isinstance(data, list) and data and all(isinstance(item, str | bytes) for item in data):
        return len(data)
    if not found:
        raise ConfigError(
            f"a batch of this stream is a {type(data).__name__} without a tensor whose first axis counts samples: give "
            "StreamLoader(count=...), a function that returns the number of samples of a batch, or let collate_fn make "
            "tensors"
        )
    return found[0]


def first_rows(data: Any, num_rows: int, num_samples: int) -> Any:
    """Return a batch without the samples that its sampler repeated."""
    cannot = ConfigError(
        f"the DistributedSampler has repeated {num_samples - num_rows} samples at the end of this batch of "
        f"{num_samples}, and they cannot be cut off: let collate_fn return tensors whose first axis is the sample, or "
        "give DistributedSampler(drop_last=True), or a DatasetLoader with an Order, which repeats none"
    )

    def cut(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, str | bytes | int | float):
            raise cannot
        if not getattr(leaf, "ndim", 0) or len(leaf) != num_samples:
            raise cannot
        return leaf[:num_rows]

    return map_tree(cut, data)


def without_rows(data: Any) -> Any:
    """Return a stand-in without rows; unchanged if rows cannot be identified: the step multiplies it by zero."""
    try:
        return no_rows(data)
    except ConfigError:
        return data
