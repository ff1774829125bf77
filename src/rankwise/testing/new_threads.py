"""Find the threads that a test has started; other threads, perhaps of earlier tests, are ignored."""

from __future__ import annotations

import threading

# The thread objects, not their ids: the system reuses the id of a thread that has ended.
_before: set[threading.Thread] = set()


def mark_threads() -> None:
    """Ignore the threads that run now in later calls."""
    _before.clear()
    _before.update(threading.enumerate())


def threads_since(name: str | None = None) -> list[threading.Thread]:
    """Return the threads that run now and did not run at the last mark.

    Args:
        name: name of the threads or of their pool; None = any of rankwise.
    """
    new = [held for held in threading.enumerate() if held not in _before]
    if name is None:
        return [held for held in new if held.name.startswith("rankwise")]
    return [held for held in new if held.name == name or held.name.startswith(f"{name}_")]


def threads_end(name: str, timeout_s: float = 60.0) -> bool:
    """Return whether the threads with a name that a test has started end in time.

    Args:
        name: name of the threads or of their pool.
        timeout_s: how long to wait for each thread.
    """
    for thread in threads_since(name):
        thread.join(timeout_s)
    return not threads_since(name)
