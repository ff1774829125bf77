"""Print warnings for a terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning as one line, without the source line."""
    with warnings.catch_warnings():
        warnings.showwarning = _show  # type: ignore[assignment]  # it has no use for the place
        yield


def _show(message: Warning | str, category: type[Warning], *place: Any) -> None:
    del category, place
    print(f"rankwise: warning: {message}", file=sys.stderr)
