"""Hold a port for rank 0: the supervisor binds it, and the rank listens on it."""

from __future__ import annotations

import socket
import sys

from rankwise.errors import LaunchError


class HeldPort:
    """A TCP port, bound (not listening) on all addresses until the attempt ends.

    On Linux a second socket may bind and listen on the port if both sockets set SO_REUSEADDR, as torch's store does
    (both of its backends). The kernel never gives a bound port to a process that asks for a free one, so many launches
    can run side by side. Other systems do not allow the second bind: there the port is released just before the ranks
    start.

    Without a number it takes a free one. A port that is wanted `alone` is refused to a second launch: the kernel would
    give it to both until a rank listens, and the ranks of both would meet.

    Raises:
        LaunchError: the port is in use.
    """

    def __init__(self, port: int | None = None, *, alone: bool = False) -> None:
        self._claim = socket.socket(socket.AF_UNIX)
        try:
            if alone and port is not None and sys.platform == "linux":
                self._claim.bind(f"\0rankwise-port-{port}")  # a name in this network namespace, not a file
            self._socket = _bind_first(port or 0)
        except OSError as error:
            self._claim.close()
            raise LaunchError(
                f"port {port} cannot be used: {error.strerror}; leave the port out to get a free one"
            ) from error
        self.number = int(self._socket.getsockname()[1])

    def hand_over(self) -> None:
        """Let the rank bind the port: on Linux it can while the supervisor holds it, elsewhere release it."""
        if sys.platform != "linux":
            self._socket.close()

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
        self._claim.close()


def check_loopback(address: str) -> None:
    """Refuse to start ranks that cannot meet: in a sandbox without a network the loopback interface may be down.

    Args:
        address: where rank 0 will listen; nothing is checked unless it is a loopback address.

    Raises:
        LaunchError: this machine cannot connect to itself there.
    """
    if address not in ("127.0.0.1", "::1", "localhost"):
        return
    try:
        family = socket.AF_INET6 if address == "::1" else socket.AF_INET
        with socket.create_server((address, 0), family=family) as server:
            socket.create_connection(server.getsockname()[:2], timeout=10).close()
    except OSError as error:
        raise LaunchError(
            f"the ranks cannot meet at {address}: {error.strerror or error}. Bring the loopback interface up "
            "(`ip link set lo up`; sandboxes and network namespaces begin without)"
        ) from error


def _bind_first(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, port)
    except OSError:  # no IPv6 on this machine, or the port is in use: the IPv4 attempt shows which
        return _bind(socket.AF_INET, port)


def _bind(family: socket.AddressFamily, port: int) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", port))
    except OSError:
        held.close()
        raise
    return held
