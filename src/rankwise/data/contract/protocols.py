"""The protocols of the data path: order, source, buffer, batch, loader; and `Stateful`, for checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from rankwise.errors import ConfigError


class Grid(Protocol):
    """How an order with locality visits samples: windows of chunks, in parallel lanes."""

    @property
    def lanes(self) -> int:
        """Number of lanes. Each is a separate stretch of the samples; a step takes samples from all of them."""

    @property
    def window(self) -> int:
        """Number of chunks of a lane that are mixed together."""

    @property
    def chunk_samples(self) -> int:
        """Number of neighbouring samples that one chunk holds; a window mixes the samples of its chunks."""


class BaseOrder(Protocol):
    """An `Order` without lanes and draws; a subclass adds `recipe`, `batch_size`, `fingerprint` and the steps."""

    @property
    def samples(self) -> int | None:
        """Number of samples in the data, yielded or not; None = it serves data of any size."""
        return None

    @property
    def kind(self) -> str:
        """Kind of order: "shuffle", or "sequential" for samples in the order of their numbers."""
        return "shuffle"

    @property
    def remainder(self) -> str:
        """What happens to a last batch that is not full: "split" over the ranks, "pad", or "drop"."""
        return "split"

    @property
    def grid(self) -> Grid | None:
        """Its lanes and windows; None = it has none."""
        return None

    @property
    def draw(self) -> Any:
        """How its samples are drawn, see `Samples.draw_options`; None = they are not drawn."""
        return None

    def resumed(self, state: OrderState) -> Self:
        """Return the order that continues a saved state: this one, unless it derived parameters from the batch size.

        Raises:
            ConfigError: the saved order differs in anything else.
        """
        del state
        return self


@runtime_checkable
class Order(BaseOrder, Protocol):
    """Which samples form which step: pure arithmetic, the same on every rank.

    `BaseOrder` has defaults for `samples`, `kind`, `remainder`, `grid`, `draw` and `resumed`.
    """

    @property
    def recipe(self) -> str:
        """The parameters that decide the order: equal recipes and seeds give equal epochs."""

    @property
    def batch_size(self) -> int:
        """Most samples of a step, over all ranks."""

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the data that it was made for; None = any data with as many samples."""

    def start(self, epoch: int = 0) -> OrderState:
        """Return the state before the first step of an epoch."""

    def num_samples(self, epoch: int) -> int:
        """Return how many samples an epoch yields."""

    def num_steps(self, state: OrderState) -> int:
        """Return how many steps are left in the epoch of `state`."""

    def step(self, state: OrderState) -> Step:
        """Return the step that begins at `state`; at the end of an epoch the first step of the next one. Pure."""


class Plan(Protocol):
    """The cost of reading one share. A `Source` makes it; other code does not look inside."""

    @property
    def share(self) -> Share:
        """The share to read."""

    @property
    def num_chunks(self) -> int:
        """Number of distinct chunks it reads."""

    @property
    def read_bytes(self) -> int:
        """Bytes to read from the store, as far as metadata say."""

    @property
    def decode_bytes(self) -> int:
        """Bytes to decode."""

    @property
    def capacity(self) -> Mapping[str, int]:
        """For each ragged field, the largest number of values that the batch can have."""


class BatchBuffer(Protocol):
    """Memory for one batch, reused from batch to batch."""

    def reserve(self, specs: Mapping[str, FieldSpec], num_samples: int, capacity: Mapping[str, int]) -> None:
        """Make room for `num_samples` samples of `specs` (and `capacity` values of each ragged field)."""

    def arrays(self, field: str) -> tuple[NDArray, ...]:
        """Return the arrays of a field, batch axis first: one if dense; data, indices, indptr if ragged."""


def not_drawn(asked: Iterable[str], samples: object) -> str:
    """Return the error message for draws of samples that cannot be drawn."""
    return (
        f"{', '.join(f'{name}=' for name in asked)} need samples that can be drawn, such as a collection of rows; "
        f"got {type(samples).__name__}"
    )


class SamplesDefaults(Protocol):
    """The members of `Samples` that have defaults, for samples without information about storage."""

    @property
    def locality(self) -> Locality:
        """What neighbouring samples share, from metadata alone; decides lanes, windows and prefetch depth."""
        return Locality()

    @property
    def draw_options(self) -> Any:
        """How the samples were drawn from others, for `Source.bound_to` of an equal source; None = not drawn."""
        return None

    def drawn(self, *args: Any, **options: Any) -> Samples:
        """Return draws of these samples, for ``Order(balance=, weights=, mix=, num_samples=, together=)``.

        Raises:
            ConfigError: they cannot be drawn, or not with these arguments.
        """
        del args
        raise ConfigError(not_drawn(options, self))


class Samples(SamplesDefaults, Protocol):
    """Samples over which an order can be made."""

    @property
    def fingerprint(self) -> str:
        """Hash of the content's metadata: equal for a copy at another path, different for other data."""

    @property
    def num_samples(self) -> int:
        """Number of samples."""

    @property
    def fields(self) -> Mapping[str, FieldSpec]:
        """Fields of a sample by name."""


class SourceDefaults(Protocol):
    """The members of `Source` that have defaults: read step by step, once their epoch was asked for."""

    @property
    def stateless(self) -> bool:
        """Whether the content depends on the share alone: loaders may then read before an epoch is asked for."""
        return False

    def hint(self, plan: Any) -> None:
        """Tell the system that `plan` will be read soon. Thread-safe; may do nothing."""

    def close(self) -> None:
        """Close threads and files. Reading again reopens them."""

    def select(self, fields: Sequence[str]) -> Source:
        """Return a source with some of the fields.

        Raises:
            ConfigError: there is no such field, or the source cannot select fields.
        """
        raise ConfigError(f"fields={list(fields)} needs a source that can select fields; {type(self).__name__} cannot")

    def bound_to(self, order: Order) -> Self:
        """Return the samples that an order counts: these, or draws of them if the order was made for draws.

        Raises:
            ConfigError: the order was made for other samples, or for other draws.
        """
        del order
        return self

    def fused_with(self, batch_transform: Any) -> Source | None:
        """Return a source that applies a batch transform while it reads; None = not supported."""
        del batch_transform
        return None


class Source(Samples, SourceDefaults, Protocol):
    """Samples by index. Implementations: samples, crops, rows. Does not need torch.

    `BaseSource` has defaults for all but the first three members of `Samples`, `plan` and `read`.
    """

    def plan(self, share: Share) -> Plan:
        """Return the plan for reading `share`. Thread-safe; reads metadata only."""

    def read(self, plan: Any, into: BatchBuffer) -> ReadReport:
        """Read a plan into a buffer. Thread-safe."""


class Batch(Protocol):
    """One micro-batch of one rank, on its device. A context manager that releases its memory.

    ``batch[field]`` is a tensor on the rank's device (or a NumPy array if no device was requested).
    """

    @property
    def share(self) -> Share:
        """Which samples it holds."""

    @property
    def ids(self) -> IntArray:
        """int64[B]: sample ids."""

    @property
    def key(self) -> IntArray:
        """int64[B]: f(seed, epoch, sample), for transforms that are equal at any world size."""

    @property
    def count(self) -> int:
        """Real samples that arrived: neither padding nor skipped."""

    @property
    def resume(self) -> OrderState:
        """The state after the step that this batch belongs to."""

    def __getitem__(self, field: str) -> Any:
        """Return a field, batch axis first."""

    def stand_in(self) -> Batch:
        """Return a picklable batch of two samples that owns its memory: the first one twice, or zeros if there is none.

        A rank without samples uses it to take part in the forward and backward pass. It has two samples because layers
        with batch statistics reject a single one.
        """

    def release(self, event: Any = None) -> None:
        """Give the memory back: at once, or when `event` (CUDA event, JAX array) is done. Calling it twice is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BatchLoader(Protocol):
    """The steps of this rank, one after another. Iterating yields one item per step: the tuple of its micro-batches.

    This is the minimum for the trainer. It also asks for members of `BaseLoader`, which has defaults.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        """Iterate from the current state to the end of its epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps that an iteration started now would take; `sys.maxsize` if unknown."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when the state already lies inside that epoch."""

    @abstractmethod
    def mark_done(self, state: OrderState) -> None:
        """Record that the step which ends at `state` has completed; called after ``optimizer.step``."""

    @abstractmethod
    def state_dict(self) -> dict[str, JSON]:
        """Return the last state marked done. Steps that were pulled but not marked done do not count."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, JSON]) -> None:
        """Continue after `state`; the world size may have changed."""


@runtime_checkable
class Stateful(Protocol):
    """What a checkpoint needs from each part that it saves.

    scope says how to treat the state at another world size: "replicated" (equal on all ranks, one copy is kept),
    "sharded" (each rank has its own part), "reduced" (partial sums that are added up), "rederived" (belongs to a rank
    and is derived again if the world size differs).
    """

    @property
    def scope(self) -> Literal["replicated", "sharded", "reduced", "rederived"]:
        """How to treat the state at another world size."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: a tree of tensors, arrays, numbers, strings and None."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
