"""A part's state with tensors as a file: `torch.save` of a plain tree, read with ``weights_only=True``."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import numpy as np

from rankwise.checkpoint.format.dtypes import dtype_named, name_of_dtype
from rankwise.checkpoint.format.pieces import Piece, mapping_like
from rankwise.errors import CheckpointError

# Marks a leaf of a type that torch does not save: {MARK: kind, ...}.
MARK = "__rankwise__"


def write_tensors(file: BinaryIO, tree: Any) -> None:
    """Write an encoded tree."""
    import torch

    torch.save(_marked(tree), file)


def read_tensors(file: BinaryIO, *, mapped: bool = False) -> Any:
    """Return the tree of a file, tensors on the CPU; runs no code from it.

    Args:
        file: a regular file.
        mapped: map the tensors instead of reading them, if the system can; for callers that copy what they need.

    Raises:
        CheckpointError: torch is not installed.
        Exception: the file is damaged, or another kind of file.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError("it holds tensors, which need torch: pip install 'rankwise[train]'") from error
    again = f"/proc/self/fd/{file.fileno()}"  # torch maps files by name only; this name is the open file
    if mapped and os.path.exists(again):  # noqa: PTH110
        return _unmarked(torch.load(again, map_location="cpu", weights_only=True, mmap=True))
    return _unmarked(torch.load(file, map_location="cpu", weights_only=True))


def _marked(tree: Any) -> Any:
    """Convert NumPy arrays and scalars, bytes and pieces to dicts of tensors, which `_unmarked` converts back."""
    if isinstance(tree, dict):
        return mapping_like(tree, [(key, _marked(value)) for key, value in tree.items()])
    if type(tree) in (list, tuple):
        return type(tree)(_marked(item) for item in tree)
    return _marked_leaf(tree)


def _marked_leaf(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, (np.ndarray, np.generic)):
        data = torch.from_numpy(np.frombuffer(leaf.tobytes(), dtype=np.uint8).copy())
        facts = {
            "dtype": name_of_dtype(leaf.dtype),
            "shape": list(np.shape(leaf)),
            "scalar": not isinstance(leaf, np.ndarray),
        }
        return {MARK: "ndarray", **facts, "data": data}
    if isinstance(leaf, Piece):
        return {MARK: "piece", "shape": list(leaf.shape), "start": list(leaf.start), "data": _marked_leaf(leaf.data)}
    if isinstance(leaf, bytes):
        data = torch.frombuffer(bytearray(leaf), dtype=torch.uint8) if leaf else torch.empty(0)
        return {MARK: "bytes", "data": data}
    return leaf


def _unmarked(tree: Any) -> Any:
    if isinstance(tree, dict):
        if MARK in tree:
            return _unmarked_leaf(tree)
        return mapping_like(tree, [(key, _unmarked(value)) for key, value in tree.items()])
    if type(tree) in (list, tuple):
        return type(tree)(_unmarked(item) for item in tree)
    return tree


def _unmarked_leaf(leaf: dict[str, Any]) -> Any:
    if leaf[MARK] == "ndarray":
        flat = np.frombuffer(leaf["data"].numpy().tobytes(), dtype=dtype_named(leaf["dtype"]))
        array = flat.reshape(leaf["shape"]).copy()
        return array[()] if leaf["scalar"] else array
    if leaf[MARK] == "piece":
        return Piece(tuple(leaf["shape"]), tuple(leaf["start"]), _unmarked(leaf["data"]))
    return leaf["data"].numpy().tobytes()
