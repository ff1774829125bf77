"""From datasets and what a user wants of them to the fields of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rankwise.data.contract import DType
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.fields.choice import FieldChoice
from rankwise.data.rows.fields.making import make_field
from rankwise.data.rows.fields.row_field import RowField
from rankwise.data.rows.fields.variables import Variables, modality_of
from rankwise.data.rows.matrices import HeldMatrix, StoredMatrix, stack_matrices
from rankwise.data.rows.saying import say_once
from rankwise.errors import ConfigError

__all__ = ["open_fields"]


def open_fields(datasets: Sequence[AnyDataset], choice: FieldChoice) -> dict[str, RowField]:
    """Return the fields of the matrices by name.

    Args:
        datasets: all have the matrices.
        choice: which, and how they come out.

    Raises:
        ConfigError: there is no such matrix, matrices do not fit together, or there are no such genes.
        DataError: a matrix is damaged.
    """
    found = {name: modality_of(name) for name in choice.matrices}
    tables = {modality: Variables(datasets, modality) for modality in set(found.values()) if modality is not None}
    genes = {name: _wanted(choice.genes, name, modality) for name, modality in found.items()}
    if choice.genes is not None and not choice.is_open and not any(wanted is not None for wanted in genes.values()):
        raise ConfigError(
            f"genes= chooses columns of X and layers (of a modality with {{'mod/protein/X': [...]}}); asked for are "
            f"{', '.join(choice.matrices) or 'none'}"
        )
    fields = {}
    for name, modality in found.items():
        variables = None if modality is None else tables[modality]
        fields[name] = _field(datasets, name, choice, variables, genes[name])
    return fields


def _wanted(genes: Any, name: str, modality: str | None) -> list[Any] | None:
    """The variables that are wanted of a matrix; None = all."""
    if genes is ...:
        return None
    if isinstance(genes, Mapping):
        given = genes.get(name)
        if given is not None and modality is None:
            raise ConfigError(f"genes= names {name!r}, whose columns are no variables: choose them in a transform")
    else:
        given = genes if modality == "" else None
    if isinstance(given, str):
        raise ConfigError(f"genes= is a list of names or numbers, got the text {given!r}: write genes=[{given!r}]")
    if given is not None and not isinstance(given, Iterable):
        raise ConfigError(f"genes= is a list of names or numbers, got {given!r}: write genes=[{given!r}]")
    return None if given is None else list(given)


def _field(
    datasets: Sequence[AnyDataset], name: str, choice: FieldChoice, variables: Variables | None, genes: list[Any] | None
) -> RowField:
    matrices = [dataset.matrix(name) for dataset in datasets]
    columns = None
    if variables is not None and genes is None:
        if not choice.is_open:
            variables.check_same()
    elif variables is not None and genes is not None:
        columns = variables.columns(genes, matrices[0].row_shape[0] if matrices[0].row_shape else 0)
    differ = columns is not None and len(columns) > 1
    loose = differ or (choice.is_open and variables is not None)
    stack = stack_matrices(matrices, dtype=choice.dtype_of(name), side_by_side=loose)
    if choice.dtype_of(name) is None and not choice.is_open:
        _say_dtypes(name, matrices, stack.spec.dtype)
    widths = [matrix.row_shape[0] for matrix in matrices] if differ else []
    return make_field(stack, dense=choice.dense, columns=columns, widths=widths)


def _say_dtypes(name: str, matrices: Sequence[StoredMatrix | HeldMatrix], joined: DType) -> None:
    """Say that rows of several dtypes come out in one that holds them all."""
    held: dict[DType, list[str]] = {}
    for matrix in matrices:
        held.setdefault(matrix.dtype, []).append(matrix.place)
    if len(held) > 1:
        listing = " and ".join(
            f"{dtype} in {places[0]}{f' and {len(places) - 1} more' * (len(places) > 1)}"
            for dtype, places in held.items()
        )
        say_once(f"{name} is {listing}: its rows come out as {joined}; dtype= chooses another one")
