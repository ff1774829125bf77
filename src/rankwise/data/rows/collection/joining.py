"""`Joined`: inputs one over the other, with one table of observations and one set of variables."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.collection.inputs import Input
from rankwise.data.rows.datasets import load_anndata
from rankwise.errors import ConfigError

__all__ = ["Field", "Joined", "join_inputs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """One matrix over all inputs.

    Attributes:
        name: "X", "layers/counts", ...
        sparse: whether it is CSR.
        row_shape: shape of a row.
        dtype: dtype that holds the elements of all inputs.
        row_bytes: decoded bytes of a row, on average.
    """

    name: str
    sparse: bool
    row_shape: tuple[int, ...]
    dtype: DType
    row_bytes: float

    @property
    def by_var(self) -> bool:
        """Whether its columns are the variables."""
        return not self.name.startswith("obsm/")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """Inputs one over the other.

    Attributes:
        inputs: the inputs.
        obs: table of all observations, with src_path and src_row.
        var: table of the variables.
        fields: the matrices.
        columns: for each input the column of each of its variables, -1 = left out; None = as they are.
    """

    inputs: tuple[Input, ...]
    obs: Any
    var: Any
    fields: tuple[Field, ...]
    columns: tuple[IntArray | None, ...]

    @property
    def row_bytes(self) -> float:
        """Decoded bytes of a row of all matrices, on average."""
        return max(1.0, sum(field.row_bytes for field in self.fields))

    def block(self, number: int, field: Field, start: int, stop: int) -> Any:
        """Return rows of one input as they go into the collection: a CSR matrix or an array."""
        part = self.inputs[number].tables[field.name].block(start, stop)
        columns = self.columns[number] if field.by_var else None
        if field.sparse:
            return _sparse(part, columns, field)
        return part.astype(field.dtype, copy=False) if columns is None else _dense(part, columns, field)


def join_inputs(
    inputs: Sequence[Input],
    *,
    var: Any = None,
    var_subset: Iterable[str] | None = None,
    merge: str | None = None,
) -> Joined:
    """Put inputs one over the other.

    Args:
        inputs: at least one.
        var: table of variables of a collection that is there already; variables that it has not are left out.
        var_subset: names of the variables to take.
        merge: how columns of `var` come together, as in anndata.concat.

    Raises:
        ConfigError: their matrices do not fit together.
    """
    if var is None:
        var = _join_var(inputs, merge)
        var = var if var_subset is None else var[var.index.isin(list(var_subset))]
    var = var.set_axis(var.index.astype(str).astype(object))  # plain text, which every anndata reads
    columns = tuple(_columns(held, var) for held in inputs)
    return Joined(
        inputs=tuple(inputs), obs=_join_obs(inputs), var=var, fields=_fields(inputs, len(var)), columns=columns
    )


def _join_var(inputs: Sequence[Input], merge: str | None) -> Any:
    if len(inputs) == 1:
        return inputs[0].var
    anndata = load_anndata()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [anndata.AnnData(var=held.var, shape=(0, len(held.var))) for held in inputs]
        return anndata.concat(parts, join="outer", merge=merge).var


def _join_obs(inputs: Sequence[Input]) -> Any:
    import pandas as pd

    anndata = load_anndata()
    labels = list(dict.fromkeys(held.label for held in inputs if "src_path" not in held.obs))
    frames = []
    for held in inputs:
        frame = held.obs.copy()
        if "src_path" not in frame:
            frame["src_path"] = pd.Categorical([held.label] * len(frame), categories=labels)
            frame["src_row"] = np.arange(len(frame), dtype=np.int64)
        elif "src_row" not in frame:  # of a collection that somebody else wrote
            frame["src_row"] = np.full(len(frame), -1, dtype=np.int64)
        frames.append(frame)
    _warn_of_columns(frames)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = anndata.settings.override(remove_unused_categories=False)
        with settings:
            obs = anndata.concat([anndata.AnnData(obs=frame) for frame in frames], join="outer").obs.copy()
        obs.index = anndata.utils.make_index_unique(obs.index.astype(str))
    return obs


def _warn_of_columns(frames: Sequence[Any]) -> None:
    everywhere = set.intersection(*(set(frame) for frame in frames))
    some = sorted(set.union(*(set(frame) for frame in frames)) - everywhere)
    if some:
        warnings.warn(f"obs columns {', '.join(map(repr, some))} are not in all inputs: missing there", stacklevel=6)


def _columns(held: Input, var: Any) -> IntArray | None:
    if not held.var.index.is_unique:
        raise ConfigError(f"the variables of {held.label} have names that come twice: adata.var_names_make_unique()")
    if held.var.index.equals(var.index):
        return None
    found: IntArray = var.index.get_indexer(held.var.index).astype(np.int64)
    return found


def _fields(inputs: Sequence[Input], num_vars: int) -> tuple[Field, ...]:
    names = [name for name in inputs[0].tables if all(name in held.tables for held in inputs)]
    some = sorted({name for held in inputs for name in held.tables} - set(names))
    if some:
        warnings.warn(f"{', '.join(some)} are not in all inputs and are left out", stacklevel=6)
    if not names:
        raise ConfigError("the inputs have no matrix in common: a collection wants at least one, such as X")
    return tuple(_field(name, inputs, num_vars) for name in names)


def _field(name: str, inputs: Sequence[Input], num_vars: int) -> Field:
    tables = [held.tables[name] for held in inputs]
    kinds = {(table.sparse, table.shape[1:] if name.startswith("obsm/") else len(table.shape)) for table in tables}
    if len(kinds) > 1:
        listing = ", ".join(
            f"{'sparse' if table.sparse else 'dense'} {list(table.shape)} in {held.label}"
            for table, held in zip(tables, inputs, strict=True)
        )
        raise ConfigError(f"{name} wants to be of one kind and shape in all inputs; it is {listing}")
    row_shape = tables[0].shape[1:] if name.startswith("obsm/") else (num_vars, *tables[0].shape[2:])
    dtype: DType = np.result_type(*(table.dtype for table in tables))
    rows = max(1, sum(table.shape[0] for table in tables))
    row_bytes = sum(table.row_bytes * table.shape[0] for table in tables) / rows
    if not tables[0].sparse:
        row_bytes = max(row_bytes, float(np.prod(row_shape) * dtype.itemsize))
    return Field(name=name, sparse=tables[0].sparse, row_shape=row_shape, dtype=dtype, row_bytes=row_bytes)


def _sparse(part: Any, columns: IntArray | None, field: Field) -> Any:
    import scipy.sparse as sp

    indices, data, indptr = part.indices.astype(np.int32), part.data.astype(field.dtype, copy=False), part.indptr
    if columns is not None:
        indices = columns[indices].astype(np.int32)
        kept = indices >= 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[indptr]
        data, indices = data[kept], indices[kept]
    made = sp.csr_matrix((data, indices, indptr), shape=(part.shape[0], field.row_shape[0]))
    made.sort_indices()
    return made


def _dense(part: NDArray, columns: IntArray, field: Field) -> NDArray:
    kept = columns >= 0
    fill: Any = np.nan if field.dtype.kind in "fc" else 0
    if field.dtype.kind not in "fc" and kept.sum() < field.row_shape[0]:
        raise ConfigError(
            f"the dense {field.name} of {field.dtype} has no value for variables that an input lacks: choose those "
            "that all have with var_subset, or make it float"
        )
    made = np.full((len(part), *field.row_shape), fill, dtype=field.dtype)
    made[:, columns[kept]] = part[:, kept]
    return made
