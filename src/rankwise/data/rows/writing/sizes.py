"""Sizes as people write them."""

from __future__ import annotations

import re

from rankwise.errors import ConfigError

__all__ = ["parse_size", "rows_of_size"]

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(size: int | str, name: str) -> int:
    """Turn "1GB", "512MB", "64 KiB" or a plain number into bytes; units are powers of 1,024, as annbatch takes them.

    Args:
        size: what was given.
        name: the argument, for messages.

    Raises:
        ConfigError: it is no size, or below 1.
    """
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match:
        size = int(float(match[1]) * 1024 ** _POWERS[match[2].upper()])
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ConfigError(f'{name} wants a size such as "1GB" or "512MB", or a whole number >= 1; got {size!r}')
    return size


def rows_of_size(size: int | str, name: str, row_bytes: float) -> int:
    """Return the rows that a size stands for: a whole number, as such or as a text, is rows; a text with a unit bytes.

    Args:
        size: what was given, such as 250, "250" or "20GB".
        name: the argument, for messages.
        row_bytes: decoded bytes of a row.

    Raises:
        ConfigError: it is no size, or below 1.
    """
    number = parse_size(size, name)
    in_rows = not isinstance(size, str) or size.strip().isdigit()
    return max(1, int(min(number if in_rows else number / max(row_bytes, 1e-9), 2**62)))
