"""A small key-value store over TCP for ranks that meet without torch; rank 0 serves it.

It has only the calls that `rendezvous` needs, with the names and meaning of torch's stores, and `under`. A request is
one line of JSON, and so is its answer.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rankwise._process.addresses import family_of
from rankwise._process.place import Place
from rankwise.errors import WorldError
from rankwise.world.rendezvous.addresses import listening_address, store_error

_RETRY_S = 0.05
_GRACE_S = 10.0  # the server answers when the time is up; a dead machine does not, so the client waits so much longer


class KeyValues:
    """The keys and their values. Thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()
        # waiters by key: waking all waiters for every key would cost rank 0 time quadratic in the ranks
        self._waiting: dict[str, list[threading.Event]] = {}

    def set(self, key: str, value: str) -> None:
        """Write a value under a key."""
        with self._lock:
            self._put(key, value)

    def _put(self, key: str, value: str) -> None:
        self._values[key] = value
        for waiting in self._waiting.pop(key, ()):
            waiting.set()

    def get(self, key: str) -> str:
        """Return the value of an existing key."""
        return self._values[key]

    def under(self, folder: str) -> list[tuple[str, str]]:
        """Return the keys that begin with a folder's name and a slash, and their values."""
        with self._lock:
            return [(key, value) for key, value in self._values.items() if key.startswith(f"{folder}/")]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return it."""
        with self._lock:
            count = int(self._values.get(key, "0")) + amount
            self._put(key, str(count))
            return count

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> None:
        """Delete a key if it exists."""
        with self._lock:
            self._values.pop(key, None)

    def wait(self, keys: list[str], patience_s: float) -> None:
        """Wait until all keys exist.

        Raises:
            TimeoutError: a key did not appear in time.
        """
        deadline = time.monotonic() + patience_s
        for key in keys:  # one by one, because an existing key stays
            # Check and register under one lock: a writer comes before the check, or finds the event.
            with self._lock:
                if key in self._values:
                    continue
                event = threading.Event()
                self._waiting.setdefault(key, []).append(event)
            if not event.wait(max(0.0, deadline - time.monotonic())):
                self._remove_waiter(key, event)
                raise TimeoutError(f"{', '.join(keys)} did not arrive within {patience_s:g} s")

    def _remove_waiter(self, key: str, event: threading.Event) -> None:
        with self._lock:
            waiting = self._waiting.get(key, [])
            if event in waiting:  # else the key was written just now, and its list is gone
                waiting.remove(event)
            if not waiting:
                self._waiting.pop(key, None)


class _Connection(socketserver.StreamRequestHandler):
    """One rank's connection."""

    server: StoreServer
    key_at_disconnect: str = ""

    def handle(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the rank has ended: its supervisor reports why
                for line in self.rfile:
                    try:
                        request = json.loads(line)
                    except ValueError:  # not a rank: close the connection
                        return
                    self.wfile.write(json.dumps(self._answer(request)).encode() + b"\n")
        finally:
            if self.key_at_disconnect:
                self.server.values.set(self.key_at_disconnect, "")

    def _answer(self, request: Any) -> dict[str, Any]:
        name, *arguments = request if isinstance(request, list) and request else [""]
        if name not in ("set", "get", "under", "add", "check", "wait", "delete_key", "set_at_disconnect"):
            return {"error": f"the store has no {name!r}"}
        try:
            if name == "set_at_disconnect":
                (self.key_at_disconnect,) = map(str, arguments)
                return {"value": None}
            return {"value": getattr(self.server.values, name)(*arguments)}
        except (KeyError, TimeoutError, TypeError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}


class StoreServer(socketserver.ThreadingTCPServer):
    """Serves the keys and values to the ranks from a background thread.

    Args:
        host: address to listen on, see `listening_address`; for a name, all addresses.
        port: port to listen on; 0 takes a free one.

    Raises:
        OSError: the port is in use.
    """

    allow_reuse_address = True  # also allows listening on a port that the launcher holds
    # A stopped rank, or one on a dead machine, keeps its connection: neither `close` nor the end of rank 0 may wait for
    # the thread that serves it.
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int) -> None:
        self.values = KeyValues()
        where, both = listening_address(host), socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both and not where else family_of(where)
        super().__init__((where, port), _Connection)
        threading.Thread(target=self.serve_forever, args=(0.05,), name="rankwise-store", daemon=True).start()

    def server_bind(self) -> None:
        """Bind the socket, for IPv4 too."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()


class SmallStore:
    """One rank's view of the store.

    Args:
        connected: socket connected to the server.
        server: the server if this rank runs it; closed together with this view.
    """

    def __init__(self, connected: socket.socket, server: StoreServer | None = None) -> None:
        self._socket, self._server = connected, server
        self._answers = connected.makefile("rb")

    def set(self, key: str, value: str) -> None:
        """Write a value under a key."""
        self._request("set", key, value)

    def get(self, key: str) -> bytes:
        """Return the value of an existing key."""
        return str(self._request("get", key)).encode()

    def under(self, folder: str) -> list[tuple[str, bytes]]:
        """Return the keys that begin with a folder's name and a slash, and their values."""
        return [(str(key), str(value).encode()) for key, value in self._request("under", folder)]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return it."""
        return int(self._request("add", key, amount))

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""
        return bool(self._request("check", keys))

    def wait(self, keys: list[str], patience: timedelta) -> None:
        """Wait until all keys exist.

        Raises:
            OSError: a key did not appear in time, or the server is gone.
        """
        self._socket.settimeout(patience.total_seconds() + _GRACE_S)
        try:
            self._request("wait", keys, patience.total_seconds())
        finally:
            # other requests are answered at once, or the kernel reports that the server does not read
            self._socket.settimeout(None)

    def delete_key(self, key: str) -> None:
        """Delete a key if it exists."""
        self._request("delete_key", key)

    def set_at_disconnect(self, key: str) -> None:
        """Make the store write this key when this rank's connection ends, for any reason."""
        self._request("set_at_disconnect", key)

    def stop_listening(self) -> None:
        """On the rank with the server: stop accepting connections and release the port; keep open connections."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """Close the connection; on the rank with the server, close the store for all."""
        self._answers.close()
        self._socket.close()
        self.stop_listening()

    def _request(self, *request: Any) -> Any:
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._answers.readline()
        if not line:
            raise ConnectionResetError("rank 0 closed the store")
        answer = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer["value"]


@contextlib.contextmanager
def lost_store_as_error(place: Place) -> Iterator[None]:
    """Convert the loss of the store during a meeting to WorldError, for the rank at this place."""
    try:
        yield
    except OSError as error:
        raise WorldError(
            f"rank {place.rank} of {place.world_size} lost the store of rank 0 while the ranks met ({error}): look at "
            "rank 0's output: it failed or was stopped"
        ) from error


def open_small_store(place: Place, timeout: timedelta) -> SmallStore:
    """Return the ranks' store at the place's address and port; rank 0 serves it.

    Raises:
        WorldError: the port is in use, or the server could not be reached in time.
    """
    try:
        server = StoreServer(place.master_addr, place.master_port) if place.rank == 0 else None
        return SmallStore(_connect(place, timeout.total_seconds()), server)
    except OSError as error:
        raise WorldError(f"{store_error(place, timeout)} ({error})") from error


def _connect(place: Place, patience_s: float) -> socket.socket:
    """Connect; retry until rank 0 serves, as ranks start in any order."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            found = socket.create_connection((place.master_addr, place.master_port), timeout=max(1.0, patience_s))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
            continue
        if found.getsockname() == found.getpeername():  # no listener: it connected to itself
            found.close()
            continue
        found.settimeout(None)  # `wait` sets its own
        return found
