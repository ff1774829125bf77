"""The kinds of fields, and which one suits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankwise.data.contract import BoolArray, FieldSpec, IntArray, NDArray
from rankwise.data.rows.dense import OUTSIDE, Crew, spread_rows
from rankwise.data.rows.fields.row_field import RowField
from rankwise.data.rows.matrices import MatrixStack

__all__ = ["make_field"]


def make_field(
    stack: MatrixStack,
    *,
    dense: bool,
    columns: Sequence[IntArray] | None,
    ends: IntArray | None = None,
    widths: Sequence[int] = (),
) -> RowField:
    """Return the field of a stack.

    Args:
        stack: the matrices.
        dense: whether CSR rows come out dense.
        columns: int64, the columns that come out, dense: of all matrices alike, or of each; None = all.
        ends: int64, where the rows of each matrix end; for columns of each.
        widths: columns of each matrix; likewise.
    """
    if columns is not None and len(columns) > 1:
        assert ends is not None
        stores = _Stores(ends, tuple(widths))
        return _SpreadAnew(stack, columns, stores) if stack.spec.ragged else _TakenAnew(stack, columns, stores)
    chosen = None if columns is None else columns[0]
    if not stack.spec.ragged:
        return _Plain(stack) if chosen is None else _Taken(stack, chosen)
    return _Spread.of(stack, chosen) if dense or chosen is not None else _Sparse(stack)


@dataclass(frozen=True, slots=True, eq=False)
class _Plain:
    """Dense rows as they are stored."""

    stack: MatrixStack
    is_direct = True

    @property
    def spec(self) -> FieldSpec:
        return self.stack.spec

    def finish(
        self, _read: tuple[NDArray, ...], _out: tuple[NDArray, ...], _rows: IntArray, _crew: Crew
    ) -> BoolArray | None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Sparse:
    """CSR rows as they are stored."""

    stack: MatrixStack
    is_direct = True

    @property
    def spec(self) -> FieldSpec:
        return self.stack.spec

    def finish(
        self, _read: tuple[NDArray, ...], out: tuple[NDArray, ...], _rows: IntArray, _crew: Crew
    ) -> BoolArray | None:
        """Only look: a column that there is not would let who multiplies by the rows read beyond his memory."""
        _, indices, indptr = out
        num_cols = self.spec.shape[0]
        unsigned = indices.view(np.dtype(f"u{indices.itemsize}"))  # below 0 is then large: one pass sees both
        if len(indices) == 0 or unsigned.max() < num_cols:
            return None
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        outside: BoolArray = np.zeros(len(indptr) - 1, dtype=np.bool_)
        outside[rows[unsigned >= num_cols]] = True
        return outside


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """Chosen columns of dense rows; axes beyond the first stay."""

    stack: MatrixStack
    columns: IntArray
    is_direct = False

    @property
    def spec(self) -> FieldSpec:
        whole = self.stack.spec
        return replace(whole, shape=(len(self.columns), *whole.shape[1:]))

    def finish(
        self, read: tuple[NDArray, ...], out: tuple[NDArray, ...], _rows: IntArray, _crew: Crew
    ) -> BoolArray | None:
        np.take(read[0], self.columns, axis=1, out=out[0], mode="clip")  # without a mode it would take a copy first
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Spread:
    """CSR rows, dense, all columns or chosen ones."""

    stack: MatrixStack
    width: int
    places: npt.NDArray[np.int32] | None
    is_direct = False

    @classmethod
    def of(cls, stack: MatrixStack, columns: IntArray | None) -> _Spread:
        num_cols = stack.spec.shape[0]
        if columns is None:
            return cls(stack, num_cols, None)
        places = np.full(num_cols, -1, dtype=np.int32)
        places[columns] = np.arange(len(columns), dtype=np.int32)
        return cls(stack, len(columns), places)

    @property
    def spec(self) -> FieldSpec:
        return FieldSpec(shape=(self.width,), dtype=self.stack.spec.dtype)

    def finish(
        self, read: tuple[NDArray, ...], out: tuple[NDArray, ...], _rows: IntArray, crew: Crew
    ) -> BoolArray | None:
        data, indices, indptr = read
        num_cols = self.stack.spec.shape[0]
        states = spread_rows(data, indices, indptr, num_cols=num_cols, places=self.places, out=out[0], crew=crew)
        outside: BoolArray = (states & OUTSIDE).astype(np.bool_)
        return outside if outside.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class _Stores:
    """Where the rows of each matrix end, and how many columns it has."""

    ends: IntArray
    widths: tuple[int, ...]

    def of(self, rows: IntArray) -> IntArray:
        found: IntArray = np.searchsorted(self.ends, rows, side="right")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _TakenAnew:
    """Chosen columns of dense rows that lie in other places in each matrix."""

    stack: MatrixStack
    columns: Sequence[IntArray]
    stores: _Stores
    is_direct = False

    @property
    def spec(self) -> FieldSpec:
        whole = self.stack.spec
        return replace(whole, shape=(len(self.columns[0]), *whole.shape[1:]))

    def finish(
        self, read: tuple[NDArray, ...], out: tuple[NDArray, ...], rows: IntArray, _crew: Crew
    ) -> BoolArray | None:
        places = np.stack(self.columns)[self.stores.of(rows)]
        places = places.reshape(*places.shape, *[1] * (read[0].ndim - 2))
        out[0][...] = np.take_along_axis(read[0], places, axis=1)
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _SpreadAnew:
    """Chosen columns of CSR rows, dense, from matrices that each have columns of their own.

    The columns of all matrices are thought side by side: one table of places does for all rows.
    """

    stack: MatrixStack
    columns: Sequence[IntArray]
    stores: _Stores
    is_direct = False

    @property
    def spec(self) -> FieldSpec:
        return FieldSpec(shape=(len(self.columns[0]),), dtype=self.stack.spec.dtype)

    def finish(
        self, read: tuple[NDArray, ...], out: tuple[NDArray, ...], rows: IntArray, crew: Crew
    ) -> BoolArray | None:
        data, indices, indptr = read
        widths = np.array(self.stores.widths)
        first = np.concatenate([[0], np.cumsum(widths)])
        places = np.full(first[-1], -1, dtype=np.int32)
        for columns, offset in zip(self.columns, first.tolist(), strict=False):
            places[columns + offset] = np.arange(len(columns), dtype=np.int32)
        store, lengths = self.stores.of(rows), np.diff(indptr)
        outside = (indices < 0) | (indices >= np.repeat(widths[store], lengths))
        indices += np.repeat(first[store], lengths).astype(indices.dtype)
        indices[outside] = first[-1]
        states = spread_rows(data, indices, indptr, num_cols=int(first[-1]), places=places, out=out[0], crew=crew)
        found: BoolArray = (states & OUTSIDE).astype(np.bool_)
        return found if found.any() else None
