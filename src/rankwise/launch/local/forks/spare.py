"""A fork server process, started while its supervisor still loads."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from rankwise.launch.local.forks.preload import leading_imports

__all__ = ["Spare", "start_spare"]

# reset to their defaults, as for ranks that are started later: signals that `Loop` handles or Python ignores
_RESET = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGWINCH", "SIGTSTP", "SIGPIPE", "SIGXFSZ")


class Spare:
    """An interpreter that runs the fork server and waits for the list of modules to import.

    It is started without `subprocess`, whose import takes as long as the interpreter's start. Therefore only the
    standard descriptors of this process may be inheritable.

    Attributes:
        line: the socket to the process.
        pid: its process id.
        env: the variables with which it was started.

    Raises:
        OSError: the process cannot be started on this system.
    """

    def __init__(self) -> None:
        self.env = dict(os.environ)
        self.line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said = os.memfd_create("said")
        os.set_inheritable(far.fileno(), True)  # noqa: FBT003
        flags = sys.orig_argv[1 : sys.orig_argv.index("-m")]  # the interpreter's flags, with this process's -P
        words = [sys.executable, *flags, "-P", "-m", "rankwise.launch.local.forks.server"]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [*words, str(os.getpid()), str(far.fileno())],
                self.env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, said, 1),  # captures output of the imports
                    (os.POSIX_SPAWN_DUP2, said, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=[getattr(signal, name) for name in _RESET],
            )
        except BaseException:
            self.line.close()
            raise
        finally:
            far.close()
            os.close(said)

    def hand_over(self) -> tuple[socket.socket, int]:
        """Return the socket and the pid; the caller owns them from now on."""
        line, pid, self.pid = self.line, self.pid, 0
        return line, pid

    def close(self) -> None:
        """End the process if it was not handed over."""
        if self.pid:
            _, pid = self.hand_over()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.line.close()


def start_spare(file: str, function: str) -> Spare | None:
    """Start a spare process if a function's ranks can probably be forked, and if this system allows it.

    Args:
        file: the file that defines the function.
        function: its name.
    """
    from pathlib import Path

    if sys.platform != "linux" or os.environ.get("RANKWISE_START", "auto") != "auto":
        return None
    if not leading_imports(Path(file), function):
        return None
    with contextlib.suppress(OSError, NotImplementedError):
        return Spare()
    return None
