"""A part's state as a file: `torch.save` of plain trees, read with ``weights_only=True``: reading runs no code."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from rankwise.checkpoint.manifest import FileRecord
from rankwise.errors import CheckpointError

__all__ = ["decode", "encode", "read_payload", "write_payload"]

# Marks a leaf that is not torch's own: {_MARK: kind, ...}.
_MARK = "__rankwise__"


def write_payload(root: Path, name: str, tree: Any) -> FileRecord:
    """Write an encoded tree to ``root/name``, down to the disk.

    Raises:
        OSError: the disk is full, a limit is met, ...
    """
    import torch

    path = root / name
    with path.open("xb") as file:
        sink = _HashingFile(file)
        try:
            torch.save(tree, cast("BinaryIO", sink))
        except RuntimeError as error:
            # torch's writer hides what the file has raised
            raise (sink.error or error) from error
        if sink.error is not None:
            raise sink.error
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(path=name, bytes=sink.num_bytes, sha256=sink.digest.hexdigest())


def read_payload(path: Path) -> Any:
    """Return the decoded tree of a file, tensors on the CPU.

    Raises:
        CheckpointError: it cannot be read.
    """
    import torch

    try:
        return decode(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def encode(tree: Any, place: str) -> Any:
    """Return a tree of tensors, numbers, strings, lists, tuples and dicts alone; tensors moved to the CPU.

    NumPy arrays and scalars, and bytes, become marked dicts that `decode` turns back.

    Args:
        tree: what a part's `state_dict` returned.
        place: name of the part, for the message.

    Raises:
        CheckpointError: it holds something else; the message says where.
    """
    import torch

    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if isinstance(tree, torch.Tensor):
        return _encode_tensor(tree, place)
    if isinstance(tree, (np.ndarray, np.generic)):
        return _encode_array(tree, place)
    if isinstance(tree, (bytes, bytearray)):
        return {
            _MARK: "bytes",
            "data": torch.frombuffer(bytearray(tree), dtype=torch.uint8) if tree else torch.empty(0),
        }
    if isinstance(tree, Mapping):
        return _encode_mapping(tree, place)
    if type(tree) in (list, tuple):
        return type(tree)(encode(item, f"{place}[{index}]") for index, item in enumerate(tree))
    if isinstance(tree, (bool, int, float, str)):
        raise CheckpointError(
            f"{place} is a {type(tree).__module__}.{type(tree).__qualname__}; a checkpoint keeps plain numbers and "
            "strings: convert it in state_dict"
        )
    raise CheckpointError(
        f"{place} is a {type(tree).__module__}.{type(tree).__qualname__}; a checkpoint holds tensors, NumPy arrays, "
        "numbers, strings, bytes, None, and dicts, lists and tuples of these: convert it in state_dict"
    )


def decode(tree: Any) -> Any:
    """Undo `encode` (but for devices: tensors stay on the CPU)."""
    if isinstance(tree, dict):
        kind = tree.get(_MARK)
        if kind == "ndarray":
            flat = np.frombuffer(tree["data"].numpy().tobytes(), dtype=np.dtype(tree["dtype"]))
            array = flat.reshape(tree["shape"]).copy()
            return array[()] if tree["scalar"] else array
        if kind == "bytes":
            return tree["data"].numpy().tobytes()
        if isinstance(tree, OrderedDict):
            return _ordered(tree, [(key, decode(value)) for key, value in tree.items()])
        return {key: decode(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(decode(item) for item in tree)
    return tree


def _encode_tensor(tensor: Any, place: str) -> Any:
    import torch

    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        raise CheckpointError(
            f"{place} is a {type(plain).__name__}; this checkpoint format holds whole tensors: gather it in state_dict"
        )
    plain = plain.cpu()
    # torch saves the whole storage behind a view
    is_part = plain.layout == torch.strided and plain.untyped_storage().nbytes() > plain.numel() * plain.element_size()
    return plain.clone() if is_part else plain


def _encode_array(array: Any, place: str) -> dict[str, Any]:
    import torch

    values = np.ascontiguousarray(array)
    if values.dtype.hasobject or values.dtype.names is not None:
        raise CheckpointError(f"{place} is a NumPy array of dtype {values.dtype}; a checkpoint holds plain dtypes")
    data = torch.from_numpy(np.frombuffer(values.tobytes(), dtype=np.uint8).copy())
    shape = list(np.shape(array))
    return {
        _MARK: "ndarray",
        "dtype": values.dtype.str,
        "shape": shape,
        "scalar": not isinstance(array, np.ndarray),
        "data": data,
    }


def _encode_mapping(tree: Mapping[Any, Any], place: str) -> Any:
    if _MARK in tree:
        raise CheckpointError(f"{place} has the key {_MARK!r}, which the checkpoint format uses itself")
    items = []
    for key, value in tree.items():
        if type(key) not in (bool, int, float, str):
            raise CheckpointError(f"{place} has the key {key!r}; keys in a checkpoint are strings or plain numbers")
        items.append((key, encode(value, f"{place}[{key!r}]")))
    return _ordered(tree, items) if isinstance(tree, OrderedDict) else dict(items)


def _ordered(model: Any, items: list[tuple[Any, Any]]) -> Any:
    """Return an OrderedDict with the versions that a module's state carries along."""
    result: Any = OrderedDict(items)
    versions = getattr(model, "_metadata", None)
    if isinstance(versions, Mapping):
        result._metadata = OrderedDict((key, dict(value)) for key, value in versions.items())  # noqa: SLF001
    return result


class _HashingFile:
    """A file for `torch.save` that counts and hashes what goes through, and keeps the error that torch hides."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None
        self.flush: Callable[[], None] = file.flush

    def write(self, block: Any) -> int:
        """Write all of `block`, or nothing more after the first error."""
        size = len(memoryview(block).cast("B"))
        if self.error is None:
            try:
                self._file.write(block)
            except OSError as error:
                self.error = error
            else:
                self.digest.update(block)
                self.num_bytes += size
        # torch's writer aborts the process when its buffer raises while it is being destroyed: pretend, tell later
        return size
