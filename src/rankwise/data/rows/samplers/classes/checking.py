"""What is asked of classes and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankwise.data.contract import FloatArray
from rankwise.errors import ConfigError

__all__ = ["check_classes", "check_runs", "check_weights"]


def check_classes(classes: Any) -> Any:
    """Return the codes of a `pandas.Categorical`.

    Raises:
        TypeError: it is none.
        ConfigError: a row has no class.
    """
    import pandas as pd

    if not isinstance(classes, pd.Categorical):
        raise TypeError(
            f"classes must be a pandas.Categorical, such as obs['cell_type'].values or pd.Categorical(values); got "
            f"{type(classes).__name__}"
        )
    missing = int((classes.codes < 0).sum())
    if missing:
        raise ConfigError(f"classes contains {missing} NA values: give these rows a class, or leave them out")
    return classes.codes


def check_weights(class_weights: Any, classes: Any) -> FloatArray:
    """Return float64[classes], 1 for each where none are given.

    Raises:
        TypeError: they are a pandas.Series, whose order may be another.
        ConfigError: their number is another, one is no number, or none is positive.
    """
    import pandas as pd

    count = len(classes.categories)
    if class_weights is None:
        return np.ones(count)
    if isinstance(class_weights, pd.Series):
        raise TypeError(
            "class_weights must be an array in the order of classes.categories: pass "
            "class_weights.reindex(classes.categories).to_numpy() instead of a Series"
        )
    weights: FloatArray = np.array(class_weights, dtype=np.float64)
    if weights.shape != (count,):
        raise ConfigError(
            f"class_weights must have one weight per class in classes.categories, {count}; got {list(weights.shape)}"
        )
    if not np.isfinite(weights).all() or not (weights > 0).any():
        raise ConfigError(f"class_weights must be finite, and at least one positive; got {weights.tolist()}")
    return weights


def check_runs(codes: Any, weights: FloatArray, bounds: tuple[int, int], *, chunk_size: int, names: Any) -> None:
    """Refuse classes that lie in runs shorter than a chunk: each would cost a read of its own.

    Runs that the range cuts count whole: it is the store that decides.

    Raises:
        ConfigError: there are such.
    """
    edges = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]])
    inside = (edges[1:] > bounds[0]) & (edges[:-1] < bounds[1])
    of_run, lengths = codes[edges[:-1]], np.diff(edges)
    short = inside & (lengths < chunk_size) & (weights[of_run] > 0)
    if short.any():
        named = [names[code] for code in np.unique(of_run[short]).tolist()]
        raise ConfigError(
            f"every run of rows of one class must be at least chunk_size ({chunk_size}) long, but {int(short.sum())} "
            f"are shorter (classes {named}), the shortest {int(lengths[short].min())}: write the collection with "
            "groupby=, take a smaller chunk_size, or give these classes the weight 0"
        )
