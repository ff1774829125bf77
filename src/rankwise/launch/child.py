"""The main program of a rank's process: `python -m rankwise.launch.child PARENT FD KIND NAME ARGS`.

It ties the process to the supervisor's life, runs the target as Python itself would run it, and reports a failure.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import io
import os
import runpy
import select
import shutil
import signal
import stat
import sys
import time
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from pkgutil import get_importer
from typing import Any, cast, get_args

from rankwise import vitals
from rankwise._shutdown import let_gloo_finish
from rankwise.errors import Interrupted
from rankwise.launch.failures.report import FINISHED, make_report
from rankwise.launch.local.sessions import GUARD, end_session, end_sessions
from rankwise.launch.target import Kind, Target

INTERRUPTED = 130
_TOO_LARGE = 1 << 63  # for C's long: Python exits with -1 then
_MAX_SOCKET_FOLDER = 70  # a socket path may have 107 characters; multiprocessing adds its own name
_PR_SET_PDEATHSIG = 1
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
        with contextlib.suppress(AttributeError):  # a sitecustomize has put another stream in its place
            if not stream.isatty():
                stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # lines in time, one write each
    assert argv[2] in get_args(Kind)
    global _rank_pid  # noqa: PLW0603
    if _rank_pid is None:
        end_well()
    _rank_pid = pid = os.getpid()
    hook = sys.excepthook
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while this process started
        invoke(Target(kind=cast("Kind", argv[2]), name=argv[3], args=tuple(argv[4:])), rank)
    except BaseException as error:
        if os.getpid() != pid:
            raise  # in a child that the program forked: its parent handles the failure
        code = _exit_code(error)
        if code in {0, Interrupted.EXIT_CODE}:
            _report_finished(report_fd)
        else:
            _send(report_fd, make_report(error, rank, code).to_json())
        if sys.excepthook is not hook and not isinstance(error, SystemExit):
            _call_hook(error)
        if code != 0 and "rankwise.world.jax_start" in sys.modules:
            sys.modules["rankwise.world.jax_start"].note_failure(code)  # else JAX waits for the other ranks at exit
        sys.exit(code)
    if os.getpid() == pid:
        _report_finished(report_fd)


def _call_hook(error: BaseException) -> None:
    """Call the `sys.excepthook` that the program has set; the supervisor prints the traceback, so it need not."""
    with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
        sys.excepthook(type(error), error, error.__traceback__)


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


def _report_finished(report_fd: int) -> None:
    """Report when the program ended: the interpreter's shutdown takes a while, and peers lose this rank during it."""
    _send(report_fd, FINISHED + f"{time.monotonic()}\n".encode())


def _exit_code(error: BaseException) -> int:
    """Return the exit code that Python would use; print a text in SystemExit, as Python does."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return (error.code if -_TOO_LARGE <= error.code < _TOO_LARGE else -1) & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _send(fd: int, line: bytes) -> None:
    """Write the whole line; do nothing if the supervisor is gone, or the program has closed all that it inherited."""
    with contextlib.suppress(OSError):
        while line and stat.S_ISFIFO(os.fstat(fd).st_mode):
            line = line[os.write(fd, line) :]


def die_with_parent(parent: int) -> None:
    """Make this process end as soon as its parent ends.

    On Linux the kernel sends SIGKILL. Call this in the main thread: the kernel ties the request to a thread. On other
    systems the guard does it. Exits at once if the parent is already gone.

    Args:
        parent: process id of the supervisor; this process must be its direct child.
    """
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def keep_guard(report_fd: int, folders: Sequence[Path]) -> None:
    """Start a guard process that ends the rank's session, and removes folders, once the supervisor is gone.

    A killed rank cannot end the processes that it started (loader workers, subprocesses). The guard is not a child of
    the rank, so a program that waits for its children does not see it. It is in the rank's session, so the supervisor
    ends it with that. It has another command line than the script, so `pkill` by the script's name does not kill it.

    Args:
        report_fd: pipe whose read end only the supervisor holds.
        folders: folders to remove.
    """
    rank = os.getpid()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        _rename()  # before the guard exists and the rank goes on: the guard never has the script's name
        if os.fork() == 0:
            _run_guard(rank, report_fd, folders)
    finally:
        os._exit(0)


def _run_guard(rank: int, report_fd: int, folders: Sequence[Path]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)  # keep no terminal or pipe open
    os.closerange(3, report_fd)
    os.closerange(report_fd + 1, 4096)
    gone = select.poll()
    gone.register(report_fd, 0)
    gone.poll()  # returns on an error only: the read end is closed
    if sys.platform == "linux":
        end_sessions({rank})
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    end_session(rank)


def _rename() -> None:
    """Overwrite this process's command line, as shown in /proc."""
    if sys.platform == "linux":
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, GUARD, min(len(GUARD), end - start - 1))


def invoke(target: Target, rank: int) -> None:
    """Run `target`; every exception that it raises propagates, including SystemExit."""
    sys.argv[:] = [target.name, *target.args]
    match target.kind:
        case "script":
            _run_script(target.name)
        case "module":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109  (sys.path wants text)
            _run_module(target.name)
        case "function":
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
            _resolve(target.name)()
        case "call":
            from rankwise.launch.functions.callee import run_call

            run_call(Path(target.name), rank)


def _run_module(name: str) -> None:
    _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]  # noqa: SLF001
    # unlike that of `run_module`, this module stays, as a script's does
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    sys.argv[0] = spec.origin
    runpy._run_code(code, module.__dict__, None, "__main__", spec)  # type: ignore[attr-defined]  # noqa: SLF001


def _run_script(name: str) -> None:
    path = Path(name)
    if path.suffix == ".pyc" or get_importer(name) is not None:  # a folder or archive with a __main__.py
        runpy.run_path(name, run_name="__main__")
        return
    full = str(path.absolute())
    sys.path.insert(0, str(path.resolve().parent))
    # unlike runpy's, this module stays: atexit handlers and pickles by reference need it at the end
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=full, __builtins__=__builtins__, __cached__=None)
    module.__loader__ = SourceFileLoader("__main__", full)
    sys.modules["__main__"] = module
    with io.open_code(full) as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102  (this is what a launcher is for)


def _resolve(name: str) -> Any:
    """Import `package.module:attribute.attribute`."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is not callable, it is a {type(found).__name__}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
