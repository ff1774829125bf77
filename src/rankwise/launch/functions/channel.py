"""The connection between a caller and its supervisor: byte messages over a socket pair; imports little."""

from __future__ import annotations

import os
import socket
from typing import Self

__all__ = ["Channel", "make_channels"]

_LENGTH_BYTES = 8
_READ_BYTES = 1 << 20


class Channel:
    """One end of the connection. Messages are not interpreted. A context manager that closes it.

    Args:
        fd: connected socket; this object owns it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor, for a selector; -1 once closed."""
        return self._fd

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def send(self, message: bytes) -> None:
        """Send a message.

        Raises:
            OSError: the other end is closed.
        """
        for part in (len(message).to_bytes(_LENGTH_BYTES, "big"), message):
            left = memoryview(part)
            while left:
                left = left[os.write(self._fd, left) :]

    def receive(self) -> bytes:
        """Wait for a message and return it.

        Raises:
            EOFError: the other end is closed.
            OSError: the connection is broken.
        """
        return self._read(int.from_bytes(self._read(_LENGTH_BYTES), "big"))

    def _read(self, num_bytes: int) -> bytes:
        parts = []
        while num_bytes:
            part = os.read(self._fd, min(num_bytes, _READ_BYTES))
            if not part:
                raise EOFError("the other end of the connection is closed")
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)


def make_channels() -> tuple[Channel, Channel]:
    """Return the two ends of a new connection; started processes do not inherit them by default."""
    near, far = socket.socketpair()
    return Channel(near.detach()), Channel(far.detach())
