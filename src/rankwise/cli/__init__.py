"""The command `rankwise`: parse, call, print."""

from rankwise.cli.app import main

__all__ = ["main"]
