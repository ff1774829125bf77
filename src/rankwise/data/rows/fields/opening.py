"""From datasets and what a user wants of them to the fields of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.data.contract import IntArray
from rankwise.data.rows.datasets import Dataset
from rankwise.data.rows.fields.genes import chosen_genes
from rankwise.data.rows.fields.making import make_field
from rankwise.data.rows.fields.row_field import RowField
from rankwise.data.rows.matrices import stack_matrices
from rankwise.errors import ConfigError

__all__ = ["open_fields", "variable_names"]


def open_fields(
    datasets: Sequence[Dataset], matrices: Sequence[str], *, dense: bool, genes: Sequence[Any] | None, dtype: Any
) -> dict[str, RowField]:
    """Return the fields of the matrices by name.

    Args:
        datasets: all have the matrices.
        matrices: their names, such as "X" and "layers/counts".
        dense: whether CSR rows come out dense.
        genes: names or numbers of variables; of X and layers only these come out.
        dtype: dtype of the elements: one for all matrices, or one for some by their names; None = as stored.

    Raises:
        ConfigError: there is no such matrix, matrices do not fit together, or there are no such genes.
        DataError: a matrix is damaged.
    """
    columns = None
    if any(_has_variables(name) for name in matrices):
        _check_variables(datasets)
        if genes is not None:
            columns = chosen_genes(genes, datasets[0].num_vars, lambda: variable_names(datasets[0]))
    elif genes is not None:
        raise ConfigError(f"genes= chooses columns of X and layers; asked for are {', '.join(matrices) or 'none'}")
    return {name: _field(datasets, name, dense=dense, columns=columns, dtype=dtype) for name in matrices}


def variable_names(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of the variables of a dataset."""
    return tuple(map(str, dataset.var().index.tolist()))


def _field(datasets: Sequence[Dataset], name: str, *, dense: bool, columns: IntArray | None, dtype: Any) -> RowField:
    chosen = dtype.get(name) if isinstance(dtype, Mapping) else dtype
    stack = stack_matrices([dataset.matrix(name) for dataset in datasets], dtype=chosen)
    return make_field(stack, dense=dense, columns=columns if _has_variables(name) else None)


def _has_variables(name: str) -> bool:
    return name == "X" or name.startswith("layers/")


def _check_variables(datasets: Sequence[Dataset]) -> None:
    """Column i must be the same gene everywhere: that numbers of columns agree says nothing about it."""
    if len(datasets) == 1:
        return
    first = variable_names(datasets[0])
    for dataset in datasets[1:]:
        other = variable_names(dataset)
        if other != first:
            at = next(
                (i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other))
            )
            raise ConfigError(
                f"the datasets want the same variables in the same order; {dataset.place} has {len(other)} and "
                f"{datasets[0].place} {len(first)}, they differ from number {at} on: write them to one collection, "
                "which brings them into one order"
            )
