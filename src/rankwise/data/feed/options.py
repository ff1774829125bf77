"""`FeedOptions`: arguments that loaders pass on, what suits the data if they are omitted, and the rank that is fed."""

from __future__ import annotations

import inspect
import math
import os
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, TypedDict

from rankwise._process.place import Place, announced_place, num_local_ranks
from rankwise.data.contract import Order, Source
from rankwise.data.feed.cursor import CursorLoader
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.data.feed.prefetch import LEAST_DEPTH
from rankwise.data.feed.reader import OnBadSample
from rankwise.data.feed.transform import BatchTransform, Transform
from rankwise.errors import MissingExtraError

if TYPE_CHECKING:
    import jax
    import torch

    from rankwise.world import World


class FeedOptions(TypedDict, total=False):
    """Arguments that are passed on to `FeedLoader`, which documents them."""

    transform: Transform | None
    batch_transform: BatchTransform | None
    fields: Sequence[str] | None
    on_bad_sample: OnBadSample
    across_epochs: bool | None


_ELSEWHERE = dict.fromkeys(
    ("batch_size", "shuffle", "seed", "drop_last", "sampler", "batch_sampler", "generator"),
    "the order decides it, for the batch of all ranks together: order=Order(source, batch_size=..., seed=..., "
    'kind="shuffle" or "sequential", remainder="split" or "drop")',
) | {
    "num_workers": "threads read arrays, without workers; DatasetLoader, for a Dataset in Python, has worker processes",
    "pin_memory": "batches for a CUDA device are copied from page-locked memory anyway",
    "prefetch_factor": "depth= is the number of steps that may lie ready",
    "collate_fn": "samples are stacked; transform= changes one of them, batch_transform= a whole batch",
    "transform": "the dataset changes its samples, collate_fn= a whole batch",
    "batch_transform": "the dataset changes its samples, collate_fn= a whole batch",
}


def refuse_unknown(
    loader: type[CursorLoader],
    options: Iterable[str],
    *,
    taken: Collection[str] = FeedOptions.__annotations__,
    more: Iterable[str] = (),
) -> None:
    """Refuse arguments that a loader does not have; the message names the class that the user called.

    Args:
        loader: the class.
        options: the names passed beside the arguments that its ``__init__`` lists.
        taken: those of them that it has.
        more: names that it takes from these before.

    Raises:
        TypeError: one of them is not in `taken`.
    """
    unknown = next((name for name in options if name not in taken), None)
    if unknown is None:
        return
    import difflib  # needed only for an error message

    known = {*taken, *more}
    for kind in loader.__mro__[: loader.__mro__.index(CursorLoader)]:
        if "__init__" in vars(kind):
            parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
            known |= {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    close = difflib.get_close_matches(unknown, sorted(known))
    mend = f"did you mean {'= or '.join(close)}=?" if close else f"it has {', '.join(sorted(known))}"
    mend = _ELSEWHERE.get(unknown, mend)  # as torch's DataLoader calls it
    raise TypeError(f"{loader.__name__} has no argument {unknown}=: {mend}")


_READY_BYTES, _WHOLE_BYTES = 128 << 20, 384 << 20


def window_depth(source: Source, order: Order, *, world_size: int) -> int:
    """Return how many steps a window of the order lasts, at least 2; fewer if they exceed 128 MiB on this rank.

    The first step of a window decodes nearly all chunks of the window. The later steps are read together with it if the
    source gains from that; otherwise they find the chunks in the cache. With a window of steps ready, the next window
    is decoded while this one is in use; with fewer, the consumer would wait at the start of each window. A window that
    is read as one may take 384 MiB. Read in parts, its chunks must be kept for the next part or decoded again, which
    costs half as much again for selected columns of CSR rows. All parts have the same length.

    Args:
        source: the samples; its locality says whether steps are read together, and which windows it has.
        order: says how many chunks a window has.
        world_size: number of ranks.
    """
    grid, batch_size, locality = order.grid, order.batch_size, source.locality
    lasting = locality.window_samples
    if grid is None or (order.kind == "sequential" and lasting is None):
        return LEAST_DEPTH
    steps: int = -(-(grid.lanes * grid.window * grid.chunk_samples if lasting is None else lasting) // batch_size)
    share: int = -(-batch_size // world_size)
    step_bytes = max(1, share * _sample_bytes(source, share))
    if locality.group_steps and steps * step_bytes <= _WHOLE_BYTES:
        return max(LEAST_DEPTH, steps)
    parts = -(-steps // max(1, min(steps, _READY_BYTES // step_bytes)))
    return max(LEAST_DEPTH, -(-steps // parts))


def _sample_bytes(source: Source, num_samples: int) -> int:
    """Bytes of a sample in a batch; for a ragged field, the bytes it is decoded from."""
    specs = source.fields.values()
    found = sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs if not spec.ragged)
    if any(spec.ragged for spec in specs):
        found += (source.locality.decoded_bytes(num_samples) or 0) // num_samples
    return found


def warn_small_cache(source: Source, order: Order, *, rank: int, world_size: int) -> None:
    """Warn on the main rank if chunks will be decoded more than about once per epoch, and name the size needed.

    A rank reads its part of the lanes; each lane needs a window of chunks at a time. There is no warning if source or
    order do not give these numbers, or if the cache is off.

    Args:
        source: the samples.
        order: says how many chunks it draws from at a time.
        rank: this rank.
        world_size: number of ranks.
    """
    grid, locality = order.grid, source.locality
    if grid is None or not locality.cache_bytes or rank != 0 or order.kind == "sequential":
        return
    chunks = -(-grid.lanes // world_size) * grid.window
    samples = chunks * max(locality.chunk_samples, grid.chunk_samples)  # the order may be made for other fields
    needed = min(locality.decoded_bytes(samples) or 0, locality.decoded_bytes(source.num_samples) or 0)
    if needed > locality.cache_bytes:
        warnings.warn(
            f"the order draws from {chunks} chunks at a time on each rank ({_mib(needed)} decoded), the cache keeps "
            f"{_mib(locality.cache_bytes)}: chunks will be decoded several times per epoch. Set cache={needed} "
            "or more on the source, use fewer lanes or a smaller window, or store smaller chunks",
            stacklevel=4,
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank, the number of ranks, of those on its machine, and the device of its batches (None = NumPy arrays)."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    device: Any  # str | torch.device | jax.sharding.Sharding | None

    @classmethod
    def launched(cls, environ: Mapping[str, str], device: Any = None) -> Self:
        """Return the place that the launcher's variables give; without them that of a process alone."""
        said, local = announced_place(environ) or Place(), num_local_ranks(environ)
        return cls(rank=said.rank, world_size=said.world_size, local_world_size=local, device=device)


def find_place(world: World | None, device: str | torch.device | jax.sharding.Sharding | None) -> RankPlace:
    """Return the place of a loader.

    Args:
        world: None = the current one; the launcher's variables if torch is neither loaded nor needed, nor JAX set up.
        device: "auto" = the world's device (NumPy arrays in a JAX program); any other value is used as given.

    Raises:
        MissingExtraError: a device was asked for and torch is not installed.
    """
    if world is None:
        from rankwise.world.adopt import current_world, known_world

        no_tensors = device is None or is_jax_target(device)
        # a process that has not loaded torch is in no process group: NumPy arrays need no import of torch
        if known_world() is None and (find_spec("torch") is None or (no_tensors and "torch" not in sys.modules)):
            if not no_tensors:
                raise MissingExtraError(
                    f"device={device!r} needs torch, which is not installed: pip install 'rankwise[train]', "
                    "or pass device=None for NumPy arrays and SciPy matrices, 'jax' for JAX"
                )
            return RankPlace.launched(os.environ, device)
        world = current_world()
    own = None if getattr(world, "backend", "") == "jax" else world.device
    chosen = own if isinstance(device, str) and device == "auto" else device
    local = getattr(world, "local_world_size", 1)  # a rank and a size are a world, too
    return RankPlace(rank=world.rank, world_size=world.world_size, device=chosen, local_world_size=local)
