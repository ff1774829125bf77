"""Trees of numbers, tensors and arrays: flatten them into leaves in a canonical order, and rebuild them."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rankwise.errors import ConfigError

Kind = Literal["bool", "int", "float", "complex", "scalar", "array", "tensor"]
_PYTHON: tuple[tuple[type, Kind], ...] = ((bool, "bool"), (int, "int"), (float, "float"), (complex, "complex"))
_DTYPES = {"bool": "bool", "int": "int64", "float": "float64", "complex": "complex128"}
_KEYS = (str, int, float, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a tree.

    Attributes:
        value: the value itself.
        kind: a Python number, "scalar" (NumPy), "array" (NumPy) or "tensor" (torch).
        dtype: name of its dtype, the same for torch and NumPy.
        shape: its shape, () for numbers.
        device: its device, "cpu" unless it is a tensor elsewhere.
        path: its path in the tree, for messages.
    """

    value: Any
    kind: Kind
    dtype: str
    shape: tuple[int, ...]
    device: str
    path: str


def flatten(tree: Any) -> list[Leaf]:
    """Return the leaves: items of lists and tuples in order, of dicts by sorted key.

    Raises:
        ConfigError: a leaf or a key has an unsupported type; the message has its path in the tree.
    """
    leaves: list[Leaf] = []
    _flatten(tree, "tree", leaves)
    return leaves


def _flatten(tree: Any, path: str, leaves: list[Leaf]) -> None:
    if tree is None:
        return
    if isinstance(tree, dict):
        for key in _sorted_keys(tree, path):
            _flatten(tree[key], f"{path}[{key!r}]", leaves)
    elif isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            _flatten(item, f"{path}[{i}]", leaves)
    else:
        leaves.append(_leaf(tree, path))


def _sorted_keys(tree: dict[Any, Any], path: str) -> list[Any]:
    for key in tree:
        if not isinstance(key, _KEYS):
            raise ConfigError(f"{path} has the key {key!r}; the keys of a tree must be strings, numbers, bytes or None")
    return sorted(tree, key=lambda key: (type(key).__name__, repr(key)))


def _leaf(value: Any, path: str) -> Leaf:
    if isinstance(value, (np.generic, np.ndarray)):  # first: np.float64 is a float too
        return _numpy_leaf(value, path)
    for cls, kind in _PYTHON:
        if isinstance(value, cls):
            return Leaf(value, kind, _DTYPES[kind], (), "cpu", path)
    torch = sys.modules.get("torch")  # no tensor exists unless torch is imported
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_leaf(value, path)
    raise ConfigError(
        f"{path} is a {type(value).__name__}; a tree may hold numbers, torch tensors and NumPy arrays in dicts, lists "
        "and tuples: for other objects use broadcast_object, gather_object or all_gather_object"
    )


def _numpy_leaf(value: Any, path: str) -> Leaf:
    if value.dtype.kind not in "biufc" or value.dtype.name in ("longdouble", "clongdouble", "float128", "complex256"):
        raise ConfigError(
            f"{path} is a NumPy array of {value.dtype}; only booleans, integers, floats up to 64 bits and complex "
            "numbers can be sent: for others use all_gather_object or broadcast_object"
        )
    kind: Kind = "array" if isinstance(value, np.ndarray) else "scalar"
    return Leaf(value, kind, value.dtype.name, value.shape, "cpu", path)


def _tensor_leaf(value: Any, path: str) -> Leaf:
    import torch

    whole = value.layout is torch.strided and not value.is_quantized and value.device.type != "meta"
    if not whole or hasattr(value, "full_tensor"):
        raise ConfigError(
            f"{path} is a {type(value).__name__} ({value.layout}, {value.device.type}, {value.dtype}); only plain "
            "dense tensors can be sent: make one first (.to_dense(), .dequantize(), .full_tensor())"
        )
    return Leaf(value, "tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape), str(value.device), path)


def describe(tree: Any, leaves: list[Leaf], *, ragged: bool) -> str:
    """Return structure, dtypes and shapes of a tree as text; trees with equal texts differ in their values only.

    Args:
        tree: the tree.
        leaves: its leaves.
        ragged: leave out the length of first axes.
    """
    return _describe(tree, iter(leaves), ragged=ragged)


def _describe(tree: Any, leaves: Iterator[Leaf], *, ragged: bool) -> str:
    if tree is None:
        return "None"
    if isinstance(tree, dict):
        inside = (f"{key!r}: {_describe(tree[key], leaves, ragged=ragged)}" for key in _sorted_keys(tree, ""))
        return "{" + ", ".join(inside) + "}"
    if isinstance(tree, (list, tuple)):
        inside = (_describe(item, leaves, ragged=ragged) for item in tree)
        return ("[%s]" if isinstance(tree, list) else "(%s)") % ", ".join(inside)
    return _describe_leaf(next(leaves), ragged=ragged)


def _describe_leaf(leaf: Leaf, *, ragged: bool) -> str:
    if leaf.kind in _DTYPES:
        return leaf.kind
    lengths = ["?" if ragged and i == 0 else str(length) for i, length in enumerate(leaf.shape)]
    where = re.sub(r":\d+$", "", leaf.device)
    owner = {"scalar": "numpy.", "array": "numpy ", "tensor": "tensor " if where == "cpu" else f"{where} tensor "}
    return f"{owner[leaf.kind]}{leaf.dtype}" + ("" if leaf.kind == "scalar" else f"[{','.join(lengths)}]")


def rebuild(tree: Any, values: Iterator[Any]) -> Any:
    """Return a tree of the same structure and key order with other values, given in `flatten`'s order."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        new = {key: rebuild(tree[key], values) for key in _sorted_keys(tree, "")}
        if type(tree) is dict:
            return {key: new[key] for key in tree}
        same_kind = copy.copy(tree)  # keeps a defaultdict's factory, an OrderedDict's order
        for key in tree:
            same_kind[key] = new[key]
        return same_kind
    if isinstance(tree, (list, tuple)):
        items = [rebuild(item, values) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return items if isinstance(tree, list) else tuple(items)
    return next(values)
