"""The entry point: plain command lines of `rankwise run` are parsed directly, all others by typer."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from typing import Any

from rankwise.cli.output import plain_warnings
from rankwise.errors import RankwiseError


def main() -> None:
    """Run the command line; an error of rankwise becomes one message and exit code 2, without a traceback."""
    _prepare_streams()
    with plain_warnings():
        try:
            try:
                _run(sys.argv[1:])
            finally:
                sys.stdout.flush()  # at interpreter exit it is too late to say that it failed
        except RankwiseError as error:
            print(f"rankwise: {error}", *getattr(error, "__notes__", []), sep="\n", file=sys.stderr)
            sys.exit(2)
        except OSError as error:
            reason = _why(error)
            if reason is None:
                raise
            if reason:
                print(f"rankwise: {reason}", file=sys.stderr)
            sys.exit(2 if reason else 1)
        except KeyboardInterrupt:
            sys.exit(130)  # no process has been started yet


def _prepare_streams() -> None:
    """Open /dev/null for standard streams that the caller has closed (Python sets those to None); print any text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115, PTH123  (open until the process ends)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    # also in the C locale without UTF-8 mode, which escapes bytes that it could not read, but no other characters
    if isinstance(sys.stdout, io.TextIOWrapper) and (sys.stdout.errors == "strict" or sys.stdout.encoding == "ascii"):
        sys.stdout.reconfigure(errors="replace")  # a terminal or pipe in ASCII must not end a report in the middle


def _why(error: OSError) -> str | None:
    """Return what to print about an error that the environment causes, "" for nothing, None if it has another cause."""
    if error.filename is None and error.errno in {errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG}:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # what is still buffered is lost, so the flush at exit does not fail again
        return "" if error.errno == errno.EPIPE else f"the output cannot be written: {error.strerror}"
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return "the working directory has been removed: change to one that exists"
    if error.filename is not None and error.strerror:  # a folder that is missing, a file of another user
        return f"{error.filename}: {error.strerror}"
    return None


def _run(argv: list[str]) -> None:
    if argv[:1] == ["run"]:
        from rankwise.cli.options import read_plainly

        words = read_plainly(argv[1:], os.environ)
        if words is not None:
            from rankwise.cli.start import start_ranks

            sys.exit(start_ranks(words))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from rankwise.cli.app import app

    app(prog_name="rankwise")


class _Interrupt(KeyboardInterrupt):
    """After a plain one in an `exec` of text, as by dataclasses, `python -m` ends by SIGINT although it is caught."""


def _interrupt(*_: Any) -> None:
    raise _Interrupt
