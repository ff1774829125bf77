"""Sizes as people write them."""

from __future__ import annotations

import re

from rankwise.errors import ConfigError

__all__ = ["parse_size"]

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
