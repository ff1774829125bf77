"""Checks that all ranks train the same: differences raise errors on every rank before the first step, not a hang."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.data.contract import BaseLoader, BaseSource, Batch, OrderState
from rankwise.data.contract.cuts import lone_share
from rankwise.data.feed import HostBuffer
from rankwise.data.samples.dataset_batch import DatasetBatch
from rankwise.errors import DesyncError
from rankwise.train.models.passes import kept_random_state

if TYPE_CHECKING:
    from rankwise.world import World

_compared: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders whose content was already compared between ranks
_MEND = (
    "Every rank must make its loaders from the same data, with the same order, seeds and settings, after the world: "
    "rankwise.bind(seed=), Order(seed=, batch_size=), micro_batch="
)


def agree(world: World, facts: Mapping[str, Any]) -> None:
    """Compare facts that must be equal; an unknown fact (None) is compared among the other ranks. Every rank calls it.

    Raises:
        DesyncError: a fact differs; the message has the value of each rank, on every rank.
    """
    if world.world_size == 1:
        return
    gathered = world.all_gather_object(dict(facts))
    lines: list[str] = []
    odd: set[int] = set()
    for name in dict.fromkeys(name for held in gathered for name in held):
        values = {rank: held[name] for rank, held in enumerate(gathered) if held.get(name) is not None}
        if len(set(values.values())) > 1:
            lines.append(f"  {name}: " + "; ".join(f"{value} on rank {rank}" for rank, value in values.items()))
            odd |= values.keys()
    if lines:
        raise DesyncError(
            "the ranks would not train the same:\n" + "\n".join(lines) + "\n" + _MEND,
            ranks=tuple(sorted(world.global_ranks[rank] for rank in odd)),
        )


def step_facts(batches: Sequence[Batch], world: World) -> dict[str, Any]:
    """Return facts about a step's batches: which must be equal on all ranks, and that each was made for its rank."""
    share, resume = batches[0].share, batches[0].resume
    mine = (share.rank, share.world_size) == (world.rank, world.world_size)
    return {
        "recipe of the order": resume.recipe,
        "seed of the order": resume.seed,
        "epoch": share.step.epoch,
        "position": share.step.start,
        "samples of the step": share.step.count,
        "micro-batches of the step": len(batches),
        "ids of the step": hashlib.sha256(np.sort(share.step.ids).tobytes()).hexdigest()[:12],
        "seed of the world": world.seed,
        "content of sample 0": _content_behind(batches[0]) if world.world_size > 1 else None,
        # equal if every loader was made for its rank; a wrong one differs from all others
        "loader": "its own" if mine else f"one of rank {share.rank} of {share.world_size} is used by rank {world.rank}",
    }


def data_facts(name: str, loader: BaseLoader) -> dict[str, Any]:
    """Return facts about a loader before it is iterated. Reads sample 0 twice, if possible.

    Args:
        name: of the loader, for the message.
        loader: the loader; unknown facts are left out.
    """
    state, left = loader.state_dict(), len(loader)
    with contextlib.suppress(TypeError):  # for a class without weak references
        _compared.add(loader)
    return {
        f"{name}: recipe of the order": state.get("recipe"),
        f"{name}: seed of the order": state.get("seed"),
        f"{name}: epoch": state.get("epoch"),
        f"{name}: position": state.get("position"),
        f"{name}: speeds of the ranks": str(state.get("speeds")),
        f"{name}: batch size": None if loader.order is None else loader.order.batch_size or None,
        f"{name}: steps left in the epoch": None if left == sys.maxsize else left,
        f"{name}: content of sample 0": _content(loader),
    }


def _content_behind(batch: Any) -> str | None:
    """Return a hash of sample 0 of a batch's dataset, if the recipe has no content hash and none was compared yet."""
    loader = batch.loader() if isinstance(batch, DatasetBatch) and batch.loader is not None else None
    if loader is None or loader in _compared:
        return None
    _compared.add(loader)
    return _content(loader)


def _content(loader: BaseLoader) -> str | None:
    """Return a hash of sample 0; None if it cannot be read here, or differs between two reads."""
    try:
        with kept_random_state():
            first, second = (_sample(loader) for _ in range(2))
    except Exception:  # noqa: BLE001  (damaged, or a loader of another kind: the steps will tell, or need not)
        return None
    return first if first == second else None


def _sample(loader: BaseLoader) -> str | None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the generator that datasets use)
    import torch

    torch.manual_seed(0)
    samples = loader.samples
    if samples is None:
        return None
    if not isinstance(samples, BaseSource):
        # a copy: files that a dataset opens on first read must not be sent to its workers
        return digest(_copied(samples)[0])
    state, zero = loader.state_dict(), np.zeros(1, dtype=np.int64)
    resume = OrderState.from_json({name: value for name, value in state.items() if name != "speeds"})
    into = HostBuffer()
    source: Any = samples
    source.read(source.plan(lone_share(zero, resume)), into)
    return digest({name: list(into.arrays(name)) for name in sorted(source.fields)})


def _copied(dataset: Any) -> Any:
    """Return a shallow copy of a dataset and of datasets inside it: their data are shared, their attributes are not."""
    from torch.utils.data import Dataset

    made = copy.copy(dataset)
    for name, value in list(getattr(made, "__dict__", {}).items()):
        if isinstance(value, Dataset):
            setattr(made, name, _copied(value))
        elif isinstance(value, list) and any(isinstance(item, Dataset) for item in value):
            setattr(made, name, [_copied(item) if isinstance(item, Dataset) else item for item in value])
    return made


def digest(value: Any) -> str:
    """Return a hash of arbitrarily nested arrays, tensors, numbers and text: the same in every process.

    Raises:
        TypeError: another type, whose text may contain an address.
    """
    if isinstance(value, Mapping):
        text = repr([(repr(key), digest(item)) for key, item in value.items()]).encode()
    elif isinstance(value, list | tuple):
        text = repr([digest(item) for item in value]).encode()
    elif isinstance(value, str | bytes | int | float | bool | None):
        text = repr(value).encode()
    else:
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"{type(value).__name__} has no content that can be compared")
        text = repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(text).hexdigest()[:12]
