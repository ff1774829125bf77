"""Names of NumPy's dtypes, and of those from other packages, for example bfloat16."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import DType
from rankwise.errors import CheckpointError


def is_foreign(dtype: DType) -> bool:
    """Whether the dtype is unknown to NumPy alone."""
    return bool(np.dtype(dtype.str) != dtype)


def name_of_dtype(dtype: DType) -> str:
    """Return the name by which `dtype_named` finds a dtype; it includes the byte order."""
    return dtype.name if is_foreign(dtype) else dtype.str


def dtype_named(name: str) -> DType:
    """Return the dtype with a name.

    Raises:
        CheckpointError: it needs a package that is not installed, or does not exist.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        found: DType = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"it holds {name}, which needs the package ml_dtypes (installed with JAX)") from error
    return found
