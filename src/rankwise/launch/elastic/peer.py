"""One connection between a node and the rendezvous: reads and writes lines without blocking."""

from __future__ import annotations

import socket
import time

__all__ = ["BEAT_S", "SILENT_S", "Peer", "PeerGone"]

BEAT_S = 1.0
SILENT_S = 10.0  # heartbeats come every second, later on a busy machine
_LINE_BYTES = 1 << 18
_WAITING_BYTES = 1 << 22  # unsent bytes beyond which the other side counts as lost
_READ_BYTES = 1 << 16
_ENDED = "its supervisor has ended"


class PeerGone(Exception):  # noqa: N818  (what happened, caught by who watches the connection)
    """The other side is gone, or does not speak this protocol.

    Attributes:
        silent: whether it may still be alive, behind a network split.
    """

    def __init__(self, why: str, *, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent

    @classmethod
    def after(cls, error: OSError) -> PeerGone:
        """Distinguish the end of the other process, whose kernel closes the connection, from a lost network path."""
        if isinstance(error, (ConnectionResetError, BrokenPipeError)):
            return cls(_ENDED)
        return cls(f"the connection broke ({error.strerror})", silent=True)


class Peer:
    """A non-blocking socket for lines of limited length.

    Args:
        connected: connected socket; this object owns it.

    Attributes:
        addresses: address of this side and of the other side.
        begun_s: when it was created, monotonic clock.
        heard_s: when a valid message last arrived.
        spoken_s: when a message was last sent.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)  # noqa: FBT003
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._in, self._out = bytearray(), bytearray()
        try:
            self.addresses = _plain(connected.getsockname()[0]), _plain(connected.getpeername()[0])
        except OSError:  # the other side is gone, as the first read will show
            self.addresses = ("", "")
        self.begun_s = self.heard_s = self.spoken_s = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def read(self) -> list[bytes]:
        """Return the complete lines that have arrived.

        Raises:
            PeerGone: the other side has closed the connection, or violates the protocol.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise PeerGone.after(error) from error
        if not data:
            raise PeerGone(_ENDED)
        self._in += data
        *lines, rest = bytes(self._in).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise PeerGone("it sent a line that is too long")
        self._in = bytearray(rest)
        return lines

    def hear(self) -> None:
        """Note that the other side is authenticated and alive."""
        self.heard_s = time.monotonic()

    def write(self, line: bytes) -> None:
        """Send a line, now or with `flush`.

        Raises:
            PeerGone: the connection is broken, or the other side does not read.
        """
        if len(self._out) > _WAITING_BYTES:
            raise PeerGone("it does not read our messages")
        self._out += line
        self.spoken_s = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send the buffered data.

        Raises:
            PeerGone: the connection is broken.
        """
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise PeerGone.after(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _plain(address: str) -> str:
    return str(address).removeprefix("::ffff:")
