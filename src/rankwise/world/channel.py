"""The process group behind a world."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

__all__ = ["Channel"]


@dataclass(slots=True)
class Channel:
    """A process group and where the next call stands."""

    group: Any
    timeout: timedelta
    calls: int = 0
