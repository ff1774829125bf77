"""Opens the selected matrices and variables of all datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rankwise.data.contract import DType, IntArray
from rankwise.data.rows.datasets import AnyDataset
from rankwise.data.rows.fields.choice import FieldChoice, chosen_genes
from rankwise.data.rows.fields.kinds import make_field
from rankwise.data.rows.fields.row_field import RowField
from rankwise.data.rows.matrices import HeldMatrix, StoredMatrix, stack_matrices
from rankwise.data.rows.notices import say_once
from rankwise.errors import ConfigError

__all__ = ["Variables", "modality_of", "open_fields"]

_SHOWN = 5
_OF_MODALITY = re.compile(r"(mod/[^/]+)/(X|layers/.+)")


def modality_of(matrix: str) -> str | None:
    """Return the modality whose variables are the columns of a matrix: "" = the store's own, None = no variables."""
    if matrix == "X" or matrix.startswith("layers/"):
        return ""
    found = _OF_MODALITY.fullmatch(matrix)
    return None if found is None else found[1]


class Variables:
    """The variables of one modality in all datasets. Names are read on first use. See `modality_of`."""

    def __init__(self, datasets: Sequence[AnyDataset], modality: str) -> None:
        self._datasets = datasets
        self._modality = modality
        self._names: dict[int, tuple[str, ...]] = {}

    def names(self, number: int) -> tuple[str, ...]:
        """Return the names of the variables of a dataset."""
        if number not in self._names:
            self._names[number] = self._datasets[number].var_names(self._modality)
        return self._names[number]

    @property
    def first_difference(self) -> int | None:
        """Return the first dataset whose variables differ from those of the first one; None = all are equal."""
        return next((k for k in range(1, len(self._datasets)) if self.names(k) != self.names(0)), None)

    def check_same(self) -> None:
        """Refuse datasets with different variables: equal numbers of columns do not show that."""
        odd = self.first_difference
        if odd is None:
            return
        first, other = self.names(0), self.names(odd)
        pairs = enumerate(zip(first, other, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(first), len(other)))
        raise ConfigError(
            f"the datasets need the same variables in the same order; {self._datasets[odd].place} has {len(other)} and "
            f"{self._datasets[0].place} {len(first)}, differing from number {at} on: choose genes=[...] by names "
            "that all have, or write them to one collection, which gives them one order"
        )

    def columns(self, genes: Sequence[Any], num_columns: int) -> list[IntArray]:
        """Return the columns of selected variables: one list, or one for each dataset if they differ."""
        if all(not isinstance(gene, str) for gene in genes):
            self.check_same()
        elif self.first_difference is not None:
            self._check_held(genes)
            every = [self.names(k) for k in range(len(self._datasets))]
            return [chosen_genes(genes, len(names), partial(tuple, names)) for names in every]
        return [chosen_genes(genes, num_columns, lambda: self.names(0))]

    def _check_held(self, genes: Sequence[Any]) -> None:
        numbers = [gene for gene in genes if not isinstance(gene, str)]
        if numbers:
            raise ConfigError(
                f"the datasets have different variables: genes= needs names, got the number {numbers[0]!r}"
            )
        for number, dataset in enumerate(self._datasets):
            held = set(self.names(number))
            missing = [gene for gene in genes if gene not in held]
            if missing:
                raise ConfigError(
                    f"{dataset.place} lacks {len(missing)} of the {len(genes)} genes=, such as {missing[:_SHOWN]}: "
                    "remove them or this store (a collection of all stores joins their variables)"
                )


def open_fields(datasets: Sequence[AnyDataset], choice: FieldChoice) -> dict[str, RowField]:
    """Return the fields of the matrices by name.

    Raises:
        ConfigError: there is no such matrix, matrices do not fit together, or there are no such genes.
        DataError: a matrix is damaged.
    """
    found = {name: modality_of(name) for name in choice.matrices}
    tables = {modality: Variables(datasets, modality) for modality in set(found.values()) if modality is not None}
    genes = {name: _wanted(choice.genes, name, modality) for name, modality in found.items()}
    if choice.genes is not None and not choice.is_open and not any(wanted is not None for wanted in genes.values()):
        raise ConfigError(
            f"genes= chooses columns of X and layers (for a modality use {{'mod/protein/X': [...]}}); selected are "
            f"{', '.join(choice.matrices) or 'none'}"
        )
    fields = {}
    for name, modality in found.items():
        variables = None if modality is None else tables[modality]
        fields[name] = _field(datasets, name, choice, variables, genes[name])
    return fields


def _wanted(genes: Any, name: str, modality: str | None) -> list[Any] | None:
    """Return the requested variables of a matrix; None = all."""
    if genes is ...:
        return None
    if isinstance(genes, Mapping):
        given = genes.get(name)
        if given is not None and modality is None:
            raise ConfigError(f"genes= names {name!r}, whose columns are not variables: select them in a transform")
    else:
        given = genes if modality == "" else None
    if isinstance(given, str):
        raise ConfigError(f"genes= must be a list of names or numbers, got the text {given!r}: write genes=[{given!r}]")
    if given is not None and not isinstance(given, Iterable):
        raise ConfigError(f"genes= must be a list of names or numbers, got {given!r}: write genes=[{given!r}]")
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
    """Log that rows of several dtypes are returned in one dtype that holds them all."""
    held: dict[DType, list[str]] = {}
    for matrix in matrices:
        held.setdefault(matrix.dtype, []).append(matrix.place)
    if len(held) > 1:
        listing = " and ".join(
            f"{dtype} in {places[0]}{f' and {len(places) - 1} more' * (len(places) > 1)}"
            for dtype, places in held.items()
        )
        say_once(f"{name} is {listing}: its rows are read as {joined}; dtype= sets another dtype")
