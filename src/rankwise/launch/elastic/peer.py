"""One connection between a node and the rendezvous: lines in and out, without ever waiting."""

from __future__ import annotations

import socket
import time

__all__ = ["BEAT_S", "SILENT_S", "Peer", "PeerGone"]

BEAT_S = 1.0
SILENT_S = 10.0  # a second each is promised; a machine that many share is late at times
_LINE_BYTES = 1 << 18
_WAITING_BYTES = 1 << 22  # that the other side does not take
_READ_BYTES = 1 << 16
_ENDED = "its supervisor has ended"


class PeerGone(Exception):  # noqa: N818  (what happened, caught by who watches the connection)
    """The other side has gone, or is not one of ours.

    Attributes:
        silent: it may still live, behind a link that is cut.
    """

    def __init__(self, why: str, *, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent

    @classmethod
    def after(cls, error: OSError) -> PeerGone:
        """Tell the death of a process, whose connections the kernel closes, from the loss of the way to it."""
        if isinstance(error, (ConnectionResetError, BrokenPipeError)):
            return cls(_ENDED)
        return cls(f"the connection broke ({error.strerror})", silent=True)


class Peer:
    """A socket that moves lines of bounded length.

    Args:
        connected: taken over.

    Attributes:
        addresses: of this side, and of the other one.
        begun_s: when it was made, monotonic clock.
        heard_s: when the other side was last heard.
        spoken_s: when something was last sent.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)  # noqa: FBT003
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._in, self._out = bytearray(), bytearray()
        try:
            self.addresses = _plain(connected.getsockname()[0]), _plain(connected.getpeername()[0])
        except OSError:  # it has gone already, as the first read will tell
            self.addresses = ("", "")
        self.begun_s = self.heard_s = self.spoken_s = time.monotonic()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def read(self) -> list[bytes]:
        """Return the whole lines that have come.

        Raises:
            PeerGone: the other side has closed, or sends what is no line of ours.
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
            raise PeerGone("it sends lines without end")
        self._in = bytearray(rest)
        return lines

    def hear(self) -> None:
        """Note that the other side has shown itself to be one of ours, and alive."""
        self.heard_s = time.monotonic()

    def write(self, line: bytes) -> None:
        """Send a line, now or with `flush`.

        Raises:
            PeerGone: the connection is broken, or the other side takes nothing.
        """
        if len(self._out) > _WAITING_BYTES:
            raise PeerGone("it reads nothing")
        self._out += line
        self.spoken_s = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send what waits.

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
