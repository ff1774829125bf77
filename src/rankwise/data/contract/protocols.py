"""The protocols of the data's way: order, source, buffer, batch, loader; and what a checkpoint sees of its parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from rankwise.data.contract.values import (
    JSON,
    FieldSpec,
    IntArray,
    Locality,
    NDArray,
    OrderState,
    ReadReport,
    Share,
    Step,
)

__all__ = ["Batch", "BatchBuffer", "BatchLoader", "Grid", "Order", "Plan", "Samples", "Source", "Stateful"]


class Grid(Protocol):
    """How an order with locality walks over samples: windows of chunks, in lanes side by side."""

    @property
    def lanes(self) -> int:
        """Lanes, each an own stretch of the samples; a step takes from all of them."""
        ...

    @property
    def window(self) -> int:
        """Chunks of a lane that are mixed at a time."""
        ...

    @property
    def chunk_samples(self) -> int:
        """Neighbouring samples that stay together until a window mixes them."""
        ...


@runtime_checkable
class Order(Protocol):
    """Which samples form which step: pure arithmetic, the same on every rank.

    `BaseOrder` has defaults of what follows `step`.
    """

    @property
    def recipe(self) -> str:
        """What decides the order: equal recipes and seeds give equal epochs."""
        ...

    @property
    def batch_size(self) -> int:
        """Most samples of a step, over all ranks."""
        ...

    def start(self, epoch: int = 0) -> OrderState:
        """Return the state before the first step of an epoch."""
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

    @property
    def samples(self) -> int | None:
        """Number of samples that it is over, shown or not; None = it serves data of any size."""
        ...

    @property
    def kind(self) -> str:
        """Its kind: "shuffle", or "sequential" where samples come in the order of their numbers."""
        ...

    @property
    def remainder(self) -> str:
        """What becomes of a last batch that is not full: "split" over the ranks, "pad", or "drop"."""
        ...

    @property
    def grid(self) -> Grid | None:
        """Its lanes and windows; None = it has none."""
        ...

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the data that it was made for; None = it serves any data of so many samples."""
        ...

    @property
    def draw(self) -> Any:
        """How its samples are drawn, see `Samples.draw_options`; None = they are the samples themselves."""
        ...

    def resumed(self, state: OrderState) -> Self:
        """Return the order that continues a saved state: this one, unless it derived something from the batch size.

        Raises:
            ConfigError: the saved order differs in anything else.
        """
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


class Samples(Protocol):
    """Samples that an order can be made of."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content's metadata: equal for a copy at another path, different for other data."""
        ...

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        ...

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a sample by name."""
        ...

    @property
    def locality(self) -> Locality:
        """What neighbouring samples share, from metadata alone; decides lanes, windows and how much is read ahead."""
        ...

    @property
    def draw_options(self) -> Any:
        """How the samples were drawn from others, for `Source.bound_to` of an equal source; None = they were not."""
        ...

    def drawn(self, *args: Any, **options: Any) -> Samples:
        """Return draws of these samples, as ``Order(balance=, weights=, mix=, num_samples=, together=)`` asks for.

        Raises:
            ConfigError: they cannot be drawn, or not so.
        """
        ...


class Source(Samples, Protocol):
    """Samples by index. Implementations: samples, crops, rows. Needs no torch.

    `BaseSource` has defaults of all but `Samples`' first three members, `plan` and `read`.
    """

    def plan(self, share: Share) -> Plan:
        """Return what reading `share` takes. Thread-safe; touches metadata only."""
        ...

    def read(self, plan: Any, into: BatchBuffer) -> ReadReport:
        """Read what `plan` returned into a buffer. Thread-safe."""
        ...

    @property
    def stateless(self) -> bool:
        """Whether what is read follows from the share alone: loaders may then read before an epoch is asked for."""
        ...

    def hint(self, plan: Any) -> None:
        """Tell the system that `plan` will be read soon. Thread-safe; may do nothing."""
        ...

    def close(self) -> None:
        """Give threads and files back. Reading again opens them anew."""
        ...

    def select(self, fields: Sequence[str]) -> Source:
        """Return a source of some of the fields.

        Raises:
            ConfigError: there is no such field, or it cannot choose.
        """
        ...

    def bound_to(self, order: Order) -> Source:
        """Return the samples that an order counts: these, or the draws of them that it was made of.

        Raises:
            ConfigError: the order was made of other samples, or draws otherwise.
        """
        ...

    def fused_with(self, batch_transform: Any) -> Source | None:
        """Return a source that does what a transform of whole batches does while it reads; None = it cannot."""
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

    The least that the trainer takes; it asks `BaseLoader` for more, which has defaults.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        """Iterate from the current state to the end of its epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps that an iteration started now would take; `sys.maxsize` where nobody knows."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""

    @abstractmethod
    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed; called after ``optimizer.step``."""

    @abstractmethod
    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done. What was only pulled does not count."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`, at any world size."""


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
