"""Which level of an image is fine enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rankwise.errors import DataError

if TYPE_CHECKING:
    from rankwise.data.store.meta.ngff.values import Image

__all__ = ["choose_level"]

_ROUNDING = 1.001  # scales are written rounded


def choose_level(image: Image, spacing: float | Sequence[float] | Mapping[str, float]) -> int:
    """Return the number of the coarsest level that is at least as fine as wanted; see `Image.level_for`."""
    wanted = _by_axis(image, spacing)
    if not all(distance > 0 for distance in wanted.values()):
        raise DataError(f"a spacing must be above 0, asked the image {image.place} for {spacing!r}")
    fine = [
        number
        for number, level in enumerate(image.levels)
        if all(level.scale[axis] <= distance * _ROUNDING for axis, distance in wanted.items())
    ]
    return max(fine, default=0)


def _by_axis(image: Image, spacing: float | Sequence[float] | Mapping[str, float]) -> dict[int, float]:
    if isinstance(spacing, Mapping):
        return {image.axis(name): distance for name, distance in spacing.items()}
    axes = image.spatial
    values = [spacing] * len(axes) if isinstance(spacing, int | float) else list(spacing)
    if len(values) != len(axes):
        names = ", ".join(image.axes[axis].name for axis in axes) or "none"
        raise DataError(
            f"the image {image.place} has {len(axes)} axes of space ({names}) and wants one spacing for each; "
            f"got {spacing!r}"
        )
    return dict(zip(axes, values, strict=True))
