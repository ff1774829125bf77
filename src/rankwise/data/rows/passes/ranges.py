"""The rows that a sampler may take: one contiguous range, and runs around it as around a circle."""

from __future__ import annotations

from rankwise.data.contract import JSON
from rankwise.errors import ConfigError

__all__ = ["check_mask", "circle", "mask_bounds", "mask_settings"]


def check_mask(mask: slice) -> slice:
    """Return a mask with a whole number as its start.

    Raises:
        TypeError: it is no slice.
        ConfigError: it is no contiguous range, begins below 0, or is empty.
    """
    if not isinstance(mask, slice):
        raise TypeError(f"mask wants a slice of rows, such as slice(0, 1000); got {type(mask).__name__}")
    start, stop = mask.start or 0, mask.stop
    if mask.step not in (None, 1):
        raise ConfigError(f"mask.step must be 1: a mask is one contiguous range; got {mask}")
    if start < 0 or (stop is not None and stop < 0):
        raise ConfigError(f"mask.start and mask.stop must be >= 0, counted from the first row; got {mask}")
    if stop is not None and start >= stop:
        raise ConfigError(f"mask.start must be < mask.stop, or no row is left; got {mask}")
    return slice(start, stop)


def mask_bounds(mask: slice, n_obs: int) -> tuple[int, int]:
    """Return the first row of a mask, and the one after its last.

    Raises:
        ConfigError: there are not that many rows.
    """
    checked = check_mask(mask)
    if n_obs == 0:
        raise ConfigError("the loader has no rows: add data first, with use_collection, add_adata or add_dataset")
    start = int(checked.start)
    stop = n_obs if checked.stop is None else int(checked.stop)
    if stop > n_obs:
        raise ConfigError(
            f"mask.stop ({stop}) exceeds the {n_obs} rows of the loader: make the mask smaller, or add the data first"
        )
    if start >= stop:
        raise ConfigError(f"mask.start ({start}) leaves no row: the loader has {n_obs} rows; move the mask")
    return start, stop


def mask_settings(mask: slice) -> list[JSON]:
    """Return the first row of a mask, and the one after its last or None, as JSON."""
    return [mask.start or 0, mask.stop]


def circle(first: int, length: int, start: int, stop: int) -> list[slice]:
    """Return a run of rows that goes on at `start` when it reaches `stop`, around as often as needed.

    Args:
        first: first row of the run, in [start, stop).
        length: rows of the run.
        start: first row of the range.
        stop: row after the last of the range.
    """
    runs = []
    while length > 0:
        taken = min(length, stop - first)
        runs.append(slice(first, first + taken))
        first, length = start, length - taken
    return runs
