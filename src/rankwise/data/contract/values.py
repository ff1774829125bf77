"""Values that packages exchange: array types, the state of an order, global batches, shares, reports."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from rankwise.errors import ConfigError, SampleError

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
NDArray: TypeAlias = npt.NDArray[Any]
IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
DType: TypeAlias = np.dtype[Any]

_MOST_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderState:
    """Position of an order: equal on all ranks, a few dozen bytes of JSON.

    Attributes:
        version: version of this record, 1.
        seed: seed of the order.
        epoch: epoch of the next step, from 0.
        position: samples of this epoch that are done, at least 0.
        recipe: the parameters of the order (see `Order.recipe`); a state resumes only an order with the same recipe.
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
            raise ConfigError(f"order state needs epoch >= 0 and position >= 0, got {self.epoch} and {self.position}")

    def to_json(self) -> dict[str, JSON]:
        """Return the state as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> OrderState:
        """Return the state that `to_json` wrote.

        Raises:
            ConfigError: a field is missing or unknown, or a value is of another type or out of range.
        """
        wanted = ("version", "seed", "epoch", "position", "recipe")
        if sorted(state) != sorted(wanted):
            raise ConfigError(f"an order state needs the fields {', '.join(wanted)}; got {json.dumps(sorted(state))}")
        if not isinstance(state["recipe"], str):
            raise ConfigError(f"an order state needs a string for recipe, got {state['recipe']!r}")
        numbers = {name: whole_number(f"{name} of an order state", state[name]) for name in wanted[:-1]}
        return cls(**numbers, recipe=state["recipe"])


class StepIds(Protocol):
    """The sample ids of a step, computed on demand: a rank computes only its own share."""

    def listed(self) -> tuple[IntArray, IntArray]:
        """Return ids and lanes of all samples, in position order, padding last; both int64[size]. Costs the whole step.

        The caller may modify the arrays.
        """
        ...

    def run(self, low: int, high: int) -> tuple[IntArray, IntArray]:
        """Return a run of the samples sorted by lane and, inside a lane, by position.

        Args:
            low: index of the first sample of the run, 0 <= low <= high.
            high: index after the last one, at most the size of the step.

        Returns:
            offsets: int64[high - low], positions relative to the start of the step; padding has offsets behind all
                real samples.
            ids: int64[high - low], parallel to the offsets.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedIds:
    """`StepIds` from arrays of all ids.

    Attributes:
        ids: int64, in position order, padding last.
        lanes: int64, lane of each; padding has the lane of the sample that it repeats.
    """

    ids: IntArray
    lanes: IntArray

    def listed(self) -> tuple[IntArray, IntArray]:
        """Return the arrays; see `StepIds`."""
        return self.ids.copy(), self.lanes.copy()

    def run(self, low: int, high: int) -> tuple[IntArray, IntArray]:
        """Return a run of them, sorted by lane; see `StepIds`."""
        offsets = np.argsort(self.lanes, kind="stable")[low:high].astype(np.int64)
        return offsets, self.ids[offsets]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One global batch: the same value on every rank.

    Attributes:
        epoch: its epoch.
        index: number of the step inside the epoch; an `Order` counts in steps of its current batch size.
        start: position of its first sample in the epoch.
        count: number of real samples over all ranks.
        size: number of samples with padding, which has weight 0 and comes last.
        members: the sample ids. `shares` computes only those of one rank.
        resume: the state after this step.
    """

    epoch: int
    index: int
    start: int
    count: int
    size: int
    members: StepIds
    resume: OrderState

    @property
    def ids(self) -> IntArray:
        """int64[size], sample ids in position order: ``ids[:count]`` are real. Each call computes the whole step."""
        return self.members.listed()[0]

    @property
    def lanes(self) -> IntArray:
        """int64[size], lane of each of `ids`. Each call computes the whole step."""
        return self.members.listed()[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of one micro-batch of a step that one rank takes.

    Attributes:
        step: the global batch that it belongs to.
        micro: number of the micro-batch, 0 <= micro < num_micro.
        num_micro: micro-batches of the step, the same on all ranks.
        rank: the rank that takes it.
        world_size: number of ranks.
        positions: int64[B], positions in the epoch.
        ids: int64[B], sample ids, parallel to `positions`. May be empty.
        weights: float64[B] or None (all one). 0 marks padding.
        speeds: one per rank, by which the step was cut; None = shares differ by at most one sample.
    """

    step: Step
    micro: int
    num_micro: int
    rank: int
    world_size: int
    positions: IntArray
    ids: IntArray
    weights: FloatArray | None
    speeds: tuple[int, ...] | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples of this share, padding included."""
        return len(self.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """Shape and dtype of one field of a sample.

    Attributes:
        shape: shape of one sample, without the batch axis; (columns,) for a ragged field.
        dtype: its dtype.
        ragged: True for rows of a CSR matrix: three arrays (data, indices, indptr) instead of one.
    """

    shape: tuple[int, ...]
    dtype: DType
    ragged: bool = False

    @property
    def index_dtype(self) -> DType:
        """Dtype of the column numbers and row pointers of a ragged field: int32 if its columns fit, else int64."""
        return np.dtype(np.int32 if math.prod(self.shape) <= _MOST_INT32 else np.int64)


@dataclass(frozen=True, kw_only=True)
class Locality:
    """What neighbouring samples of a source share.

    Attributes:
        chunk_samples: number of neighbouring samples in one chunk, at least 1.
        chunk_bytes: decoded bytes of such a chunk, over all fields; None = the bytes of its samples.
        cache_bytes: capacity of the source's cache of decoded chunks; 0 = the cache is off, None = there is none.
        group_steps: whether reading several steps together costs less than one by one: loaders then read whole windows.
        order_kind: the kind of order that suits; "sequential" if samples are in random order already, None = any.
        window_samples: samples in a window, if the samples have an order of their own; None = the order decides.
    """

    chunk_samples: int = 1
    chunk_bytes: int | None = None
    cache_bytes: int | None = None
    group_steps: bool = False
    order_kind: str | None = None
    window_samples: int | None = None

    def decoded_bytes(self, num_samples: int) -> int | None:
        """Return the approximate decoded bytes of `num_samples` neighbouring samples; None = unknown."""
        return None if self.chunk_bytes is None else -(-num_samples // self.chunk_samples) * self.chunk_bytes

    def layout(self, batch_size: int) -> tuple[int | None, int | None]:
        """Return the lanes and the window that suit an order of that batch size; None for each without a preference."""
        del batch_size
        return None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """Result of reading one share.

    Attributes:
        valid: bool[B], False for samples that could not be read.
        fill_chunks: chunks that are missing from the store, read as the fill value.
        fast_chunks: chunks that the fast path decoded.
        slow_chunks: chunks that zarr-python decoded.
        errors: one error for each invalid sample.
    """

    valid: BoolArray
    fill_chunks: int = 0
    fast_chunks: int = 0
    slow_chunks: int = 0
    errors: tuple[SampleError, ...] = ()


def short_hash(facts: object) -> str:
    """Return a hash of facts by their `repr`, or of bytes: 16 hexadecimal digits."""
    return hashlib.sha256(facts if isinstance(facts, bytes) else repr(facts).encode()).hexdigest()[:16]


def whole_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    mend: str = "",
    error: type[ConfigError] = ConfigError,
) -> int:
    """Return an argument that must be an integer as Python's int. NumPy's integers pass, booleans do not.

    Args:
        name: what the user calls it, with the place where the name alone would not tell.
        value: the argument.
        least: its lower bound.
        most: its upper bound, with a lower one.
        mend: end of the message.
        error: class of the error.

    Raises:
        ConfigError: it is not an integer, or out of range.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is not None and least <= number <= most:
        return number
    span = f" from {least} to {most}" if most < math.inf else f" of at least {least}" if least > -math.inf else ""
    raise error(f"{name} must be an integer{span}, got {value!r:.80}{mend}")


def choose_fields(there: Iterable[str], fields: Sequence[str], *, of: str = "source") -> tuple[str, ...]:
    """Return the names of the requested fields, in the order of the source.

    Args:
        there: all names.
        fields: the requested names.
        of: what has the fields, for the message.

    Raises:
        ConfigError: there is no such field, or none is requested.
    """
    names = tuple(there)
    if isinstance(fields, str):
        raise ConfigError(f"fields must be a list of names, such as [{fields!r}]; got the string {fields!r}")
    if not fields or any(name not in names for name in fields):
        raise ConfigError(f"the {of} has the fields {', '.join(names)}; asked for {list(fields)}")
    return tuple(name for name in names if name in fields)
