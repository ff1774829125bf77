"""Parse a time limit, in rankwise's or Slurm's notation."""

from __future__ import annotations

import re

from rankwise.errors import ConfigError

__all__ = ["parse_time"]

_DAYS = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_WORDS = re.compile(r"(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?")


def parse_time(text: str) -> int:
    """Return the minutes, rounded up, for "2h", "1d12h", "90m", or Slurm's "90", "2:00:00", "1-12", "1-12:30:00".

    Raises:
        ConfigError: the text has another format, or is zero.
    """
    words, days = _WORDS.fullmatch(text), _DAYS.fullmatch(text)
    if words:
        day, hour, minute = (int(number or 0) for number in words.groups())
        seconds = ((day * 24 + hour) * 60 + minute) * 60
    elif days:
        first, *rest = (int(number) for number in days.groups()[1:] if number is not None)
        by_length: tuple[tuple[int, ...], ...] = ((60,), (60, 1), (3600, 60, 1))  # M, M:S, H:M:S
        units = by_length[len(rest)] if days[1] is None else (3600, 60, 1)  # D-H, D-H:M, D-H:M:S
        seconds = int(days[1] or 0) * 86400 + sum(a * b for a, b in zip((first, *rest), units, strict=False))
    else:
        seconds = 0
    if seconds <= 0:
        raise ConfigError(f"--time must be 2h, 1d12h, 90m, or Slurm's minutes, H:MM:SS, D-HH:MM, got {text!r}")
    return -(-seconds // 60)
