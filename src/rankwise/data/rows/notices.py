"""Warnings that are given once."""

from __future__ import annotations

import logging
import os

from rankwise._process.place import find_place
from rankwise.errors import WorldError

__all__ = ["process_rank", "say_once"]

_LOG = logging.getLogger("rankwise.rows")
_said: set[str] = set()


def say_once(text: str, *, key: str | None = None) -> None:
    """Warn once in this process, on the main rank.

    Args:
        text: the warning.
        key: its topic, if texts on the same topic differ; None = the text.
    """
    if (key or text) not in _said:
        _said.add(key or text)
        if process_rank() == 0:
            _LOG.warning(text)


def process_rank() -> int:
    """Return the rank that a launcher gave to this process, 0 without a launcher."""
    try:
        return find_place(os.environ).rank
    except WorldError:  # incomplete launcher variables: code that needs the place reports them
        return 0
