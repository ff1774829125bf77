"""The process of a fork server; it may start while its supervisor still loads, so this module imports little."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from rankwise.launch.local.forks.preload import leading_imports

# reset to their defaults, as for ranks that are started later: signals that `Loop` handles or Python ignores
_RESET = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGWINCH", "SIGTSTP", "SIGPIPE", "SIGXFSZ")


class ServerProcess:
    """An interpreter that runs the fork server and waits for the list of modules to import.

    It is started without `subprocess`, whose import takes as long as the interpreter's start.

    `words` are shown in process lists, after the command.

    Attributes:
        line: the socket to the process.
        pid: its process id, 0 once it has ended.
        env: the variables with which it was started.

    Raises:
        OSError: the process cannot be started.
        NotImplementedError: this system cannot start one in a session of its own.
    """

    def __init__(self, env: Mapping[str, str], flags: Sequence[str], words: Sequence[str] = ()) -> None:
        self.env = env
        self.line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said = os.memfd_create("said")  # captures output of the imports; if there is any, the ranks import themselves
        os.set_inheritable(far.fileno(), True)  # noqa: FBT003
        far.setblocking(True)  # noqa: FBT003  (also where the program has called socket.setdefaulttimeout)
        command = [sys.executable, *flags, "-P", "-m", "rankwise.launch.local.forks.server"]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [*command, str(os.getpid()), str(far.fileno()), *words],
                env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, said, 1),
                    (os.POSIX_SPAWN_DUP2, said, 2),
                ],
                setsid=True,
                # as for ranks that are started later; SIGINT is blocked while the supervisor of a function starts
                setsigmask=signal.pthread_sigmask(signal.SIG_BLOCK, ()) - {signal.SIGINT},
                setsigdef=[getattr(signal, name) for name in _RESET],
            )
        except BaseException:
            self.line.close()
            raise
        finally:
            far.close()
            os.close(said)

    def close(self) -> None:
        """End the process; a second call does nothing."""
        pid, self.pid = self.pid, 0
        if pid:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid still belongs to it
            os.waitpid(pid, 0)
            self.line.close()


def start_early(file: str, function: str) -> ServerProcess | None:
    """Start the process if a function's ranks can probably be forked, and if this system allows it."""
    from pathlib import Path

    if sys.platform != "linux" or os.environ.get("RANKWISE_START", "auto") != "auto":
        return None
    if not leading_imports(Path(file), function):
        return None
    flags = sys.orig_argv[1 : sys.orig_argv.index("-m")]  # with this process's -P
    with contextlib.suppress(OSError, NotImplementedError):
        return ServerProcess(dict(os.environ), flags)
    return None
