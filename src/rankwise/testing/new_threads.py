"""Threads that a test has started: others of its process, of tests before it perhaps, end when they like."""

from __future__ import annotations

import threading

__all__ = ["mark_threads", "threads_end", "threads_since"]

# The threads themselves, not their numbers: the system gives that of one that has ended to the next.
_before: set[threading.Thread] = set()


def mark_threads() -> None:
    """Take the threads that run now for those of others."""
    _before.clear()
    _before.update(threading.enumerate())


def threads_since(name: str | None = None) -> list[threading.Thread]:
    """Return the threads that run and did not at the last mark.

    Args:
        name: theirs, or that of their pool; None = any of ours.
    """
    new = [held for held in threading.enumerate() if held not in _before]
    if name is None:
        return [held for held in new if held.name.startswith("rankwise")]
    return [held for held in new if held.name == name or held.name.startswith(f"{name}_")]


def threads_end(name: str, timeout_s: float = 60.0) -> bool:
    """Return whether the threads of a name that a test has started end in time.

    Args:
        name: theirs, or that of their pool.
        timeout_s: how long each of them is waited for.
    """
    for thread in threads_since(name):
        thread.join(timeout_s)
    return not threads_since(name)
