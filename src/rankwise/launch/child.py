"""The main program of a rank's process: `python -m rankwise.launch.child PARENT FD KIND NAME ARGS`."""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import time
from pathlib import Path
from typing import cast, get_args

from rankwise import vitals
from rankwise._shutdown import let_gloo_finish
from rankwise.errors import Interrupted
from rankwise.launch.invocation import invoke
from rankwise.launch.local.pact import die_with_parent, keep_guard
from rankwise.launch.report import FINISHED, make_report
from rankwise.launch.target import Kind, Target

__all__ = ["end_well", "main"]

INTERRUPTED = 130
_MAX_SOCKET_FOLDER = 70  # a socket path may have 107 characters; multiprocessing adds its own name
_rank_pid: int | None = None  # set once this process is a rank


def main(argv: list[str]) -> None:
    """Tie this process to the supervisor's life, write heartbeats, run the target, and report a failure."""
    die_with_parent(int(argv[0]))
    report_fd, rank, folder = int(argv[1]), int(os.environ["RANK"]), Path(os.environ["RANKWISE_VITALS"])
    keep_guard(report_fd, [folder, Path(argv[3]).parent] if argv[2] == "call" else [folder])
    _use_temporary_folder(folder / "multiprocessing")
    os.set_inheritable(report_fd, False)  # noqa: FBT003
    # after a crash inside C, the supervisor reads the Python stacks from this file
    faulthandler.enable((folder / f"crash-{rank}").open("w"))
    vitals.start(folder, rank)
    for stream in (sys.stdout, sys.stderr):
        if not stream.isatty():
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # lines in time, one write each
    assert argv[2] in get_args(Kind)
    global _rank_pid  # noqa: PLW0603
    if _rank_pid is None:
        end_well()
    _rank_pid = pid = os.getpid()
    try:
        invoke(Target(kind=cast("Kind", argv[2]), name=argv[3], args=tuple(argv[4:])), rank)
    except BaseException as error:
        if os.getpid() != pid:
            raise  # in a child that the program forked: its parent handles the failure
        code = _exit_code(error)
        if code == Interrupted.EXIT_CODE:
            _say_finished(report_fd)
            _leave_jax_at_once(code)
        elif code != 0:
            _send(report_fd, make_report(error, rank, code).to_json())
            _leave_jax_at_once(code)
        else:
            _say_finished(report_fd)
        sys.exit(code)
    if os.getpid() == pid:
        _say_finished(report_fd)


def _use_temporary_folder(folder: Path) -> None:
    """Put multiprocessing's sockets into the attempt's folder, which is removed even if this process is killed."""
    from multiprocessing import process

    if len(os.fspath(folder)) < _MAX_SOCKET_FOLDER:
        folder.mkdir(exist_ok=True)
        process.current_process()._config.setdefault("tempdir", os.fspath(folder))  # type: ignore[attr-defined]  # noqa: SLF001


def end_well() -> None:
    """Let gloo finish when this rank exits, so that it does not crash; call this before the program registers handlers.

    atexit runs the handlers in reverse order of their registration.
    """
    global _rank_pid  # noqa: PLW0603
    _rank_pid = 0
    atexit.register(_let_finish)


def _let_finish() -> None:
    if os.getpid() == _rank_pid and "torch.distributed" in sys.modules:
        let_gloo_finish()


def _say_finished(report_fd: int) -> None:
    """Report when the program ended: the interpreter's shutdown takes a while, and peers lose this rank during it."""
    _send(report_fd, FINISHED + f"{time.monotonic()}\n".encode())


def _leave_jax_at_once(code: int) -> None:
    """If the program uses JAX, tell it that this rank failed; else JAX waits for the other ranks at exit."""
    leaving = sys.modules.get("rankwise.world.jax_start")
    if leaving is not None:
        leaving.note_failure(code)


def _exit_code(error: BaseException) -> int:
    """Return the exit code that Python would use; print a text in SystemExit, as Python does."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _send(fd: int, line: bytes) -> None:
    """Write the whole line; return silently if the supervisor is gone."""
    try:
        while line:
            line = line[os.write(fd, line) :]
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
