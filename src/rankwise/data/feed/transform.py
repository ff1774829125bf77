"""Per-sample transforms on the reader thread: what comes out may differ from what went in, but not between samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, IntArray, NDArray
from rankwise.errors import ConfigError

__all__ = ["SampleTransform", "Transform"]

Transform: TypeAlias = Callable[[dict[str, NDArray], int], Mapping[str, Any]]


class SampleTransform:
    """Applies ``transform(fields, key)`` to one sample after the other and stacks what comes out.

    The first sample decides the fields, shapes and dtypes; every later one must come out alike.

    Args:
        transform: gets a dict of arrays (which it may change) and the sample's key; returns a dict of arrays, numbers.
    """

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._first = -1
        self.specs: dict[str, FieldSpec] | None = None

    def learn(self, fields: dict[str, NDArray], sample: int, key: int) -> None:
        """Find out what samples come out as from one of them, where this rank has none of its own yet."""
        self._one(fields, sample, key)

    def apply(self, raw: BatchBuffer, names: tuple[str, ...], ids: IntArray, keys: IntArray, into: BatchBuffer) -> None:
        """Transform every sample of `raw` into `into`.

        Args:
            raw: holds ``len(ids)`` samples of the fields `names`.
            names: the fields that go in.
            ids: int64[B], sample ids.
            keys: int64[B], their keys.
            into: receives the fields of `specs`.

        Raises:
            ConfigError: a sample comes out with other fields, shapes or dtypes than the first, or as objects.
        """
        for place, (sample, key) in enumerate(zip(ids.tolist(), keys.tolist(), strict=True)):
            made = self._one({name: raw.arrays(name)[0][place] for name in names}, sample, key)
            if place == 0:
                into.reserve(self.specs or {}, len(ids), {})
            for name, array in made.items():
                into.arrays(name)[0][place] = array
        if len(ids) == 0:
            into.reserve(self.specs or {}, 0, {})

    def _one(self, fields: dict[str, NDArray], sample: int, key: int) -> dict[str, NDArray]:
        try:
            made = self._transform(fields, key)
        except Exception as error:
            error.add_note(f"in transform= of sample {sample} (key {key})")
            raise
        arrays = _checked(made, sample)
        if self.specs is None:
            self._first = sample
            self.specs = {name: FieldSpec(shape=array.shape, dtype=array.dtype) for name, array in arrays.items()}
        self._same(arrays, sample)
        return arrays

    def _same(self, made: Mapping[str, NDArray], sample: int) -> None:
        specs = self.specs or {}
        if specs.keys() != made.keys():
            raise ConfigError(
                f"transform= made the fields {sorted(made)} of sample {sample}, but {sorted(specs)} of sample "
                f"{self._first}: return the same fields for every sample"
            )
        for name, array in made.items():
            if (array.shape, array.dtype) != (specs[name].shape, specs[name].dtype):
                raise ConfigError(
                    f"transform= made field {name!r} of sample {sample} {array.dtype}{list(array.shape)}, but "
                    f"{specs[name].dtype}{list(specs[name].shape)} of sample {self._first}: crop, pad or cast to one "
                    "shape and dtype"
                )


def _checked(made: Any, sample: int) -> dict[str, NDArray]:
    if not isinstance(made, Mapping):
        raise ConfigError(
            f"transform= returns a dict of fields, for sample {sample} it returned {type(made).__name__}: return the "
            "dict that it was given, changed"
        )
    arrays = {name: np.asarray(value) for name, value in made.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ConfigError(f"transform= made field {name!r} of sample {sample} an object: return numbers or arrays")
    return arrays
