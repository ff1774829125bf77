"""Options that torchrun needs and we do not: accepted, and said once to do nothing."""

from __future__ import annotations

import sys

__all__ = ["say_unneeded"]


def say_unneeded(**options: object) -> None:
    """Say which of the given options (None: not given) have no effect here."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        print(f"rankwise: not needed here, ignored: {', '.join(given)}", file=sys.stderr)
