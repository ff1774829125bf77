"""What to read of rows: checked user options, and the matrices, variables and columns that they select."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from rankwise.data.contract import DType, FieldSpec, IntArray, choose_fields
from rankwise.data.rows.datasets.on_disk import AnyDataset
from rankwise.data.rows.fields.row_field import RowField
from rankwise.data.rows.matrices.matrix import MemoryMatrix, StoredMatrix
from rankwise.data.rows.matrices.stacks import stack_matrices
from rankwise.data.rows.notices import warn_once
from rankwise.data.rows.obs import ObsColumn, name_list, read_column
from rankwise.data.rows.transforms import Log1pCounts
from rankwise.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldChoice:
    """The fields of a row; see `RowSource` for what each means.

    Raises:
        ConfigError: a list of names is a single text, or it has duplicates, or there are no names.
    """

    matrices: Sequence[str]
    obs: Sequence[str]
    dense: bool  # whether to return CSR rows as dense ones
    # names or numbers of variables, or ``{matrix: names}``; None = all; ... = not known yet: rows of stores with
    # different variables can then be counted, but not read
    genes: Any
    dtype: Any  # one for all matrices, or ``{matrix: dtype}``; None = as stored

    def __post_init__(self) -> None:
        for name in ("matrices", "obs"):
            given = getattr(self, name)
            if not isinstance(given, Iterable):
                raise ConfigError(f"{name}= must be a list of names, got {given!r}: omit it or write {name}=[...]")
            name_list(given, name)
        names = [*self.matrices, *self.obs]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a source of rows needs at least one field, each with its own name; got {names}")
        for option in ("genes", "dtype"):
            given = getattr(self, option)
            unknown = [name for name in given if name not in self.matrices] if isinstance(given, Mapping) else []
            if unknown:
                raise ConfigError(
                    f"{option}= names {', '.join(map(repr, unknown))}, which are not among the matrices "
                    f"{', '.join(self.matrices) or '(none)'}"
                )

        for dtype in self.dtype.values() if isinstance(self.dtype, Mapping) else [self.dtype]:
            try:
                np.dtype(dtype)
            except TypeError as error:
                raise ConfigError(f"dtype= must be NumPy dtypes such as 'float32', got {dtype!r}") from error

    @property
    def is_open(self) -> bool:
        """Whether the variables to read are still unknown."""
        return self.genes is ...

    def dtype_of(self, matrix: str) -> Any:
        """Return the requested dtype for the elements of a matrix; None = as stored."""
        return self.dtype.get(matrix) if isinstance(self.dtype, Mapping) else self.dtype


_SHOWN = 5
_NO_MASK = "genes= must be a list of names or numbers (for a mask use numpy.flatnonzero(mask))"


def chosen_genes(genes: Sequence[Any], num_vars: int, names: Callable[[], Sequence[str]]) -> IntArray:
    """Return columns, int64[n], in the requested order; `names` is called only if names were requested.

    Raises:
        ConfigError: the list is empty or has duplicates, or names a variable that does not exist.
    """
    wanted = list(genes)
    if any(isinstance(gene, str) for gene in wanted):
        wanted = _numbers(wanted, names())
    if any(isinstance(gene, bool) for gene in wanted):
        raise ConfigError(_NO_MASK)
    try:
        columns: IntArray = np.array([operator.index(gene) for gene in wanted], dtype=np.int64)
    except TypeError:
        raise ConfigError(_NO_MASK) from None
    outside = [column for column in columns.tolist() if not 0 <= column < num_vars]
    if outside or len(columns) == 0:
        raise ConfigError(f"genes= needs numbers from 0 to {num_vars - 1}; got {outside or 'none at all'}")
    twice = [column for column, count in Counter(columns.tolist()).items() if count > 1]
    if twice:
        raise ConfigError(f"genes= has {len(twice)} variables more than once, the first is number {twice[0]}")
    return columns


def _numbers(wanted: Sequence[Any], names: Sequence[str]) -> list[Any]:
    place = {name: number for number, name in enumerate(names)}
    unknown = [gene for gene in wanted if isinstance(gene, str) and gene not in place]
    if unknown:
        raise ConfigError(
            f"genes= has {len(unknown)} names that do not exist, such as {unknown[:_SHOWN]}; there are "
            f"{len(names)}, such as {list(names[:_SHOWN])}"
        )
    if len(place) < len(names):
        several = {name for name, count in Counter(names).items() if count > 1} & set(map(str, wanted))
        if several:
            raise ConfigError(f"several variables are named {min(several)!r}: pass numbers")
    return [place[gene] if isinstance(gene, str) else gene for gene in wanted]


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
            every = [self.names(k) for k in range(len(self._datasets))]
            return [chosen_genes(genes, len(names), partial(tuple, names)) for names in every]
        return [chosen_genes(genes, num_columns, lambda: self.names(0))]


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
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        said = f"the text {given!r}" if isinstance(given, str) else repr(given)
        raise ConfigError(f"genes= must be a list of names or numbers, got {said}: write genes=[{given!r}]")
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
    loose = (columns is not None and len(columns) > 1) or (choice.is_open and variables is not None)
    stack = stack_matrices(matrices, dtype=choice.dtype_of(name), side_by_side=loose)
    if choice.dtype_of(name) is None and not choice.is_open:
        _log_dtypes(name, matrices, stack.spec.dtype)
    return RowField(stack, dense=choice.dense, columns=columns)


def _log_dtypes(name: str, matrices: Sequence[StoredMatrix | MemoryMatrix], joined: DType) -> None:
    """Log that rows of several dtypes are returned in one dtype that holds them all."""
    held: dict[DType, list[str]] = {}
    for matrix in matrices:
        held.setdefault(matrix.dtype, []).append(matrix.place)
    if len(held) > 1:
        listing = " and ".join(
            f"{dtype} in {places[0]}{f' and {len(places) - 1} more' * (len(places) > 1)}"
            for dtype, places in held.items()
        )
        warn_once(f"{name} is {listing}: its rows are read as {joined}; dtype= sets another dtype")


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
        """Open the requested fields, and select all of them; `known` columns are not read again.

        Raises:
            ConfigError: there is no such matrix, matrices do not fit together, or there are no such genes or columns.
            DataError: a matrix or a column is damaged.
        """
        known = {} if known is None else known
        found = {name: modality_of(name) for name in choice.matrices}
        tables = {modality: Variables(datasets, modality) for modality in set(found.values()) if modality is not None}
        genes = {name: _wanted(choice.genes, name, modality) for name, modality in found.items()}
        if choice.genes is not None and not choice.is_open and not any(wanted is not None for wanted in genes.values()):
            raise ConfigError(
                f"genes= chooses columns of X and layers (for a modality use {{'mod/protein/X': [...]}}); selected are "
                f"{', '.join(choice.matrices) or 'none'}"
            )
        matrices = {}
        for name, modality in found.items():
            variables = None if modality is None else tables[modality]
            matrices[name] = _field(datasets, name, choice, variables, genes[name])
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
        """Return fields that apply a batch transform while they are read; see `RowSource.fused_with`."""
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
