"""Names in an order that people expect."""

from __future__ import annotations

import re

__all__ = ["natural_order"]

_DIGITS = re.compile(r"([0-9]+)")


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key to sort by that puts "2" before "10"."""
    parts = _DIGITS.split(name)
    return tuple((0, int(part), part) if place % 2 else (1, 0, part) for place, part in enumerate(parts))
