"""Collectives on trees in a JAX program, with NumPy: every rank receives all values and reduces them itself.

They are meant for metrics, not for gradients, which JAX reduces on the devices.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError, WorldError
from rankwise.world.collectives.handshake import INLINE, Call, exchange
from rankwise.world.collectives.transfer import gather_raw
from rankwise.world.collectives.tree import Leaf, describe, flatten, rebuild
from rankwise.world.collectives.wire import check_leaf

if TYPE_CHECKING:
    from rankwise.world.value import World

__all__ = ["gather_by_keys", "reduce_by_keys"]

_HALF = ("float16",)


@dataclass(frozen=True, slots=True)
class _Values:
    """This rank's leaves as bytes."""

    structure: str
    leaves: list[Leaf]
    data: bytes

    @property
    def payload_bytes(self) -> int:
        return len(self.data)

    def payload(self) -> bytes:
        return self.data


def gather_by_keys(world: World, tree: Any, call: Call, *, ragged: bool, check: Callable[[], None]) -> list[Any]:
    """Return the trees of all ranks, by rank, on every rank.

    Args:
        world: the world of a JAX program.
        tree: this rank's tree.
        call: the call that this belongs to.
        ragged: whether first axes may differ in length.
        check: raises on invalid arguments.
    """

    def offer() -> _Values:
        check()
        return _values(tree, ragged=ragged)

    mine, rows = _swap(world, call, offer)
    return [
        rebuild(tree, (_of_kind(value, leaf) for value, leaf in zip(row, mine.leaves, strict=True))) for row in rows
    ]


def reduce_by_keys(world: World, tree: Any, call: Call, *, check: Callable[[], None]) -> Any:
    """Return the tree reduced over ranks by ``call.reduce``, in rank order, on every rank.

    Args:
        world: the world of a JAX program.
        tree: this rank's tree.
        call: the call that this belongs to.
        check: raises on invalid arguments.

    Raises:
        WorldError: a sum of Python integers does not fit into 64 bits.
    """

    def offer() -> _Values:
        check()
        made = _values(tree, ragged=False)
        for leaf in made.leaves:
            check_leaf(leaf, call.reduce)
        return made

    mine, rows = _swap(world, call, offer)
    columns = zip(*rows, strict=True)
    folded = (_folded(list(column), leaf, call.reduce) for column, leaf in zip(columns, mine.leaves, strict=True))
    return rebuild(tree, folded)


def _plain(leaf: Leaf) -> None:
    if leaf.kind == "tensor":
        raise ConfigError(
            f"{leaf.path} is a torch tensor: in a JAX program a tree may hold numbers and NumPy arrays only: send "
            "tensor.numpy(), or np.asarray(x) of a JAX array"
        )
    if leaf.kind == "int" and not -(2**63) <= leaf.value < 2**63:
        raise ConfigError(
            f"{leaf.path} is {leaf.value}, which does not fit in 64 bits: send it as float or as an object"
        )


def _values(tree: Any, *, ragged: bool) -> _Values:
    leaves = flatten(tree)
    for leaf in leaves:
        _plain(leaf)
    data = pickle.dumps([leaf.value for leaf in leaves], protocol=pickle.HIGHEST_PROTOCOL)
    return _Values(describe(tree, leaves, ragged=ragged), leaves, data)


def _swap(world: World, call: Call, offer: Callable[[], _Values]) -> tuple[_Values, list[list[Any]]]:
    """Return this rank's values and those of all ranks."""
    if world.channel is None:
        mine = offer()
        return mine, [pickle.loads(mine.data)]  # noqa: S301  (pickled one line above)
    mine, frames = exchange(world, call, offer)
    if all(frame.payload_bytes <= INLINE for frame in frames):
        raw = [bytes(frame.payload) for frame in frames]
    else:
        everywhere = Call(call.op, call.place, call.reduce)
        raw = gather_raw(world, everywhere, mine.data, [frame.payload_bytes for frame in frames]) or []
    return mine, [pickle.loads(one) for one in raw]  # noqa: S301  (ranks of one job trust each other)


def _of_kind(value: Any, leaf: Leaf) -> Any:
    """Convert an unpickled value: an array gets its own memory and native byte order."""
    return np.array(value, dtype=leaf.dtype) if leaf.kind == "array" else value


def _folded(values: list[Any], leaf: Leaf, op: str) -> Any:
    if leaf.kind == "int" and op in ("sum", "mean"):
        return _whole(values, leaf, op)
    parts = [np.asarray(value, dtype=leaf.dtype) for value in values]
    if op in ("min", "max"):
        total: Any = np.minimum.reduce(parts) if op == "min" else np.maximum.reduce(parts)
    else:
        total = _summed(parts, leaf)
        total = total / len(parts) if op == "mean" else total
        total = total.astype(leaf.dtype) if leaf.dtype != "bool" else total
    array = np.asarray(total)
    if leaf.kind == "array":
        return array
    return array[()] if leaf.kind == "scalar" else array.item()


def _whole(values: list[int], leaf: Leaf, op: str) -> int | float:
    total = sum(values)
    if op == "mean":
        return float(total / len(values))
    if not -(2**63) <= total < 2**63:
        raise WorldError(
            f"the sum over ranks of {leaf.path} is {total}, which does not fit in 64 bits: send it as float"
        )
    return total


def _summed(parts: list[Any], leaf: Leaf) -> Any:
    """Sum in rank order: count booleans, sum half precision in float32; integers wrap in their own dtype."""
    wide = "int64" if leaf.dtype == "bool" else "float32" if leaf.dtype in _HALF else leaf.dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = total + part.astype(wide)
    return total
