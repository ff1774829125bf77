"""Workers of a `DataLoader` that Python's fork server starts: the main script imported once, none left behind."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, forkserver, process, resource_tracker, spawn, util
from pathlib import Path
from typing import Any

from rankwise.errors import ConfigError

__all__ = [
    "PRELOAD_VARIABLE",
    "InitWorker",
    "check_importable",
    "deaf_workers",
    "leave_with_rank",
    "preload_main",
    "serve_deaf",
    "start_server",
]

PRELOAD_VARIABLE = "RANKWISE_PRELOAD"
_PRELOADING = "rankwise.data.feed.workers.preload"
_watching = threading.Lock()
_arrived = threading.Event()  # in a process of a fork server: it is a worker of ours


def start_server() -> None:
    """Start this process's fork server, unless it runs, with the main script imported: its workers have it then.

    Otherwise every worker of every loader imports it, and what it imports, again.
    """
    main = sys.modules["__main__"]
    if main.__spec__ is None and getattr(main, "__file__", "") == "<stdin>":
        del main.__file__  # as at a prompt: each worker would look for a script of this name
    data = spawn.get_preparation_data("loader worker")
    wanted = ("sys_path", "sys_argv", "orig_dir", "init_main_from_path", "init_main_from_name")
    preload = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]  # noqa: SLF001
    if _PRELOADING not in preload:
        multiprocessing.set_forkserver_preload([*preload, _PRELOADING])
    os.environ[PRELOAD_VARIABLE] = json.dumps({key: data[key] for key in wanted if key in data})
    try:
        forkserver.ensure_running()
    finally:
        del os.environ[PRELOAD_VARIABLE]


def preload_main(text: str) -> None:
    """Import the main script, in the fork server, as its workers would, who then find it there.

    Args:
        text: what `start_server` left in the variable.
    """
    this = process.current_process()
    this._inheriting = True  # type: ignore[attr-defined]  # noqa: SLF001  (a script without guard must not start processes)
    # a worker comes to the same error, and tells it to who started it
    with contextlib.suppress(BaseException):
        spawn.prepare(json.loads(text))
        if threading.active_count() == 1:
            del this._inheriting  # type: ignore[attr-defined]  # noqa: SLF001
            return
    # what failed half way, or started threads that a fork would lose, is not to be forked: begin again without it
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606


@dataclass(frozen=True, slots=True)
class InitWorker:
    """Called with its number in each worker: the user's own function, after a promise to leave with the rank.

    Attributes:
        then: the user's, or None.
    """

    then: Callable[[int], None] | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.then,)

    def __call__(self, number: int) -> None:
        """Begin a worker."""
        leave_with_rank()
        if self.then is not None:
            self.then(number)


def _arrive(then: Callable[[int], None] | None) -> InitWorker:
    """Make an `InitWorker` where it is unpickled."""
    _arrived.set()
    return InitWorker(then)


def serve_deaf() -> None:
    """Begin what this server forks with SIGTERM blocked, see `deaf_workers`; others than our workers hear again."""
    server = os.getpid()

    def mask(how: signal.Sigmasks) -> None:
        if os.getpid() == server:
            signal.pthread_sigmask(how, {signal.SIGTERM})

    def hear(_: Any) -> None:
        # runs before the process does what it is for, and after all that this needs was unpickled
        if os.getppid() == server and not _arrived.is_set():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    if hasattr(signal, "pthread_sigmask"):
        os.register_at_fork(before=lambda: mask(signal.SIG_BLOCK), after_in_parent=lambda: mask(signal.SIG_UNBLOCK))
        util.register_after_fork(_arrived, hear)


@contextlib.contextmanager
def deaf_workers(context: str | Any) -> Iterator[None]:
    """Let workers that are started inside ``with`` begin with SIGTERM blocked, in all of their threads.

    torch makes its thread pool anew in a forked worker before anything of ours runs there, if the rank has one of
    several threads (after ``torch.set_num_threads(4)``, say). The kernel would give such a thread the signal, and
    torch's handler would end the worker: only one that every thread blocks waits for the thread that asks for it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if context != "fork":
        resource_tracker.ensure_running()  # which unblocks the signal, so not later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_with_rank() -> None:
    """Let this worker end when the process that it works for has; once is enough.

    A worker of the fork server is not a child of that process. torch looks after the parent, the server, which in turn
    lives as long as a worker does: both would stay for ever when the rank is killed.
    """
    rank = multiprocessing.parent_process()
    in_main = threading.current_thread() is threading.main_thread()
    if rank is not None and _watching.acquire(blocking=False):
        if in_main:
            _ignore_signals(rank.pid)
        threading.Thread(target=_watch, args=(rank.sentinel,), name="rankwise-worker", daemon=True).start()


def _ignore_signals(rank: int | None) -> None:
    """Leave it to the rank what a signal to all processes of a job means: it still wants its last batches.

    SIGTERM of the rank itself ends this worker, which only a thread that waits for the signal can tell.
    One that arrives while another's is not taken in yet is lost, as signals are; torch asks by an event first.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # starting Python's resource tracker unblocks the signal in the thread that does it; the tracker itself is safe,
        # it inherits what we block and ignore
        resource_tracker._HAVE_SIGMASK = False  # type: ignore[attr-defined]  # noqa: SLF001
        threading.Thread(target=_await_end, args=(rank,), name="rankwise-worker-signals", daemon=True).start()


def _await_end(rank: int | None) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
        pass
    os._exit(0)


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    # a rank that was killed could not remove where its processes met
    config = process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]  # noqa: SLF001
    for folder in {Path(config.get("tempdir") or "."), Path(address or ".").parent}:
        if folder.name.startswith("pymp-"):
            shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def check_importable(what: str, value: Any) -> None:
    """Refuse what workers cannot import: a class or function of a notebook or of a prompt.

    Args:
        what: how the user calls it.
        value: an object, a class or a function; None is fine.

    Raises:
        ConfigError: it lives in a main program without a file.
    """
    kind = value if hasattr(value, "__qualname__") else type(value)
    main = sys.modules["__main__"]
    # of a script on stdin it is "<stdin>"
    has_file = getattr(main, "__spec__", None) is not None or Path(getattr(main, "__file__", "")).is_file()
    if kind.__module__ != "__main__" or (has_file and _finds(main, kind.__qualname__)):
        return
    raise ConfigError(
        f"{what} {kind.__qualname__} is defined in a notebook or at a prompt, which workers cannot import: put it into "
        'a module (%%writefile data.py) and import it, or take multiprocessing_context="fork" (safe while this process '
        "has no other threads at work), or num_workers=0"
    )


def _finds(module: Any, path: str) -> bool:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module is not None
