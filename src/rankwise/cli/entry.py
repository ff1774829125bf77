"""The entry point: plain command lines of `rankwise run` are parsed directly, all others by typer."""

from __future__ import annotations

import os
import sys

from rankwise.cli.output import plain_warnings
from rankwise.errors import RankwiseError

__all__ = ["main"]


def main() -> None:
    """Run the command line; an error of rankwise becomes one message and exit code 2, without a traceback."""
    with plain_warnings():
        try:
            _run(sys.argv[1:])
        except RankwiseError as error:
            print(f"rankwise: {error}", *getattr(error, "__notes__", []), sep="\n", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit(130)  # no process has been started yet


def _run(argv: list[str]) -> None:
    if argv[:1] == ["run"]:
        from rankwise.cli.options import read_plainly

        words = read_plainly(argv[1:], os.environ)
        if words is not None:
            from rankwise.cli.start import start_ranks

            sys.exit(start_ranks(words))
    from rankwise.cli.app import app

    app(prog_name="rankwise")
