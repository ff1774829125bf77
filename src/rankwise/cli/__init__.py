"""The command `rankwise`: parse, call, print."""

from rankwise.cli.entry import main

__all__ = ["main"]
