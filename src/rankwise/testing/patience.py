"""Wait for a condition, on a machine that may be busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """Return the first true value of a condition; after `timeout_s` seconds return its last value.

    Args:
        condition: called every few milliseconds.
        timeout_s: how long to wait.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        threading.Event().wait(0.005)  # not `time.sleep`, which tests replace
    return value
