"""Checked user options for what to read of rows: matrices, columns of obs, genes."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.errors import ConfigError

__all__ = ["FieldChoice", "chosen_genes"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldChoice:
    """The fields of a row; see `RowSource` for what each means.

    Attributes:
        matrices: names of matrices.
        obs: names of columns.
        dense: whether to return CSR rows as dense ones.
        genes: names or numbers of variables, or ``{matrix: names}``; None = all; ... = not known yet: rows of stores
            with different variables can then be counted, but not read.
        dtype: one for all matrices, or ``{matrix: dtype}``; None = as stored.

    Raises:
        ConfigError: a list of names is a single text, or it has duplicates, or there are no names.
    """

    matrices: Sequence[str]
    obs: Sequence[str]
    dense: bool
    genes: Any
    dtype: Any

    def __post_init__(self) -> None:
        for name in ("matrices", "obs"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"{name}= must be a list of names, got the text {given!r}: write {name}=[{given!r}]")
            if not isinstance(given, Iterable):
                raise ConfigError(f"{name}= must be a list of names, got {given!r}: omit it or write {name}=[...]")
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
            _check_dtype(dtype)

    @property
    def is_open(self) -> bool:
        """Whether the variables to read are still unknown."""
        return self.genes is ...

    def dtype_of(self, matrix: str) -> Any:
        """Return the requested dtype for the elements of a matrix; None = as stored."""
        return self.dtype.get(matrix) if isinstance(self.dtype, Mapping) else self.dtype


def _check_dtype(dtype: Any) -> None:
    try:
        np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype= must be NumPy dtypes such as 'float32', got {dtype!r}") from error


_SHOWN = 5
_NO_MASK = "genes= must be a list of names or numbers (for a mask use numpy.flatnonzero(mask))"


def chosen_genes(genes: Sequence[Any], num_vars: int, names: Callable[[], Sequence[str]]) -> IntArray:
    """Return columns, int64[n], in the requested order; `names` is called only if names were requested.

    Raises:
        ConfigError: the list is empty or has duplicates, or names a variable that does not exist.
    """
    if isinstance(genes, str):
        raise ConfigError(f"genes= must be a list of names or numbers, got the text {genes!r}: write genes=[{genes!r}]")
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
