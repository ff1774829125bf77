"""A part's state as a file: a torch file if it has tensors, else an array file; reading it runs no code."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from rankwise.checkpoint.commit import Disk
from rankwise.checkpoint.format.arrays_file import read_arrays, write_arrays
from rankwise.checkpoint.format.manifest import FileRecord, open_inside
from rankwise.checkpoint.format.pieces import Piece, mapping_like
from rankwise.checkpoint.format.tensors_file import MARK, read_tensors, write_tensors
from rankwise.checkpoint.snapshot import HostBuffers
from rankwise.data.contract import NDArray
from rankwise.errors import CheckpointError


def write_payload(storage: Disk, made: Any, name: str, tree: Any) -> FileRecord:
    """Write an encoded tree durably: with tensors as ``name.pt`` by torch, else as ``name.npz``.

    Args:
        storage: the storage.
        made: the checkpoint being written there.
        name: name inside it.
        tree: from `encode`.

    Raises:
        OSError: the disk is full, a limit is reached, ...
    """
    has_tensors = _has_tensors(tree)
    path = f"{name}.pt" if has_tensors else f"{name}.npz"
    with storage.create(made, path) as file:
        sink = _HashingFile(file)
        try:
            if has_tensors:
                write_tensors(cast("BinaryIO", sink), tree)
            else:
                write_arrays(cast("BinaryIO", sink), tree)
        except RuntimeError as error:
            # torch's writer hides the error of the file
            raise (sink.error or error) from error
        if sink.error is not None:
            raise sink.error
    return FileRecord(path=path, bytes=sink.num_bytes, sha256=sink.digest.hexdigest())


def read_payload(folder: Path, name: str, *, mapped: bool = False) -> Any:
    """Return the tree of a checkpoint file, tensors on the CPU; `mapped` as in `read_tensors`.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        with open_inside(folder, name) as file:
            return read_arrays(file) if name.endswith(".npz") else read_tensors(file, mapped=mapped)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / name} cannot be read: {error}") from error
    except Exception as error:
        raise CheckpointError(f"{folder / name} cannot be read: {type(error).__name__}: {error}") from error


def encode(tree: Any, place: str, host: HostBuffers | None = None) -> Any:
    """Return a tree of only tensors, arrays, numbers, strings, bytes, lists, tuples and dicts; tensors on the CPU.

    JAX arrays become NumPy arrays.

    Args:
        tree: from a part's `state_dict`.
        place: name of the part, for the message.
        host: copies data that may change; None: data on the CPU are used directly.

    Raises:
        CheckpointError: it has a value of another type; the message says where.
    """
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if isinstance(tree, Mapping):
        return _encode_mapping(tree, place, host)
    if isinstance(tree, Piece):
        return Piece(tree.shape, tree.start, encode(tree.data, place, host))
    if type(tree) in (list, tuple):
        return type(tree)(encode(item, f"{place}[{index}]", host) for index, item in enumerate(tree))
    return _encode_leaf(tree, place, host)


def _encode_leaf(leaf: Any, place: str, host: HostBuffers | None) -> Any:
    if _is_of("torch", "Tensor", leaf):
        return _encode_tensor(leaf, place, host)
    if _is_of("jax", "Array", leaf):
        return _encode_array(_host_array(leaf, place), place, host)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _encode_array(leaf, place, host)
    if isinstance(leaf, (bytes, bytearray)):
        return bytes(leaf)
    what = f"{place} is a {type(leaf).__module__}.{type(leaf).__qualname__}"
    if isinstance(leaf, (bool, int, float, str)):
        raise CheckpointError(f"{what}; a checkpoint holds plain numbers and strings: convert it in state_dict")
    raise CheckpointError(
        f"{what}; a checkpoint holds tensors, arrays of NumPy and JAX, numbers, strings, bytes, None, and dicts, lists "
        "and tuples of these: convert it in state_dict (save a JAX tree as JaxTree(tree))"
    )


def _is_of(package: str, name: str, value: Any) -> bool:
    """Whether a value has a class of a loaded package: values of a package that is not loaded cannot exist."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, getattr(module, name))


def _has_tensors(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        # the version metadata of a module's state need torch, too
        return hasattr(tree, "_metadata") or any(_has_tensors(value) for value in tree.values())
    if type(tree) in (list, tuple):
        return any(_has_tensors(item) for item in tree)
    if isinstance(tree, Piece):
        return True
    return _is_of("torch", "Tensor", tree)


def _encode_tensor(tensor: Any, place: str, host: HostBuffers | None) -> Any:
    import torch

    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        raise CheckpointError(
            f"{place} is a {type(plain).__name__}, of which each rank may hold a part: pass ModelState(model) and "
            "OptimizerState(optimizer, model) instead of Replicated, or gather it in state_dict"
        )
    strided = plain.layout == torch.strided
    if host is not None:
        return host.take(plain, place) if strided else plain.cpu().clone()
    plain = plain.cpu()
    # torch saves the whole storage of a view
    is_part = strided and plain.untyped_storage().nbytes() > plain.numel() * plain.element_size()
    return plain.clone() if is_part else plain


def _host_array(array: Any, place: str) -> NDArray:
    import jax

    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise CheckpointError(f"{place} is a JAX key: save jax.random.key_data(key), or the tree as JaxTree(tree)")
    if array.is_fully_addressable:
        return np.asarray(array)
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    raise CheckpointError(
        f"{place} is a JAX array of which each process holds a part; this checkpoint format holds whole arrays: "
        "gather it (jax.experimental.multihost_utils.process_allgather), or save it with orbax"
    )


def _encode_array(array: Any, place: str, host: HostBuffers | None) -> Any:
    if array.dtype.hasobject or array.dtype.names is not None:
        raise CheckpointError(f"{place} is a NumPy array of dtype {array.dtype}; a checkpoint holds plain dtypes only")
    if not isinstance(array, np.ndarray):
        return array
    return np.asarray(array, order="C") if host is None else np.array(array, order="C")


def _encode_mapping(tree: Mapping[Any, Any], place: str, host: HostBuffers | None) -> Any:
    if MARK in tree:
        raise CheckpointError(f"{place} has the key {MARK!r}, which the checkpoint format reserves")
    items = []
    for key, value in tree.items():
        if type(key) not in (bool, int, float, str):
            raise CheckpointError(f"{place} has the key {key!r}; keys in a checkpoint must be strings or plain numbers")
        items.append((key, encode(value, f"{place}[{key!r}]", host)))
    return mapping_like(tree, items)


class _HashingFile:
    """A file for `torch.save` that counts and hashes the bytes, and stores the error that torch hides."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.num_bytes = 0
        self.error: OSError | None = None
        self.flush: Callable[[], None] = file.flush

    def write(self, block: Any) -> int:
        """Write all of `block`, or nothing after the first error."""
        size = len(memoryview(block).cast("B"))
        if self.error is None:
            try:
                self._file.write(block)
            except OSError as error:
                self.error = error
            else:
                self.digest.update(block)
                self.num_bytes += size
        # torch's writer aborts the process if its buffer raises during destruction: pretend success, raise later
        return size
