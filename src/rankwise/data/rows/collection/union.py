"""Joins the tables of several stores: the variables and columns that they share."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import DType, IntArray, NDArray
from rankwise.data.rows.collection.buckets import Field
from rankwise.data.rows.collection.inputs.columns import Column, UnitedColumn, unite_columns
from rankwise.data.rows.collection.inputs.inputs import Input
from rankwise.data.rows.datasets.search import load_anndata, split_modality
from rankwise.data.store.boxes import conversion_loss
from rankwise.errors import ConfigError

_MOST = 60  # most letters of a name in a message


def join_variables(parts: Sequence[tuple[str, Any]], merge: str | None, join: str = "outer") -> Any:
    """Return the variables of all inputs, given as (label, table); `merge` is as in anndata.concat.

    Duplicate names are accepted if all inputs have the same names in the same order.

    Raises:
        ConfigError: tables differ and one has duplicate names, or no variable is in all of them.
    """
    first = parts[0][1]
    if all(var.index.equals(first.index) for _, var in parts) and (len(parts) == 1 or not first.index.is_unique):
        return first
    for label, var in parts:
        _check_unique(var, label)
    strange = [label for label, var in parts if len(var) and len(first) and not var.index.isin(first.index).any()]
    if strange and join == "outer":
        warnings.warn(
            f"{few_names(strange)} has no variable in common with {parts[0][0]}, and gets separate columns. If "
            "only the names differ, rename them with load_adata=",
            stacklevel=9,
        )
    anndata = load_anndata()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = [anndata.AnnData(var=var, shape=(0, len(var))) for _, var in parts]
        joined = anndata.concat(empty, join=join, merge=merge).var
    if not len(joined) and any(len(var) for _, var in parts):
        raise ConfigError(
            f"no variable is in all inputs, so join='inner' keeps none: {parts[0][0]} has "
            f"{few_names(list(first.index))}, {parts[-1][0]} {few_names(list(parts[-1][1].index))}"
        )
    return joined


def choose_variables(var: Any, names: Sequence[str]) -> Any:
    """Return some of the variables, in the order of the table; log names that no input has."""
    chosen = var[var.index.isin(names)]
    if not len(chosen):
        raise ConfigError(
            f"var_subset= has {len(names)} names, none of them in any input: it has {few_names(names)}, the inputs "
            f"{few_names(list(var.index))}"
        )
    lacking = sorted(set(names) - set(chosen.index))
    if lacking:
        warnings.warn(f"var_subset= has {len(lacking)} names that no input has: {few_names(lacking)}", stacklevel=7)
    return chosen


def gather_variables(mine: Any, var: Any, label: str) -> IntArray | None:
    """Return for each variable of an input its column, -1 = left out; None = unchanged.

    Raises:
        ConfigError: its names have duplicates, and are not those of the table.
    """
    if mine.index.astype(str).equals(var.index.astype(str)):
        return None
    _check_unique(mine, label)
    _check_unique(var, "the collection")
    found: IntArray = var.index.get_indexer(mine.index).astype(np.int64)
    return found


def _check_unique(var: Any, label: str) -> None:
    twice = list(dict.fromkeys(var.index[var.index.duplicated()]))
    if twice:
        raise ConfigError(
            f"{label} has duplicate variable names, such as {few_names(twice)}, so they cannot be joined "
            "with others: call var_names_make_unique() of each AnnData, for files in load_adata="
        )


def few_names(names: Sequence[Any], *, letters: int = _MOST) -> str:
    """Return the first of some names, each shortened to fit a message."""
    shown = [name if len(name) <= letters else f"{name[:letters]}..." for name in map(str, names[:5])]
    return ", ".join(shown) + (", ..." if len(names) > 5 else "")


SOURCE, SOURCE_ROW = "src_path", "src_row"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """Concatenated inputs."""

    inputs: tuple[Input, ...]
    index: UnitedColumn
    columns: tuple[UnitedColumn, ...]  # columns of the observations, with src_path and src_row
    vars: dict[str, Any]  # tables of the variables, by modality; the first one is ""
    matrices: tuple[Field, ...]
    # by modality, for each input the column of each of its variables, -1 = left out; None = unchanged
    gathers: dict[str, tuple[IntArray | None, ...]]

    @property
    def num_rows(self) -> int:
        """Rows of all inputs."""
        return sum(held.num_rows for held in self.inputs)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a row: matrices, names, columns."""
        return (*self.matrices, self.index.field, *(column.field for column in self.columns))

    @property
    def matrix_bytes(self) -> float:
        """Average decoded bytes of a row over all matrices."""
        return max(1.0, sum(field.row_bytes for field in self.matrices))

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row in memory."""
        return max(1.0, sum(field.row_bytes for field in self.fields))

    def gather_of(self, number: int, name: str) -> IntArray | None:
        """Return where the columns of a matrix of one input go; None = unchanged."""
        modality, inner = split_modality(name)
        return None if inner.startswith("obsm/") else self.gathers[modality][number]

    def shape(self, number: int, field: Field, part: Any) -> Any:
        """Convert rows of a matrix of one input to the columns and the dtype of the collection."""
        columns = self.gather_of(number, field.name)
        if field.kind == "csr":
            return _sparse(part, columns, field)
        if columns is None:
            return part.astype(field.dtype, copy=False)
        kept = columns >= 0
        fill: Any = np.nan if field.dtype.kind in "fc" else 0
        if field.dtype.kind not in "fc" and kept.sum() < field.row_shape[0]:
            raise ConfigError(
                f"the dense {field.name} of {field.dtype} has no value for variables that an input lacks: choose "
                "variables that all inputs have with var_subset, or make it float"
            )
        made = np.full((len(part), *field.row_shape), fill, dtype=field.dtype)
        made[:, columns[kept]] = part[:, kept]
        return made


def join_inputs(
    inputs: Sequence[Input],
    *,
    vars_: dict[str, Any] | None = None,
    var_subset: Iterable[str] | None = None,
    merge: str | None = None,
    join: str = "outer",
    sparse: Collection[str] = (),
) -> Joined:
    """Concatenate inputs.

    Args:
        inputs: at least one.
        vars_: tables of variables of an existing collection; variables that it lacks are left out.
        var_subset: names of the variables of the first modality to take.
        merge: how to combine columns of `var`, as in anndata.concat.
        join: "outer" takes the variables that any input has, "inner" those that all have.
        sparse: names of matrices to write as CSR even if all inputs have them dense.
    """
    import pandas as pd

    if vars_ is None:
        modalities = [name for name in inputs[0].vars if all(name in held.vars for held in inputs)]
        vars_ = {
            name: join_variables([(held.label, held.vars[name]) for held in inputs], merge, join) for name in modalities
        }
        if var_subset is not None:
            vars_[""] = choose_variables(vars_[""], list(var_subset))
    # plain text, which every version of anndata reads
    vars_ = {name: var.set_axis(var.index.astype(str).astype(object)) for name, var in vars_.items()}
    gathers = {
        name: tuple(
            gather_variables(held.vars[name], var, held.label) if name in held.vars else None for held in inputs
        )
        for name, var in vars_.items()
    }
    names = [name for name in inputs[0].tables if all(name in held.tables for held in inputs)]
    some = sorted({name for held in inputs for name in held.tables} - set(names))
    if some:
        warnings.warn(f"{', '.join(some)} are not in all inputs and are dropped", stacklevel=6)
    if not names:
        raise ConfigError("the inputs have no matrix in common: a collection needs at least one, such as X")
    num_vars = {name: len(var) for name, var in vars_.items()}
    labels = pd.Index(list(dict.fromkeys(held.label for held in inputs if SOURCE not in held.columns)), dtype=object)
    parts = [held.columns | _sources(held, labels) for held in inputs]
    columns = list(dict.fromkeys(name for part in parts for name in part))
    gaps = sorted(name for name in columns if any(name not in part for part in parts))
    if gaps:
        warnings.warn(f"obs columns {', '.join(map(repr, gaps))} are not in all inputs: missing there", stacklevel=6)
    return Joined(
        inputs=tuple(inputs),
        index=unite_columns([held.index for held in inputs]),
        columns=tuple(unite_columns([part.get(name) for part in parts]) for name in columns),
        vars=vars_,
        matrices=tuple(_field(name, inputs, num_vars, sparse=name in sparse) for name in names),
        gathers=gathers,
    )


def _sources(held: Input, labels: Any) -> dict[str, Column]:
    """Return the origin of rows; rows of a collection have it, the source row only if rankwise wrote them."""
    own = SOURCE in held.columns
    made = {}
    if not own:
        codes = np.broadcast_to(labels.get_loc(held.label), held.num_rows)
        made[SOURCE] = Column(name=SOURCE, kind="category", values=codes, categories=labels)
    if not own and SOURCE_ROW in held.columns:
        warnings.warn(
            f"obs column {SOURCE_ROW!r} of {held.label} is replaced by the numbers of its rows: rename it to keep it",
            stacklevel=8,
        )
    if not own or SOURCE_ROW not in held.columns:
        rows = np.broadcast_to(np.int64(-1), held.num_rows) if own else range(held.num_rows)
        made[SOURCE_ROW] = Column(name=SOURCE_ROW, kind="number", values=rows)
    return made


def _field(name: str, inputs: Sequence[Input], num_vars: dict[str, int], *, sparse: bool) -> Field:
    modality, inner = split_modality(name)
    free = inner.startswith("obsm/")
    tables = [held.tables[name] for held in inputs]
    sparse = sparse or any(table.sparse for table in tables)  # dense rows become CSR if any of them is sparse
    shapes = {table.shape[1:] if free else len(table.shape) for table in tables}
    if len(shapes) > 1:
        listing = ", ".join(
            f"{'sparse' if table.sparse else 'dense'} {list(table.shape)} in {held.label}"
            for table, held in zip(tables, inputs, strict=True)
        )
        raise ConfigError(f"{name} must have one shape in all inputs; it is {listing}")
    if sparse and not all(table.sparse for table in tables):
        dense = [held.label for table, held in zip(tables, inputs, strict=True) if not table.sparse]
        warnings.warn(
            f"{name} of {few_names(dense, letters=1000)} is dense and becomes CSR like the others", stacklevel=7
        )
    row_shape = tables[0].shape[1:] if free else (num_vars[modality], *tables[0].shape[2:])
    dtype: DType = np.result_type(*(table.dtype for table in tables))
    dtype = np.dtype(np.float32) if sparse and dtype == np.float16 else dtype  # SciPy has no CSR of float16
    first = {table.dtype: held.label for table, held in zip(reversed(tables), reversed(inputs), strict=True)}
    if len(first) > 1:  # say that they are written in one dtype that holds them, and what this may lose
        listing = " and ".join(f"{other} in {label}" for other, label in sorted(first.items(), key=str))
        loss = next(filter(None, (conversion_loss(other, dtype, scaled=False) for other in first)), "")
        warnings.warn(f"{name} is {listing}: written as {dtype}{loss and f', where {loss}'}", stacklevel=6)
    rows = max(1, sum(table.shape[0] for table in tables))
    row_bytes = sum((table.csr_row_bytes if sparse else table.row_bytes) * table.shape[0] for table in tables) / rows
    if not sparse:
        row_bytes = max(row_bytes, float(np.prod(row_shape) * dtype.itemsize))
    facts: dict[str, Any] = {"row_shape": row_shape, "dtype": dtype, "row_bytes": row_bytes}
    return Field(name=name, kind="csr" if sparse else "dense", **facts)


def _sparse(part: Any, columns: IntArray | None, field: Field) -> Any:
    import scipy.sparse as sp

    part = sp.csr_matrix(part, dtype=field.dtype)
    indices, data, indptr = part.indices.astype(np.int32), part.data, part.indptr
    if columns is not None:
        indices = columns[indices].astype(np.int32)
        kept = indices >= 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[indptr]
        data, indices = data[kept], indices[kept]
    made = sp.csr_matrix((data, indices, indptr), shape=(part.shape[0], field.row_shape[0]))
    made.sort_indices()
    return made


def group_ranks(joined: Joined, names: Sequence[str], block_rows: int) -> IntArray:
    """Return the group rank of each row of all inputs, int32[rows]: by the first column, then the next ones.

    Categories are ranked in their order, numbers and texts by value; missing values come last.
    """
    columns = [_column(joined, name) for name in names]
    ranks = np.zeros(joined.num_rows, dtype=np.int64)
    for column in columns:
        mine = _ranks(joined, column, block_rows)
        _, ranks = np.unique(ranks * (int(mine.max(initial=0)) + 1) + mine, return_inverse=True)
    return ranks.astype(np.int32)


def _column(joined: Joined, name: str) -> UnitedColumn:
    found = next((column for column in joined.columns if column.name == name), None)
    if found is None:
        held = ", ".join(repr(column.name) for column in joined.columns)
        raise ConfigError(f"groupby needs columns of obs; no input has {name!r}, they have {held}")
    lacking = [held.label for held, part in zip(joined.inputs, found.parts, strict=True) if part is None]
    if lacking:
        raise ConfigError(
            f"groupby needs columns that all inputs have; {name!r} is missing in {', '.join(lacking)}: add it there "
            "with load_adata, or choose another column"
        )
    return found


def _ranks(joined: Joined, column: UnitedColumn, block_rows: int) -> IntArray:
    blocks: list[Any] = [
        column.block(number, start, min(start + block_rows, held.num_rows))
        for number, held in enumerate(joined.inputs)
        for start in range(0, held.num_rows, block_rows)
    ]
    if column.kind == "category":
        codes = np.concatenate(blocks).astype(np.int64)
        return np.where(codes < 0, len(column.categories), codes)
    if column.kind == "text":  # each distinct text is kept once
        known: dict[str | None, int] = {}
        codes = np.concatenate([[known.setdefault(text, len(known)) for text in block] for block in blocks])
        order = sorted(known, key=lambda text: (text is None, text or ""))
        rank = np.empty(len(known), dtype=np.int64)
        rank[[known[text] for text in order]] = np.arange(len(known))
        return rank[codes.astype(np.int64)]
    values: NDArray = np.concatenate(blocks)
    if column.kind == "masked":
        _, ranks = np.unique(values["value"], return_inverse=True)
        return np.where(values["missing"], len(values), ranks)
    _, ranks = np.unique(values, return_inverse=True)  # NaN is last
    return ranks.astype(np.int64)
