"""Print warnings and failures for a terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rankwise.errors import LaunchError, RankFailure

__all__ = ["plain_failure", "plain_warnings"]

_OURS = "rankwise.errors."


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning as one line, without the source line."""
    with warnings.catch_warnings():
        warnings.showwarning = _show  # type: ignore[assignment]  # it has no use for the place
        yield


def plain_failure(failure: RankFailure) -> LaunchError:
    """Return a rank's failure without its traceback if it is a rankwise error, whose message says what to do."""
    lines = failure.traceback.rstrip().splitlines()
    found = [number for number, line in enumerate(lines) if line.startswith(_OURS) and ": " in line]
    if not found:
        return failure
    said = "\n".join(lines[found[-1] :]).partition(": ")[2]
    return LaunchError(f"rank {failure.rank}: {said}")


def _show(message: Warning | str, category: type[Warning], *place: Any) -> None:
    del category, place
    print(f"rankwise: warning: {message}", file=sys.stderr)
