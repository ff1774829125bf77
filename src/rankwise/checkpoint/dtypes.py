"""Names of NumPy's dtypes, and of those that other packages bring along, such as bfloat16."""

from __future__ import annotations

import numpy as np

from rankwise.data.contract import DType
from rankwise.errors import CheckpointError

__all__ = ["dtype_named", "is_foreign", "name_of_dtype"]


def is_foreign(dtype: DType) -> bool:
    """Whether NumPy alone cannot name the dtype."""
    return bool(np.dtype(dtype.str) != dtype)


def name_of_dtype(dtype: DType) -> str:
    """Return the name by which `dtype_named` finds a dtype; the order of its bytes is in it."""
    return dtype.name if is_foreign(dtype) else dtype.str


def dtype_named(name: str) -> DType:
    """Return the dtype of a name.

    Raises:
        CheckpointError: it needs a package that is not installed, or there is none.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        found: DType = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"it holds {name}, which needs the package ml_dtypes (JAX brings it)") from error
    return found
