"""The seams of the data's way: what order, sources, loaders and the training step say to each other.

Everything here is frozen, slotted and keyword-only, and needs numpy and the standard library alone.
A name changes only together with a page in ``docs/decisions``.

Axes used in the shapes below: ``count`` = samples of a global batch, ``B`` = samples of one share.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from rankwise.errors import ConfigError, SampleError

__all__ = [
    "JSON",
    "Batch",
    "BatchBuffer",
    "BatchLoader",
    "BoolArray",
    "DType",
    "FieldSpec",
    "FloatArray",
    "IntArray",
    "NDArray",
    "Order",
    "OrderState",
    "Plan",
    "ReadReport",
    "Share",
    "Source",
    "Stateful",
    "Step",
    "num_micro_batches",
    "sample_keys",
    "shares",
]

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
NDArray: TypeAlias = npt.NDArray[Any]
IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
DType: TypeAlias = np.dtype[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderState:
    """Where an order stands: equal on all ranks, a few dozen bytes of JSON.

    Attributes:
        version: version of this record, 1.
        seed: seed of the order.
        epoch: epoch of the next step, from 0.
        position: samples of this epoch that lie behind, at least 0.
        recipe: what decided the order (see `Order.recipe`); a state resumes only an order of the same recipe.
    """

    version: int = 1
    seed: int
    epoch: int
    position: int
    recipe: str

    def __post_init__(self) -> None:
        if self.version != 1:
            raise ConfigError(
                f"order state has version {self.version}; this rankwise reads version 1: "
                "resume with the rankwise that wrote it"
            )
        if self.epoch < 0 or self.position < 0:
            raise ConfigError(f"order state wants epoch >= 0 and position >= 0, got {self.epoch} and {self.position}")

    def to_json(self) -> dict[str, JSON]:
        """Return the state as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> OrderState:
        """Return the state that `to_json` wrote.

        Raises:
            ConfigError: a field is missing or unknown, or a value is out of range.
        """
        wanted = ("version", "seed", "epoch", "position", "recipe")
        if sorted(state) != sorted(wanted):
            raise ConfigError(f"an order state has the fields {', '.join(wanted)}; got {json.dumps(sorted(state))}")
        return cls(
            version=int(state["version"]),
            seed=int(state["seed"]),
            epoch=int(state["epoch"]),
            position=int(state["position"]),
            recipe=str(state["recipe"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global batch: the same value on every rank.

    Attributes:
        epoch: its epoch.
        index: its number inside the epoch, counted in steps since the epoch's start or since the resumed position.
        start: its first position in the epoch.
        count: how many real samples it holds over all ranks.
        ids: int64, sample ids in position order. ``ids[:count]`` are real; any further ones are padding (weight 0).
        lanes: int64, lane of each entry of `ids`.
        resume: the state after this step.
    """

    epoch: int
    index: int
    start: int
    count: int
    ids: IntArray
    lanes: IntArray
    resume: OrderState


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of one micro-batch of a step.

    Attributes:
        step: the global batch that it is part of.
        micro: its micro-batch, 0 <= micro < num_micro.
        num_micro: micro-batches of the step, the same on all ranks.
        rank: whose share.
        world_size: among how many.
        positions: int64[B], positions in the epoch.
        ids: int64[B], sample ids, parallel to `positions`. May be empty.
        weights: float64[B] or None (all one). 0 marks padding.
    """

    step: Step
    micro: int
    num_micro: int
    rank: int
    world_size: int
    positions: IntArray
    ids: IntArray
    weights: FloatArray | None

    @property
    def num_samples(self) -> int:
        """Number of samples of this share, padding included."""
        return len(self.ids)


@runtime_checkable
class Order(Protocol):
    """Which samples form which step: pure arithmetic, the same on every rank."""

    @property
    def recipe(self) -> str:
        """What decides the order: equal recipes and seeds give equal epochs."""
        ...

    def num_samples(self, epoch: int) -> int:
        """Return how many samples the epoch shows."""
        ...

    def num_steps(self, state: OrderState) -> int:
        """Return how many steps are left in the epoch of `state`."""
        ...

    def step(self, state: OrderState) -> Step:
        """Return the step that begins at `state`; at the end of an epoch the first step of the next one. Pure."""
        ...


def num_micro_batches(count: int, *, world_size: int, micro_batch: int | None) -> int:
    """Return into how many micro-batches a step of `count` samples is cut, the same on all ranks.

    The largest share has ``ceil(count / world_size)`` samples, and no micro-batch of a rank exceeds `micro_batch`.

    Args:
        count: samples of the global batch, padding included.
        world_size: number of ranks.
        micro_batch: most samples of one rank in one pass; None = one pass.

    Raises:
        ConfigError: `micro_batch` is below 1.
    """
    if micro_batch is None:
        return 1
    if micro_batch < 1:
        raise ConfigError(f"micro_batch is the most samples of one rank in one pass, at least 1; got {micro_batch}")
    largest = -(-count // world_size)
    return max(1, -(-largest // micro_batch))


def shares(step: Step, *, rank: int, world_size: int, num_micro: int) -> tuple[Share, ...]:
    """Return the micro-batches of one rank: `num_micro` shares, in the order in which they are taken.

    The global batch is sorted by lane (stable, so by position inside a lane) and cut into `world_size` runs whose
    lengths differ by at most one; the rank's run is cut into `num_micro` runs in the same way. Shares may be empty.

    Raises:
        ConfigError: the rank is not in the world, or `num_micro` is below 1.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"shares wants 0 <= rank < world_size, got rank {rank} of {world_size}")
    if num_micro < 1:
        raise ConfigError(f"shares wants num_micro >= 1, got {num_micro}")
    total = len(step.ids)
    by_lane = np.argsort(step.lanes, kind="stable")
    low, high = rank * total // world_size, (rank + 1) * total // world_size
    mine = by_lane[low:high]
    weights = None
    if total > step.count:
        weights = (mine < step.count).astype(np.float64)
    cuts = [low_cut * len(mine) // num_micro for low_cut in range(num_micro + 1)]
    return tuple(
        Share(
            step=step,
            micro=micro,
            num_micro=num_micro,
            rank=rank,
            world_size=world_size,
            positions=step.start + mine[begin:end].astype(np.int64),
            ids=step.ids[mine[begin:end]],
            weights=None if weights is None else weights[begin:end],
        )
        for micro, (begin, end) in enumerate(itertools.pairwise(cuts))
    )


def sample_keys(seed: int, epoch: int, ids: IntArray) -> IntArray:
    """Return the keys of samples, int64[B]: f(seed, epoch, sample), the same at any world size and after any restart.

    The mixing is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
    2014), applied to the three inputs in turn. Keys are not secret, only well spread.

    Args:
        seed: seed of the order, any int.
        epoch: epoch, from 0.
        ids: int64[B], sample ids.
    """
    mask = (1 << 64) - 1
    with np.errstate(over="ignore"):
        mixed = _mix(np.array([seed & mask], dtype=np.uint64))
        mixed = _mix(mixed ^ np.uint64(epoch))
        return _mix(mixed ^ ids.astype(np.int64).view(np.uint64)).view(np.int64)


def _mix(word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """What one field of a sample looks like.

    Attributes:
        shape: shape of one sample, without the batch axis.
        dtype: its dtype.
        ragged: True for rows of a CSR matrix: (data, indices, indptr) instead of one array.
    """

    shape: tuple[int, ...]
    dtype: DType
    ragged: bool = False


class Plan(Protocol):
    """What reading one share will cost; made by a `Source`, opaque to everybody else."""

    @property
    def share(self) -> Share:
        """The share that is read."""
        ...

    @property
    def num_chunks(self) -> int:
        """Number of different chunks it touches."""
        ...

    @property
    def read_bytes(self) -> int:
        """Bytes to read from the store, as far as metadata tell."""
        ...

    @property
    def decode_bytes(self) -> int:
        """Bytes to decode."""
        ...

    @property
    def capacity(self) -> Mapping[str, int]:
        """For each ragged field, the most values that the batch can hold."""
        ...


class BatchBuffer(Protocol):
    """Memory for one batch, reused from batch to batch."""

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Make room for `num_samples` samples of `specs` (and `capacity` values of each ragged field)."""
        ...

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field, batch axis first: one if dense; data, indices, indptr if ragged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """How reading one share went.

    Attributes:
        valid: bool[B], False where a sample could not be read.
        fill_chunks: chunks that are missing from the store and stand for the fill value.
        fast_chunks: chunks that the fast path decoded.
        slow_chunks: chunks that zarr-python decoded.
        errors: what went wrong, one for each invalid sample.
    """

    valid: BoolArray
    fill_chunks: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    errors: tuple[SampleError, ...] = ()


class Source(Protocol):
    """Samples by index. Implementations: samples, crops, rows. Needs no torch."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content's metadata: equal for a copy at another path, different for other data."""
        ...

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    @property
    def chunk_samples(self) -> int:
        """Neighbouring samples that one chunk holds, at least 1: what an order uses for locality."""
        ...

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a sample by name."""
        ...

    def plan(self, share: Share) -> Plan:
        """Return what reading `share` takes. Thread-safe; touches metadata only."""
        ...

    def hint(self, plan: Plan) -> None:
        """Tell the system that `plan` will be read soon. Thread-safe; may do nothing."""
        ...

    def read(self, plan: Plan, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer. Thread-safe."""
        ...


class Batch(Protocol):
    """One micro-batch of one rank, on its device. A context manager that releases its memory.

    ``batch[field]`` is a tensor on the rank's device (or a NumPy array where no device was asked for).
    """

    @property
    def share(self) -> Share:
        """Which samples it holds."""
        ...

    @property
    def ids(self) -> IntArray:
        """int64[B]: sample ids."""
        ...

    @property
    def key(self) -> IntArray:
        """int64[B]: f(seed, epoch, sample), for transforms that are equal at any world size."""
        ...

    @property
    def count(self) -> int:
        """Real samples that arrived: neither padding nor skipped."""
        ...

    @property
    def resume(self) -> OrderState:
        """The state after the step that this batch belongs to."""
        ...

    def __getitem__(self, field: str) -> Any:
        """Return a field, batch axis first."""
        ...

    def release(self, event: Any = None) -> None:
        """Give the memory back: at once, or when `event` (a CUDA event) has happened. Calling it twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BatchLoader(Protocol):
    """Steps of this rank, one after the other. Iterating yields one item per step: the tuple of its micro-batches."""

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        """Iterate from the current state to the end of its epoch."""
        ...

    def __len__(self) -> int:
        """Return the number of steps that an iteration started now would take."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""
        ...

    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed; called after ``optimizer.step``."""
        ...

    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done. What was only pulled does not count."""
        ...

    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`, at any world size."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Checkpoint's only view of what it saves.

    scope tells how the state survives a new world size: "replicated" (equal on all ranks, one copy is kept),
    "sharded" (each rank has its own part), "reduced" (partial sums that add up), "rederived" (belongs to a rank and
    is derived anew when the world size differs).
    """

    @property
    def scope(self) -> Literal["replicated", "sharded", "reduced", "rederived"]:
        """How the state survives a new world size."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state: a tree of tensors, arrays, numbers, strings and None."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state."""
        ...
