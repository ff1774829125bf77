"""`RowFields`: the fields of a row, those that are open and those that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rankwise.data.contract import FieldSpec, choose_fields
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.fields.row_field import RowField
from rankwise.data.rows.fields.variables import FieldChoice, open_fields
from rankwise.data.rows.obs import ObsColumn, read_column
from rankwise.data.rows.transforms import Log1pCounts
from rankwise.errors import ConfigError

__all__ = ["RowFields"]

_CHOICES = ("matrices", "obs", "dense", "genes", "dtype", "rows")


@dataclass(frozen=True, kw_only=True, eq=False)
class RowFields:
    """The fields of the rows of datasets.

    Attributes:
        open_matrices: all open matrices by name; `matrices` are those to read.
        open_columns: all open obs columns by name; `columns` are those to read.
        names: the fields to read.
        fused: a transform of the dense rows of one field before they are handed over; see `change`.
    """

    datasets: tuple[AnyDataset, ...]
    choice: FieldChoice  # what the user requested
    open_matrices: Mapping[str, RowField]
    open_columns: Mapping[str, ObsColumn]
    names: tuple[str, ...]
    fused: Log1pCounts | None = None

    @classmethod
    def of(
        cls, datasets: tuple[AnyDataset, ...], choice: FieldChoice, *, known: Mapping[str, ObsColumn] | None = None
    ) -> RowFields:
        """Open the requested fields, and select all of them; `known` columns are not read again."""
        known = {} if known is None else known
        matrices = open_fields(datasets, choice)
        columns = {name: known.get(name) or read_column(datasets, name) for name in choice.obs}
        names = (*matrices, *columns)
        return cls(datasets=datasets, choice=choice, open_matrices=matrices, open_columns=columns, names=names)

    def spec(self, name: str) -> FieldSpec:
        """Return the spec of an open field."""
        return (self.open_matrices.get(name) or self.open_columns[name]).spec

    @cached_property
    def specs(self) -> dict[str, FieldSpec]:
        """Specs of the fields to read, matrices first."""
        return {name: self.spec(name) for name in (*self.matrices, *self.columns)}

    @cached_property
    def matrices(self) -> dict[str, RowField]:
        """Matrices to read."""
        if self.choice.is_open:
            raise ConfigError(
                "genes=... does not select variables, so these rows can be counted, split and ordered, but not read: "
                "use source.reading(genes=[...]), or pass genes=[...] to the loader"
            )
        return {name: field for name, field in self.open_matrices.items() if name in self.names}

    @cached_property
    def columns(self) -> dict[str, ObsColumn]:
        """Columns to read."""
        return {name: column for name, column in self.open_columns.items() if name in self.names}

    @cached_property
    def change(self) -> Log1pCounts | None:
        """The fused transform, if its fields are read."""
        fused = self.fused
        needed = set() if fused is None else {fused.field, fused.size or fused.field}
        return fused if needed <= set(self.names) else None

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """For each categorical column, the meaning of its codes."""
        found = {name: column.categories for name, column in self.open_columns.items()}
        return {name: table for name, table in found.items() if table is not None}

    def changed(self, **changes: Any) -> RowFields:
        """Return other fields of the same datasets: some attributes of `FieldChoice` change."""
        try:
            choice = replace(self.choice, **changes)
        except TypeError:
            raise ConfigError(f"a RowSource accepts {', '.join(_CHOICES)}; got {', '.join(changes)}") from None
        return self.of(self.datasets, choice, known=self.open_columns)

    def select(self, names: Sequence[str]) -> RowFields:
        """Return some of the fields to read."""
        return replace(self, names=choose_fields(self.names, names))

    def fused_with(self, batch_transform: Any) -> RowFields | None:
        """Return fields that apply a batch transform while they are read; None = not supported.

        Supported for `Log1pCounts` of dense rows; integers then become float32, as they do in the transform.
        """
        name = batch_transform.field if isinstance(batch_transform, Log1pCounts) else None
        matrices = self.open_matrices
        if name not in matrices or name not in self.names:
            return None
        if batch_transform.size is not None and batch_transform.size not in set(self.open_columns) & set(self.names):
            return None
        spec, made = matrices[name].spec, self
        if spec.ragged or len(spec.shape) != 1 or spec.dtype.kind not in "biuf":
            return None
        if spec.dtype.kind != "f":
            dtypes = {matrix: self.choice.dtype_of(matrix) for matrix in matrices}
            made = self.changed(dtype={**dtypes, name: np.float32}).select(self.names)
        return replace(made, fused=batch_transform)
