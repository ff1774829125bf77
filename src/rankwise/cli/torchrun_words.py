"""Options of torchrun that rankwise does not need: accepted, with one message that they have no effect."""

from __future__ import annotations

import sys

__all__ = ["say_unneeded"]


def say_unneeded(**options: object) -> None:
    """Print which of the given options (None: not given) have no effect."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        print(f"rankwise: not needed here, ignored: {', '.join(given)}", file=sys.stderr)
