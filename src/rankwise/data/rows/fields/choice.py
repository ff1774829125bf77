"""`FieldChoice`: what a user wants of a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankwise.errors import ConfigError

__all__ = ["FieldChoice"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldChoice:
    """The fields of a row; see `RowSource` for what each means.

    Attributes:
        matrices: names of matrices.
        obs: names of columns.
        dense: whether CSR rows come out dense.
        genes: names or numbers of variables, or ``{matrix: names}``; None = all; ... = not known yet: rows of stores
            whose variables differ can then be counted, but not read.
        dtype: one for all matrices, or ``{matrix: dtype}``; None = as stored.

    Raises:
        ConfigError: a list of names is a text, a name stands twice, or there is none.
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
                raise ConfigError(f"{name}= is a list of names, got the text {given!r}: write {name}=[{given!r}]")
            if not isinstance(given, Iterable):
                raise ConfigError(f"{name}= is a list of names, got {given!r}: leave it out, or write {name}=[...]")
        names = [*self.matrices, *self.obs]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a source of rows wants at least one field, each under its own name; asked for {names}")
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
        """Whether it is still to be said which variables are read."""
        return self.genes is ...

    def dtype_of(self, matrix: str) -> Any:
        """Return the dtype that the elements of a matrix are wanted in; None = as stored."""
        return self.dtype.get(matrix) if isinstance(self.dtype, Mapping) else self.dtype


def _check_dtype(dtype: Any) -> None:
    try:
        np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"dtype= wants NumPy dtypes such as 'float32', got {dtype!r}") from error
