"""A process of the fork server, started while its supervisor still loads."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from rankwise.launch.preload import leading_imports

__all__ = ["Spare", "start_spare"]

# what ranks begin without that are started later: signals that `Loop` has taken over, and those that Python ignores
_RESET = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGWINCH", "SIGTSTP", "SIGPIPE", "SIGXFSZ")


class Spare:
    """An interpreter with the fork server in it, which waits to be told what to load.

    Started without `subprocess`, which takes as long to load as the interpreter does to start: no descriptor of this
    process but the standard ones may be inheritable.

    Attributes:
        line: the socket to it.
        pid: its process id.
        env: the variables that it was started with.

    Raises:
        OSError: it cannot be started here.
    """

    def __init__(self) -> None:
        self.env = dict(os.environ)
        self.line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        said = os.memfd_create("said")
        os.set_inheritable(far.fileno(), True)  # noqa: FBT003
        flags = sys.orig_argv[1 : sys.orig_argv.index("-m")]  # as `subprocess` has them, our own -P among them
        words = [sys.executable, *flags, "-P", "-m", "rankwise.launch.local.fork_server"]
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [*words, str(os.getpid()), str(far.fileno())],
                self.env,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, said, 1),  # what the imports say the ranks shall say
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
        """Return the socket and the pid to who looks after them from now on."""
        line, pid, self.pid = self.line, self.pid, 0
        return line, pid

    def close(self) -> None:
        """End it if it was not used."""
        if self.pid:
            _, pid = self.hand_over()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.line.close()


def start_spare(file: str, function: str) -> Spare | None:
    """Start one if a function is one for whose ranks a fork server is likely to be asked for, and if that works here.

    Args:
        file: where the function is written.
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
