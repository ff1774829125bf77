"""`ChosenFields`: which fields of stores are open, and which of those are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rankwise.data.contract import choose_fields
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.fields import FieldChoice, open_fields
from rankwise.data.rows.obs import ObsColumn, read_column
from rankwise.data.rows.reader import RowFields
from rankwise.data.rows.transforms import Log1pCounts
from rankwise.errors import ConfigError

__all__ = ["ChosenFields"]

_CHOICES = ("matrices", "obs", "dense", "genes", "dtype", "rows")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenFields:
    """The fields of the rows of datasets.

    Attributes:
        datasets: the datasets.
        choice: what of them was asked for.
        opened: all fields that are open.
        names: those of them that are read.
    """

    datasets: tuple[AnyDataset, ...]
    choice: FieldChoice
    opened: RowFields
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, datasets: tuple[AnyDataset, ...], choice: FieldChoice, *, known: Mapping[str, ObsColumn] | None = None
    ) -> ChosenFields:
        """Open the fields that are asked for, and read all of them.

        Args:
            datasets: all have the matrices and columns.
            choice: which, and how they come out.
            known: columns that were read before.

        Raises:
            ConfigError: there are no such fields, or those of the datasets do not fit together.
            DataError: something is damaged.
        """
        known = {} if known is None else known
        matrices = open_fields(datasets, choice)
        columns = {name: known.get(name) or read_column(datasets, name) for name in choice.obs}
        opened = RowFields(matrices=matrices, columns=columns)
        return cls(datasets=datasets, choice=choice, opened=opened, names=(*matrices, *columns))

    @property
    def read(self) -> RowFields:
        """Those that are read.

        Raises:
            ConfigError: it was never said which variables.
        """
        if self.choice.is_open:
            raise ConfigError(
                "genes=... leaves the variables open, so these rows can be counted, split and ordered, but not read: "
                "say source.reading(genes=[...]), or pass genes=[...] to the loader"
            )
        change, names = self.opened.change, set(self.names)
        return RowFields(
            matrices={name: field for name, field in self.opened.matrices.items() if name in self.names},
            columns={name: column for name, column in self.opened.columns.items() if name in self.names},
            change=change if change is not None and {change.field, change.size or change.field} <= names else None,
        )

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """For each categorical column what its codes stand for."""
        found = {name: column.categories for name, column in self.opened.columns.items()}
        return {name: table for name, table in found.items() if table is not None}

    def changed(self, **changes: Any) -> ChosenFields:
        """Return other fields of the same datasets.

        Args:
            **changes: some of the attributes of `FieldChoice`; the others stay.

        Raises:
            ConfigError: there are no such fields, or no such attributes.
        """
        try:
            choice = replace(self.choice, **changes)
        except TypeError:
            raise ConfigError(f"a RowSource reads {', '.join(_CHOICES)}; got {', '.join(changes)}") from None
        return self.of(self.datasets, choice, known=self.opened.columns)

    def select(self, names: Sequence[str]) -> ChosenFields:
        """Return some of the fields that are read.

        Raises:
            ConfigError: there is no such field.
        """
        return replace(self, names=choose_fields(self.names, names))

    def fused_with(self, batch_transform: Any) -> ChosenFields | None:
        """Return fields with a transform of whole batches done while they are read; None = that cannot be done.

        It can be done for `Log1pCounts` of dense rows; those of whole numbers then come as float32, as they do from it.
        """
        name = batch_transform.field if isinstance(batch_transform, Log1pCounts) else None
        matrices = self.opened.matrices
        if name not in matrices or name not in self.names:
            return None
        if batch_transform.size is not None and batch_transform.size not in set(self.opened.columns) & set(self.names):
            return None
        spec, made = matrices[name].spec, self
        if spec.ragged or len(spec.shape) != 1 or spec.dtype.kind not in "biuf":
            return None
        if spec.dtype.kind != "f":
            dtypes = {matrix: self.choice.dtype_of(matrix) for matrix in matrices}
            made = self.changed(dtype={**dtypes, name: np.float32}).select(self.names)
        return replace(made, opened=replace(made.opened, change=batch_transform))
