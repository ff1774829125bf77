"""Test a connection to an address and port, and find the cause of a failure: name, refusal, filter, other service."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["answers", "name", "refused", "filtered", "no route", "another"]
MENDS = {
    "name": "add the name to DNS or to /etc/hosts of this machine, or use an address instead",
    "refused": (
        "start the program that should listen there, or correct the address and port; a firewall may also refuse"
    ),
    "filtered": "open the port in firewalls and security groups: the ranks of torch use ports that the system chooses",
    "no route": "no network leads there from this machine: use an interface on a network that both machines share "
    "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)",
    "another": "choose another port, or stop the service that uses it",
}
_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL, errno.EINVAL}
_MOST_BYTES = 200
_WORD = b"rankwise doctor "


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of a connection.

    Attributes:
        kind: "answers", or the obstacle; "another": another service answers.
        text: the observation, in words.
        offset_s: remote clock minus local clock, seconds; only for "answers" of `listening`.
        error_s: maximum error of `offset_s`: half of the round-trip time.
    """

    kind: Kind
    text: str
    offset_s: float = 0.0
    error_s: float = 0.0


def reach(host: str, port: int, timeout_s: float) -> ProbeResult:
    """Connect once and return the result; nothing is sent."""
    made = _connect(host, port, timeout_s)
    if isinstance(made, ProbeResult):
        return made
    made.close()
    return ProbeResult(kind="answers", text=f"{host}:{port} accepts connections")


def _connect(host: str, port: int, timeout_s: float) -> socket.socket | ProbeResult:
    where = f"{host}:{port}"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return ProbeResult(kind="name", text=f"{host} cannot be resolved here ({error.strerror or error})")
    tried: ProbeResult | None = None
    for family, kind, protocol, _, address in addresses:
        found = socket.socket(family, kind, protocol)
        found.settimeout(timeout_s / len(addresses))
        try:
            found.connect(address)
        except OSError as error:
            found.close()
            tried = tried or _why_not(error, where, str(address[0]), timeout_s)
            continue
        if found.getsockname() != found.getpeername():  # else nobody listened, and it connected to itself
            return found
        found.close()
        tried = ProbeResult(kind="refused", text=f"{where} refuses the connection: nothing listens there")
    return tried or ProbeResult(kind="name", text=f"{host} has no address")


def _why_not(error: OSError, where: str, address: str, timeout_s: float) -> ProbeResult:
    seen = where if where.startswith(address) else f"{where} ({address})"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return ProbeResult(
            kind="filtered", text=f"{seen} did not answer in {timeout_s:g} s: filtered, or no such machine"
        )
    if isinstance(error, ConnectionRefusedError | ConnectionResetError):
        return ProbeResult(
            kind="refused",
            text=f"{seen} refuses the connection: the machine answers, but nothing listens on this port",
        )
    if error.errno in _NO_ROUTE:
        return ProbeResult(kind="no route", text=f"{seen}: {error.strerror}")
    return ProbeResult(kind="no route", text=f"{seen}: {error}")


def read_banner(host: str, port: int, timeout_s: float = 1.0) -> str:
    """Return a service's greeting, as sent by ssh, mail and databases; torch's store sends none."""
    made = _connect(host, port, timeout_s)
    if isinstance(made, ProbeResult):
        return ""
    with made:
        made.settimeout(timeout_s)
        try:
            return made.recv(_MOST_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""


class _Answer(socketserver.StreamRequestHandler):
    timeout = 10.0  # for a silent client, as each occupies a thread

    def handle(self) -> None:
        asked = self.rfile.readline(_MOST_BYTES)
        if asked == _WORD + self.server.token.encode() + b"\n":  # type: ignore[attr-defined]
            self.wfile.write(asked.rstrip() + f" {time.time():.6f}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    # A silent client must not delay the end of the doctor. All ranks of a large job may connect at the same moment,
    # before a thread has accepted the first.
    daemon_threads, block_on_close, request_queue_size = True, False, 128
    token = ""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that connect and leave."""


@contextlib.contextmanager
def listening(address: str) -> Iterator[tuple[int, str]]:
    """Listen on an address of this machine, and send its time to clients that know the token; yield port and token.

    Raises:
        OSError: it is not an address of this machine.
    """
    kind = type("_Server6", (_Server,), {"address_family": socket.AF_INET6}) if ":" in address else _Server
    server = kind((address, 0), _Answer)
    server.token = secrets.token_hex(8)
    # A daemon thread, although the end waits for it: Ctrl-C may end that wait, and then the program should end.
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1]), server.token
    finally:
        server.shutdown()  # waits until the loop has left its select, which would fail on a closed socket
        server.server_close()
        thread.join()


def probe_listener(address: str, port: int, token: str, timeout_s: float) -> ProbeResult:
    """Connect to a machine that is `listening` and compare clocks: it reads its time in the middle of the exchange."""
    made = _connect(address, port, timeout_s)
    if isinstance(made, ProbeResult):
        return made
    word = _WORD + token.encode()
    with made, made.makefile("rb") as answers:
        made.settimeout(timeout_s)
        asked = time.time()
        try:
            made.sendall(word + b"\n")
            said = answers.readline(_MOST_BYTES)
        except OSError as error:
            said = f"nothing ({error})".encode()
        took = time.time() - asked
    if not said.startswith(word + b" "):
        text = f"another service answers at {address}:{port}: {said.decode(errors='replace').strip() or 'it closed'}"
        return ProbeResult(kind="another", text=text)
    offset = float(said.rpartition(b" ")[2]) - (asked + took / 2)
    return ProbeResult(kind="answers", text=f"{took * 1e3:.1f} ms", offset_s=offset, error_s=took / 2)
