"""Warnings that are given once."""

from __future__ import annotations

import logging
import os

from rankwise._process.place import speaking_rank

_LOG = logging.getLogger("rankwise.rows")
_said: set[str] = set()


def warn_once(text: str, *, key: str | None = None) -> None:
    """Warn once in this process, on the main rank; texts on one topic have one key."""
    if (key or text) not in _said:
        _said.add(key or text)
        if speaking_rank(os.environ) == 0:
            _LOG.warning(text)
