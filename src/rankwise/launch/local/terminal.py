"""A pseudo-terminal for rank 0 when its output also goes to a file, with the size of the real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

__all__ = ["copy_size", "open_terminal"]


def open_terminal(like: int) -> tuple[int, int]:
    """Open a pseudo-terminal of the size of the terminal `like`; return its (master, slave) descriptors.

    It passes output on unchanged: only the real terminal converts line feeds.
    """
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    copy_size(like, master)
    return master, slave


def copy_size(source: int, target: int) -> None:
    """Give the terminal `target` the size of `source`; do nothing if `source` is no terminal."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
