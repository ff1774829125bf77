"""Byte messages over the socket between a caller and its supervisor; imports little."""

from __future__ import annotations

import socket

__all__ = ["receive", "send"]

_LENGTH_BYTES = 8
_READ_BYTES = 1 << 20


def send(line: socket.socket, message: bytes) -> None:
    """Send a message of any length, uninterpreted.

    Raises:
        OSError: the other end is closed.
    """
    line.sendall(len(message).to_bytes(_LENGTH_BYTES, "big"))
    line.sendall(message)


def receive(line: socket.socket) -> bytes:
    """Wait for a message and return it.

    Raises:
        EOFError: the other end is closed.
        OSError: the connection is broken.
    """
    return _read(line, int.from_bytes(_read(line, _LENGTH_BYTES), "big"))


def _read(line: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = line.recv(min(num_bytes, _READ_BYTES))
        if not part:
            raise EOFError("the other end of the connection is closed")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
