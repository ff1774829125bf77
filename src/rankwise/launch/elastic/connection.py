"""One connection between a node and the rendezvous: authenticated messages, one per line, in the event loop.

The rendezvous greets first, then the node; each greeting holds a nonce. After that every line is a message with an
HMAC, whose key comes from the token, which is never sent, and from both nonces. A line is valid once, in its position
and direction.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from rankwise.errors import LaunchError
from rankwise.launch.local.loop import Loop

_RENDEZVOUS = b"rankwise-rendezvous-1 "  # first line of a rendezvous, followed by its nonce
_NODE = b"rankwise-node-1 "  # the node's answer, followed by its nonce
_REFUSED = b"refused-token"
_NONCE_BYTES = 64
_TICK_S = 0.25
_BEAT_S = 1.0
_SILENT_S = 10.0  # heartbeats come every second, later on a busy machine
_LINE_BYTES = 1 << 18
_WAITING_BYTES = 1 << 22  # unsent bytes beyond which the other side counts as lost
_READ_BYTES = 1 << 16
_ENDED = "its supervisor has ended"


class ConnectionLost(Exception):  # noqa: N818  (what happened, caught by who watches the connection)
    """The other side is gone, or does not speak this protocol.

    Attributes:
        silent: whether it may still be alive, behind a network split.
    """

    def __init__(self, why: str, *, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent

    @classmethod
    def after(cls, error: OSError) -> ConnectionLost:
        """Distinguish the end of the other process, whose kernel closes the connection, from a lost network path."""
        if isinstance(error, (ConnectionResetError, BrokenPipeError)):
            return cls(_ENDED)
        return cls(f"the connection broke ({error.strerror})", silent=True)


class NotAuthenticated(ConnectionLost):
    """The other side sent a line that does not prove that it has the token.

    Attributes:
        what: what a node tells its user, with "{where}" for the name of the other side.
        greeted: whether it has sent a valid greeting before.
    """

    def __init__(self, what: str, *, greeted: bool) -> None:
        super().__init__("its messages are not authenticated correctly")
        self.what, self.greeted = what, greeted


class Connection:
    """A non-blocking socket for messages, read in an event loop.

    Args:
        connected: connected socket; this object owns it.
        token: the secret that both sides know.
        loop: the event loop.
        obey: called with each message, except heartbeats; ConnectionLost from it closes the connection.
        ended: called once the connection is lost, unless by `close`.
        first: returns the first message of a node; None: this is the side of the rendezvous, which calls `tick`.

    Attributes:
        addresses: address of this side and of the other side.
        begun_s: when it was created, monotonic clock.
        lost: why the connection has ended, "" while it is open.
    """

    def __init__(
        self,
        connected: socket.socket,
        token: str,
        loop: Loop,
        *,
        obey: Callable[[dict[str, Any]], object],
        ended: Callable[[ConnectionLost], object],
        first: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        connected.setblocking(False)  # noqa: FBT003
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._token, self._loop, self._first = connected, token, loop, first
        self._obey, self._ended, self.lost = obey, ended, ""
        self._in, self._out = bytearray(), bytearray()
        self._failed: ConnectionLost | None = None  # why nothing can be sent any more
        try:
            ends = connected.getsockname(), connected.getpeername()
            self.addresses = tuple(str(end[0]).removeprefix("::ffff:") for end in ends)
        except OSError:  # the other side is gone, as the first read will show
            self.addresses = ("", "")
        self.begun_s = self._heard_s = self._spoken_s = self._ticked_s = time.monotonic()
        self._ours, self._theirs = ("rendezvous", "node") if first is None else ("node", "rendezvous")
        self._nonce = secrets.token_hex(16)
        self._key = b""  # empty until the other side has greeted
        self._num_sent = self._num_read = 0
        loop.watch(connected.fileno(), self._read)
        if first is None:
            self._write(_RENDEZVOUS + self._nonce.encode() + b"\n")
        else:
            loop.every(_TICK_S, self.tick)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, now or with `tick`; do nothing before the other side has greeted, and after the end."""
        if self._key and not self.lost:
            text = json.dumps(message)
            code = self._code(self._ours, self._num_sent, text)
            self._num_sent += 1
            self._write(f"{code} {text}\n".encode())

    def tick(self) -> None:
        """Send what waits, and a heartbeat if it is due; the connection is lost if the other side is silent."""
        now = time.monotonic()
        if now > self._ticked_s + _SILENT_S / 2:
            self._heard_s = now  # this process was suspended or got no CPU time, not the other side
        self._ticked_s = now
        if self._failed is not None:
            self._lose(self._failed)
        elif now > self._heard_s + _SILENT_S:
            why = f"nothing heard from it for {_SILENT_S:g} s (machine or link is down)"
            self._lose(ConnectionLost(why, silent=True))
        elif now > self._spoken_s + _BEAT_S:
            self.send({"kind": "beat"})
        else:
            self._flush()

    def close(self, why: str = "this node has left") -> None:
        """Close the connection; a second call does nothing."""
        if not self.lost:
            self.lost = why
            self._loop.remove_timer(self.tick)
            self._loop.remove(self._socket.fileno())
            self._socket.close()

    def _lose(self, lost: ConnectionLost) -> None:
        self.close(str(lost))
        self._ended(lost)

    def _read(self) -> None:
        try:
            for line in self._lines():
                if not self._key:
                    self._meet(line)
                elif (message := self._message(line)).get("kind") != "beat":
                    self._obey(message)
                if self.lost:
                    return  # closed meanwhile
        except ConnectionLost as lost:
            self._lose(lost)

    def _lines(self) -> list[bytes]:
        """Return the complete lines that have arrived."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionLost.after(error) from error
        if not data:
            raise ConnectionLost(_ENDED)
        self._in += data
        *lines, rest = bytes(self._in).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise ConnectionLost("it sent a line that is too long")
        self._in = bytearray(rest)
        return lines

    def _meet(self, line: bytes) -> None:
        """Read the other side's greeting; a node then sends its own, and its first message."""
        greeting = _NODE if self._first is None else _RENDEZVOUS
        if not line.startswith(greeting) or len(line) > len(greeting) + _NONCE_BYTES:
            another = line.startswith(greeting.rpartition(b"-")[0])
            what = "a rendezvous of another version of rankwise" if another else "not a rendezvous of rankwise"
            raise NotAuthenticated(f"{{where}} answers, but it is {what}; it sends {line[:60]!r}", greeted=False)
        theirs = line[len(greeting) :].decode(errors="replace")
        nonces = f"{self._nonce} {theirs}" if self._first is None else f"{theirs} {self._nonce}"
        self._key = hmac.digest(self._token.encode(), f"rankwise rendezvous {nonces}".encode(), "sha256")
        if self._first is not None:
            self._write(_NODE + self._nonce.encode() + b"\n")
            self.send(self._first())

    def _message(self, line: bytes) -> dict[str, Any]:
        if line.startswith(_REFUSED):
            raise NotAuthenticated(
                "the rendezvous at {where} has a different token: give all nodes the same token, with RANKWISE_TOKEN, "
                "--token-file or ~/.config/rankwise/token",
                greeted=True,
            )
        code, _, text = line.decode(errors="replace").partition(" ")
        message: Any = None
        if hmac.compare_digest(code.encode(), self._code(self._theirs, self._num_read, text).encode()):
            with contextlib.suppress(json.JSONDecodeError):
                message = json.loads(text)
        if not isinstance(message, dict):
            if self._first is None:
                self._write(_REFUSED + b"\n")
            raise NotAuthenticated("{where} sends messages that are not authenticated with our token", greeted=True)
        self._num_read += 1
        self._heard_s = time.monotonic()
        return message

    def _code(self, side: str, number: int, text: str) -> str:
        return hmac.new(self._key, f"{side} {number} {text}".encode(), "sha256").hexdigest()

    def _write(self, line: bytes) -> None:
        if len(self._out) > _WAITING_BYTES:
            self._failed = ConnectionLost("it does not read our messages")
        else:
            self._out += line
            self._spoken_s = time.monotonic()
            self._flush()

    def _flush(self) -> None:
        # keep an error for later: who sends may be in the middle of a decision about other nodes
        try:
            while self._out and self._failed is None:
                del self._out[: self._socket.send(self._out)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._failed = ConnectionLost.after(error)


class Client(Connection):
    """A node's side of its connection to a rendezvous.

    `first` returns its first message, once the rendezvous has greeted; `ended` is called when the rendezvous is lost or
    `error` is set, unless by `close`.

    Attributes:
        error: why this node cannot take part: the other side is no rendezvous of this run, or it refuses this node.
        silent: whether it was lost because it was silent; then it may still be alive.
        welcome: whether it has accepted this node.
    """

    def __init__(
        self,
        connected: socket.socket,
        host: str,
        token: str,
        loop: Loop,
        first: Callable[[], Mapping[str, Any]],
        *,
        obey: Callable[[dict[str, Any]], object],
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self.error: LaunchError | None = None
        self.silent = self.welcome = False
        self.host, self._handle, self._notify = host, obey, ended
        super().__init__(connected, token, loop, obey=self._receive, ended=self._end, first=first)

    def _receive(self, message: dict[str, Any]) -> None:
        if message.get("kind") == "refused":
            where = f"{self.host} ({self.addresses[1]})"
            self.error = LaunchError(f"the rendezvous at {where} refuses this node: {message.get('why')}")
            raise ConnectionLost("it refuses this node")
        if message.get("kind") == "welcome":
            self.welcome = True
        else:
            self._handle(message)

    def _end(self, lost: ConnectionLost) -> None:
        if isinstance(lost, NotAuthenticated):
            self.error = LaunchError(lost.what.replace("{where}", f"{self.host} ({self.addresses[1]})"))
        self.silent = lost.silent
        self._notify()
