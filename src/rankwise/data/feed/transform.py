"""Per-sample transforms on the reader thread: what comes out may differ from what went in, but not between samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from rankwise.data.contract import BatchBuffer, FieldSpec, IntArray
from rankwise.data.feed.csr_rows import fill_rows, is_sparse, one_row, row_spec
from rankwise.data.feed.place import PlaceableBuffer
from rankwise.errors import ConfigError

__all__ = ["SampleTransform", "Transform"]

Transform: TypeAlias = Callable[[dict[str, Any], int], Mapping[str, Any]]

_DENSE: Mapping[str, int] = MappingProxyType({})


class SampleTransform:
    """Applies ``transform(fields, key)`` to one sample after the other and stacks what comes out.

    The first sample decides the fields, shapes and dtypes; every later one must come out alike.

    Args:
        transform: gets a dict of arrays (which it may change), ragged fields as SciPy CSR matrices of one row, and the
            sample's key; returns a dict of arrays, numbers, and sparse rows.
        num_cols: columns of the ragged fields that go in.
    """

    def __init__(self, transform: Transform, num_cols: Mapping[str, int] = _DENSE) -> None:
        self._transform = transform
        self._num_cols = num_cols
        self._first = -1
        self.specs: dict[str, FieldSpec] | None = None

    @property
    def num_cols(self) -> dict[str, int]:
        """Columns of the ragged fields that come out."""
        return {name: spec.shape[0] for name, spec in (self.specs or {}).items() if spec.ragged}

    def learn(self, raw: PlaceableBuffer, names: tuple[str, ...], sample: int, key: int) -> None:
        """Find out what samples come out as from the first of `raw`, where this rank has none of its own yet."""
        self._one(self._row(raw, names, 0), sample, key)

    def apply(
        self, raw: PlaceableBuffer, names: tuple[str, ...], ids: IntArray, keys: IntArray, into: BatchBuffer
    ) -> None:
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
        made = (
            self._one(self._row(raw, names, place), sample, key)
            for place, (sample, key) in enumerate(zip(ids.tolist(), keys.tolist(), strict=True))
        )
        first = next(made, None)  # decides `specs`
        rows = made if first is None else itertools.chain([first], made)
        specs = self.specs or {}
        if any(spec.ragged for spec in specs.values()):
            fill_rows([{name: value.copy() for name, value in row.items()} for row in rows], specs, into)
            return
        into.reserve(specs, len(ids), {})
        for place, row in enumerate(rows):
            for name, array in row.items():
                into.arrays(name)[0][place] = array

    def _row(self, raw: PlaceableBuffer, names: tuple[str, ...], place: int) -> dict[str, Any]:
        return {name: one_row(raw.arrays(name), place, self._num_cols.get(name)) for name in names}

    def _one(self, fields: dict[str, Any], sample: int, key: int) -> dict[str, Any]:
        try:
            made = self._transform(fields, key)
        except Exception as error:
            error.add_note(f"in transform= of sample {sample} (key {key})")
            raise
        arrays = _checked(made, sample)
        if self.specs is None:
            self._first = sample
            self.specs = {name: row_spec(value) for name, value in arrays.items()}
        self._same(arrays, sample)
        return arrays

    def _same(self, made: Mapping[str, Any], sample: int) -> None:
        specs = self.specs or {}
        if specs.keys() != made.keys():
            raise ConfigError(
                f"transform= made the fields {sorted(made)} of sample {sample}, but {sorted(specs)} of sample "
                f"{self._first}: return the same fields for every sample"
            )
        for name, value in made.items():
            spec = row_spec(value)
            if spec != specs[name]:
                raise ConfigError(
                    f"transform= made field {name!r} of sample {sample} {_said(spec)}, but {_said(specs[name])} of "
                    f"sample {self._first}: crop, pad or cast to one shape and dtype"
                )


def _said(spec: FieldSpec) -> str:
    return f"{'sparse ' if spec.ragged else ''}{spec.dtype}{list(spec.shape)}"


def _checked(made: Any, sample: int) -> dict[str, Any]:
    if not isinstance(made, Mapping):
        raise ConfigError(
            f"transform= returns a dict of fields, for sample {sample} it returned {type(made).__name__}: return the "
            "dict that it was given, changed"
        )
    fields = {name: value.tocsr() if is_sparse(value) else np.asarray(value) for name, value in made.items()}
    for name, value in fields.items():
        if value.dtype.hasobject:
            raise ConfigError(f"transform= made field {name!r} of sample {sample} an object: return numbers or arrays")
        if is_sparse(value) and (value.ndim != 2 or value.shape[0] != 1):
            raise ConfigError(
                f"transform= made field {name!r} of sample {sample} a sparse matrix {list(value.shape)}: return one "
                "row, [1, columns], or an array (value.toarray())"
            )
    return fields
