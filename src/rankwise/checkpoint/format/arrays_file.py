"""A part's state without tensors as a file: NumPy's ``.npz`` with the tree and its arrays; does not need torch."""

from __future__ import annotations

import json
import math
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from rankwise.checkpoint.format.dtypes import dtype_named, is_foreign, name_of_dtype
from rankwise.data.contract import NDArray

_TREE = "tree.json"
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"ordered": OrderedDict, "counter": Counter}


def write_arrays(file: BinaryIO, tree: Any) -> None:
    """Write an encoded tree without tensors; `file` need not be seekable.

    Equal trees give equal bytes.
    """
    writer = _Writer()
    body = json.dumps(writer.described(tree), allow_nan=False).encode()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_TREE), body)
        for number, array in enumerate(writer.arrays):
            with archive.open(zipfile.ZipInfo(f"{number}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read_arrays(file: BinaryIO) -> Any:
    """Return the tree of a file; runs no code from it.

    Raises:
        Exception: it is damaged, or another kind of file.
    """
    with zipfile.ZipFile(file) as archive:

        def load(number: int) -> NDArray:
            with archive.open(f"{number}.npy") as member:
                array: NDArray = np.lib.format.read_array(member, allow_pickle=False)
            return array

        return _Reader(load).made(json.loads(archive.read(_TREE)))


class _Writer:
    """JSON types stay as they are: None, booleans, integers, text, finite floats. Other values become dicts."""

    def __init__(self) -> None:
        self.arrays: list[NDArray] = []
        self._numbers: dict[int, int] = {}

    def described(self, tree: Any) -> Any:
        if tree is None or type(tree) in (bool, int, str) or (type(tree) is float and math.isfinite(tree)):
            return tree
        if isinstance(tree, Mapping):
            kind = next((name for name, made in _MAPPINGS.items() if isinstance(tree, made)), "dict")
            return {kind: [[self.described(key), self.described(value)] for key, value in tree.items()]}
        if type(tree) in (list, tuple):
            return {type(tree).__name__: [self.described(item) for item in tree]}
        return self._leaf(tree)

    def _leaf(self, leaf: Any) -> dict[str, Any]:
        if type(leaf) is float:
            return {"float": str(leaf)}
        if isinstance(leaf, bytes):
            return {"bytes": self._number(np.frombuffer(leaf, dtype=np.uint8))}
        if isinstance(leaf, np.generic):
            return {"scalar": self._leaf(np.asarray(leaf))}
        return {"array": self._number(leaf), "dtype": name_of_dtype(leaf.dtype)}

    def _number(self, array: NDArray) -> int:
        known = self._numbers.get(id(array))
        if known is None:
            known = self._numbers[id(array)] = len(self.arrays)
            # for dtypes of other packages NumPy's format keeps only the bytes
            self.arrays.append(array.view(f"V{array.dtype.itemsize}") if is_foreign(array.dtype) else array)
        return known


class _Reader:
    def __init__(self, load: Callable[[int], NDArray]) -> None:
        self._load = load
        self._loaded: dict[int, NDArray] = {}

    def made(self, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kind = next(iter(body))
        if kind == "dict" or kind in _MAPPINGS:
            return _MAPPINGS.get(kind, dict)({self.made(key): self.made(value) for key, value in body[kind]})
        if kind in ("list", "tuple"):
            listed = [self.made(item) for item in body[kind]]
            return listed if kind == "list" else tuple(listed)
        return self._leaf(kind, body)

    def _leaf(self, kind: str, body: dict[str, Any]) -> Any:
        if kind == "float":
            return float(body[kind])
        if kind == "bytes":
            return self._array(body[kind]).tobytes()
        if kind == "scalar":
            return self.made(body[kind])[()]
        array = self._array(body[kind])
        dtype = dtype_named(body["dtype"])
        return array.view(dtype) if is_foreign(dtype) else array

    def _array(self, number: int) -> NDArray:
        if number not in self._loaded:
            self._loaded[number] = self._load(number)
        return self._loaded[number]
