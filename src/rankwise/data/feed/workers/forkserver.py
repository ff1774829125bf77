"""`DataLoader` workers from Python's fork server: it imports the main script once, and no worker outlives its rank."""

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

PRELOAD_VARIABLE = "RANKWISE_PRELOAD"
_PRELOADING = "rankwise.data.feed.workers.preload"
_watching = threading.Lock()
_arrived = threading.Event()  # set in a process of a fork server that is a worker of ours


def start_server() -> None:
    """Start this process's fork server, unless it runs, and import the main script there for all workers.

    Otherwise every worker of every loader imports the script, and everything that the script imports.
    """
    main = sys.modules["__main__"]
    if main.__spec__ is None and getattr(main, "__file__", "") == "<stdin>":
        del main.__file__  # at a prompt: each worker would look for a script of this name
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
    """Import the main script in the fork server, as its workers would; the workers then have it.

    Args:
        text: the environment variable that `start_server` sets.
    """
    this = process.current_process()
    this._inheriting = True  # type: ignore[attr-defined]  # noqa: SLF001  (a script without guard must not start processes)
    # a worker meets the same error, and reports it to the process that started it
    with contextlib.suppress(BaseException):
        spawn.prepare(json.loads(text))
        if threading.active_count() == 1:
            del this._inheriting  # type: ignore[attr-defined]  # noqa: SLF001
            return
    # do not fork after a partial import, nor after threads were started, which a fork would lose: restart without it
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606


@dataclass(frozen=True, slots=True)
class InitWorker:
    """Called with the worker's number in each worker: ties the worker to its rank, then calls the user's function.

    Attributes:
        then: the user's function, or None.
    """

    then: Callable[[int], None] | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.then,)

    def __call__(self, number: int) -> None:
        """Start a worker."""
        leave_with_rank()
        if self.then is not None:
            self.then(number)


def _arrive(then: Callable[[int], None] | None) -> InitWorker:
    """Make an `InitWorker` when it is unpickled."""
    _arrived.set()
    return InitWorker(then)


def fork_with_sigterm_blocked() -> None:
    """Fork processes of this server with SIGTERM blocked, see `sigterm_blocked`; others than workers unblock it."""
    server = os.getpid()

    def mask(how: signal.Sigmasks) -> None:
        if os.getpid() == server:
            signal.pthread_sigmask(how, {signal.SIGTERM})

    def unblock(_: Any) -> None:
        # runs before the process's own target, and after everything needed here was unpickled
        if os.getppid() == server and not _arrived.is_set():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    if hasattr(signal, "pthread_sigmask"):
        os.register_at_fork(before=lambda: mask(signal.SIG_BLOCK), after_in_parent=lambda: mask(signal.SIG_UNBLOCK))
        util.register_after_fork(_arrived, unblock)


@contextlib.contextmanager
def sigterm_blocked(context: str | Any) -> Iterator[None]:
    """Start workers inside ``with`` with SIGTERM blocked, in all of their threads.

    If the rank's torch thread pool has several threads (after ``torch.set_num_threads(4)``, for example), torch
    recreates it in a forked worker before our code runs. The kernel would deliver the signal to such a thread, and
    torch's handler would end the worker. Only if every thread blocks the signal does it wait for our signal thread.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if context != "fork":
        resource_tracker.ensure_running()  # starting it unblocks the signal, so start it now
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_with_rank() -> None:
    """End this worker when the process that it works for has ended; one call is enough.

    A worker of the fork server is not a child of that process. torch watches the worker's parent, the server, and the
    server lives as long as a worker does. So both would stay for ever when the rank is killed.
    """
    rank = multiprocessing.parent_process()
    in_main = threading.current_thread() is threading.main_thread()
    if rank is not None and _watching.acquire(blocking=False):
        if in_main:
            _ignore_signals(rank.pid)
        threading.Thread(target=_watch, args=(rank.sentinel,), name="rankwise-worker", daemon=True).start()


def _ignore_signals(rank: int | None) -> None:
    """Ignore signals that are sent to all processes of a job: the rank handles them and still wants its last batches.

    A SIGTERM from the rank itself ends this worker; only a thread that waits for the signal can see its sender. If a
    second SIGTERM arrives while one is pending, it is lost, as usual for signals; torch sets an event first.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        # starting Python's resource tracker would unblock the signal in the calling thread; the tracker itself is safe,
        # because it inherits what we block and ignore
        resource_tracker._HAVE_SIGMASK = False  # type: ignore[attr-defined]  # noqa: SLF001
        threading.Thread(target=_await_end, args=(rank,), name="rankwise-worker-signals", daemon=True).start()


def _await_end(rank: int | None) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
        pass
    os._exit(0)


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    # a killed rank could not remove the folders of its sockets
    config = process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001
    address = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]  # noqa: SLF001
    for folder in {Path(config.get("tempdir") or "."), Path(address or ".").parent}:
        if folder.name.startswith("pymp-"):
            shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def check_importable(what: str, value: Any) -> None:
    """Refuse objects that workers cannot import: a class or function of a notebook or of a prompt.

    Args:
        what: the user's name for it.
        value: an object, a class or a function; None is fine.

    Raises:
        ConfigError: it is defined in a main program without a file.
    """
    kind = value if hasattr(value, "__qualname__") else type(value)
    main = sys.modules["__main__"]
    # for a script on stdin, __file__ is "<stdin>"
    has_file = getattr(main, "__spec__", None) is not None or Path(getattr(main, "__file__", "")).is_file()
    if kind.__module__ != "__main__" or (has_file and _finds(main, kind.__qualname__)):
        return
    raise ConfigError(
        f"{what} {kind.__qualname__} is defined in a notebook or at a prompt, so workers cannot import it: put it into "
        'a module (%%writefile data.py) and import it, or use multiprocessing_context="fork" (safe while this process '
        "runs no other threads), or num_workers=0"
    )


def _finds(module: Any, path: str) -> bool:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module is not None
