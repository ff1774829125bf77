"""The protocols of the data's way: order, source, buffer, batch, loader; and what a checkpoint sees of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from rankwise.data.contract.types import JSON, IntArray, NDArray
from rankwise.data.contract.values import FieldSpec, OrderState, ReadReport, Share, Step

__all__ = ["Batch", "BatchBuffer", "BatchLoader", "Order", "Plan", "Source", "Stateful"]


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

    def stand_in(self) -> Batch:
        """Return a batch of two samples that owns its memory and can be pickled: the first one here twice, else zeros.

        It stands in where a rank without samples must still take part in a forward and a backward pass. Two, because
        layers with batch statistics refuse a single one.
        """
        ...

    def release(self, event: Any = None) -> None:
        """Give the memory back: at once, or when `event` (of CUDA, a JAX array) is there. Calling it twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BatchLoader(Protocol):
    """Steps of this rank, one after the other. Iterating yields one item per step: the tuple of its micro-batches.

    One that reads ahead may also have ``start_prefetch()``, called where it stands a while before it is iterated, and
    ``expect_last_epoch()``, called before an iteration that none follows. Neither may change what the iteration brings.
    """

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
