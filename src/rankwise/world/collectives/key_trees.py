"""Collectives on trees in a JAX program, with NumPy: every rank receives all values and reduces them itself.

They are meant for metrics, not for gradients, which JAX reduces on the devices.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from rankwise.errors import ConfigError
from rankwise.world.collectives.handshake import Call, Contribution
from rankwise.world.collectives.objects import gather_pickled
from rankwise.world.collectives.tree import Leaf, describe, flatten, rebuild
from rankwise.world.collectives.wire import check_leaf, check_range, whole

if TYPE_CHECKING:
    from rankwise.world.value import World

_HALF = ("float16",)


def gather_by_keys(world: World, tree: Any, call: Call, *, ragged: bool) -> list[Any]:
    """Return the trees of all ranks, by rank, on every rank.

    Args:
        world: the world of a JAX program.
        tree: this rank's tree.
        call: the call that this belongs to.
        ragged: whether first axes may differ in length.
    """
    leaves, rows = _exchange(world, tree, call, ragged=ragged)
    return [rebuild(tree, (_of_kind(value, leaf) for value, leaf in zip(row, leaves, strict=True))) for row in rows]


def reduce_by_keys(world: World, tree: Any, call: Call) -> Any:
    """Return the tree reduced over ranks by ``call.reduce``, in rank order, on every rank.

    Args:
        world: the world of a JAX program.
        tree: this rank's tree.
        call: the call that this belongs to.

    Raises:
        WorldError: a sum of Python integers does not fit into 64 bits.
    """
    leaves, rows = _exchange(world, tree, call, ragged=False)
    columns = zip(*rows, strict=True)
    return rebuild(
        tree, (_reduced(list(column), leaf, call.reduce) for column, leaf in zip(columns, leaves, strict=True))
    )


def _exchange(world: World, tree: Any, call: Call, *, ragged: bool) -> tuple[list[Leaf], list[list[Any]]]:
    """Return this rank's leaves, and the values of those of all ranks."""
    leaves: list[Leaf] = []

    def contribute() -> Contribution:
        call.check(world.world_size)
        leaves.extend(flatten(tree))
        for leaf in leaves:
            if leaf.kind == "tensor":
                raise ConfigError(
                    f"{leaf.path} is a torch tensor: in a JAX program a tree may hold numbers and NumPy arrays only: "
                    "send tensor.numpy(), or np.asarray(x) of a JAX array"
                )
            check_range(leaf)
            if call.reduce:
                check_leaf(leaf, call.reduce)
        data = pickle.dumps([leaf.value for leaf in leaves], protocol=pickle.HIGHEST_PROTOCOL)
        return Contribution(data=data, structure=describe(tree, leaves, ragged=ragged))

    return leaves, gather_pickled(world, call, contribute) or []


def _of_kind(value: Any, leaf: Leaf) -> Any:
    """Convert an unpickled value: an array gets its own memory and native byte order."""
    return np.array(value, dtype=leaf.dtype) if leaf.kind == "array" else value


def _reduced(values: list[Any], leaf: Leaf, op: str) -> Any:
    if leaf.kind == "int" and op in ("sum", "mean"):
        return whole(sum(values), leaf, op, len(values))
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


def _summed(parts: list[Any], leaf: Leaf) -> Any:
    """Sum in rank order: count booleans, sum half precision in float32; integers wrap in their own dtype."""
    wide = "int64" if leaf.dtype == "bool" else "float32" if leaf.dtype in _HALF else leaf.dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = total + part.astype(wide)
    return total
