"""A part's state with tensors as a file: `torch.save` of a plain tree, read with ``weights_only=True``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from rankwise.checkpoint.dtypes import dtype_named, name_of_dtype
from rankwise.errors import CheckpointError

__all__ = ["MARK", "ordered_like", "read_tensors", "write_tensors"]

# Marks a leaf that is not torch's own: {MARK: kind, ...}.
MARK = "__rankwise__"


def write_tensors(file: BinaryIO, tree: Any) -> None:
    """Write an encoded tree."""
    import torch

    torch.save(_marked(tree), file)


def read_tensors(file: BinaryIO) -> Any:
    """Return the tree of a file, tensors on the CPU; runs no code of it.

    Raises:
        CheckpointError: torch is not installed.
        Exception: the file is damaged, or something else.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError("it holds tensors, which need torch: pip install 'rankwise[train]'") from error
    return _unmarked(torch.load(file, map_location="cpu", weights_only=True))


def ordered_like(model: Any, items: list[tuple[Any, Any]]) -> Any:
    """Return an OrderedDict with the versions that a module's state carries along."""
    result: Any = OrderedDict(items)
    versions = getattr(model, "_metadata", None)
    if isinstance(versions, Mapping):
        result._metadata = OrderedDict((key, dict(value)) for key, value in versions.items())  # noqa: SLF001
    return result


def _marked(tree: Any) -> Any:
    """NumPy arrays and scalars, and bytes, as dicts of tensors, which `_unmarked` turns back."""
    import torch

    if isinstance(tree, (np.ndarray, np.generic)):
        data = torch.from_numpy(np.frombuffer(tree.tobytes(), dtype=np.uint8).copy())
        facts = {
            "dtype": name_of_dtype(tree.dtype),
            "shape": list(np.shape(tree)),
            "scalar": not isinstance(tree, np.ndarray),
        }
        return {MARK: "ndarray", **facts, "data": data}
    if isinstance(tree, bytes):
        data = torch.frombuffer(bytearray(tree), dtype=torch.uint8) if tree else torch.empty(0)
        return {MARK: "bytes", "data": data}
    if isinstance(tree, OrderedDict):
        return ordered_like(tree, [(key, _marked(value)) for key, value in tree.items()])
    if isinstance(tree, dict):
        return {key: _marked(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_marked(item) for item in tree)
    return tree


def _unmarked(tree: Any) -> Any:
    if isinstance(tree, dict):
        kind = tree.get(MARK)
        if kind == "ndarray":
            flat = np.frombuffer(tree["data"].numpy().tobytes(), dtype=dtype_named(tree["dtype"]))
            array = flat.reshape(tree["shape"]).copy()
            return array[()] if tree["scalar"] else array
        if kind == "bytes":
            return tree["data"].numpy().tobytes()
        if isinstance(tree, OrderedDict):
            return ordered_like(tree, [(key, _unmarked(value)) for key, value in tree.items()])
        return {key: _unmarked(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_unmarked(item) for item in tree)
    return tree
