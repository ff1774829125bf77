"""Check the hosts of a job: does each reach the rendezvous and each other host, and do their clocks agree.

The ranks exchange their results over the rendezvous store only, which needs a connection to rank 0's host and no
other. gloo and NCCL, which need connections between all pairs, are tested later.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankwise._process.place import Place, loopback_address
from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.hardware import network

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
_TRY_S = 5.0  # limit for one connection
_SKEW_S = 1.0
_SHOWN = 8


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


def check_rendezvous(place: Place, deadline: float) -> Check:
    """Wait until the rendezvous address accepts connections; rank 0, which serves it, only resolves the name.

    Args:
        place: this rank's.
        deadline: of `time.monotonic`; until then retry after a refusal, as rank 0 may be late.
    """
    name, host, port = "rendezvous", place.master_addr, place.master_port
    serves = place.rank == 0 and not place.agent_store
    while True:
        left = deadline - time.monotonic()
        found = _resolved(host) if serves else reach(host, port, max(0.5, min(_TRY_S, left)))
        if found.kind == "answers" or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    who = f"rank {place.rank} on {socket.gethostname()}"
    if found.kind != "answers":
        mend = f"{MENDS[found.kind]} (MASTER_ADDR={host}, MASTER_PORT={port})"
        return failed("network", name, f"{who}: {found.text}", mend)
    if serves:
        return passed("network", name, f"{host} resolves on rank 0, which serves port {port}")
    if banner := read_banner(host, port):
        text = f"{who}: another service answers at {host}:{port} with {banner!r}"
        return failed("network", name, text, f"{MENDS['another']} (MASTER_PORT)")
    return passed("network", name, f"{who}: {found.text}")


def _resolved(host: str) -> ProbeResult:
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return ProbeResult(kind="name", text=f"{host} cannot be resolved here ({error.strerror or error})")
    return ProbeResult(kind="answers", text="resolves")


def data_addresses(environ: Mapping[str, str], *, on_one_machine: bool = False) -> dict[str, str]:
    """Return the addresses on which ranks of this host will listen, by library.

    gloo takes the interface from its variable, else the address of the host name, else loopback. NCCL is included only
    if its variable names an interface: otherwise it has its own order.
    """
    interfaces: Mapping[str, list[str]] = network()["interfaces"]
    if named := environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
        found = {f"gloo on {named}": (interfaces.get(named) or [""])[0]}
    elif on_one_machine:
        found = {"gloo on loopback": "127.0.0.1"}
    else:
        own = ""
        with contextlib.suppress(OSError):
            own = str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
        found = {"gloo by the host's name": own or "127.0.0.1"}
    wish = environ.get("NCCL_SOCKET_IFNAME", "")
    if wish and not wish.startswith("^"):
        exact, wanted = wish.startswith("="), wish.removeprefix("=").split(",")
        for name, addresses in interfaces.items():
            if addresses and any(name == w if exact else name.startswith(w) for w in wanted):
                found[f"NCCL on {name}"] = addresses[0]
                break
    return {who: address for who, address in found.items() if address}


def exchange(store: Any, place: Place, deadline: float, what: str, value: Any) -> dict[int, Any]:
    """Send a value of JSON over the store, and return the values of all ranks that sent one in time, by rank.

    Args:
        store: torch's store or one with the same `set`, `get`, `check`.
        place: this rank's place.
        deadline: of `time.monotonic`, until which ranks wait for each other.
        what: name of the exchange.
        value: this rank's value.
    """
    prefix = f"rankwise/doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    keys = [f"{prefix}/{what}/{rank}" for rank in range(place.world_size)]
    store.set(keys[place.rank], json.dumps(value))
    while not store.check(keys) and time.monotonic() < deadline:
        time.sleep(0.05)
    return {rank: json.loads(store.get(key)) for rank, key in enumerate(keys) if store.check([key])}


@contextlib.contextmanager
def listen(environ: Mapping[str, str], *, on_one_machine: bool) -> Iterator[list[dict[str, Any]]]:
    """Listen on the data addresses; yield the facts that other hosts need to connect."""
    with contextlib.ExitStack() as stack:
        listeners = []
        for who, address in data_addresses(environ, on_one_machine=on_one_machine).items():
            with contextlib.suppress(OSError):  # the other hosts report what they cannot reach
                port, token = stack.enter_context(listening(address))
                listeners.append({"who": who, "address": address, "port": port, "token": token})
        yield listeners


def probe_other_hosts(infos: Sequence[Mapping[str, Any]], rank: int) -> list[dict[str, Any]]:
    """Return how a rank's host reaches the others; only for the host's first rank, [] for other ranks."""
    leaders = first_ranks(infos)
    if rank not in leaders:
        return []
    found = []
    for other in leaders:
        info = infos[other]
        if other == rank:
            continue
        for listener in info["listeners"]:
            address = str(listener["address"])
            if loopback_address(address):
                text = f"{info['host']} listens on {address}, which no other machine can reach ({listener['who']})"
                found.append({"to": other, "kind": "loopback", "text": text})
                continue
            seen = probe_listener(address, int(listener["port"]), str(listener["token"]), _TRY_S)
            found.append(
                {"to": other, "kind": seen.kind, "text": f"{seen.text} ({listener['who']})", "offset_s": seen.offset_s,
                 "error_s": seen.error_s}
            )  # fmt: skip
        if not info["listeners"]:
            text = f"{info['host']} has no address to listen on: {info['interface']}"
            found.append({"to": other, "kind": "loopback", "text": text})
        name = _resolved(str(info["host"]))
        if name.kind != "answers":
            found.append({"to": other, "kind": "name", "text": name.text})
    return found


def first_ranks(infos: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the first rank of each host; hosts differ by name, kernel boot or network."""
    seen: dict[tuple[str, ...], int] = {}
    for rank, info in enumerate(infos):
        seen.setdefault((str(info["host"]), str(info["boot"]), str(info.get("net", ""))), rank)
    return sorted(seen.values())


def check_pairs(infos: Sequence[Mapping[str, Any]], seen: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[Check]:
    """Check which hosts do not reach which others, and why; unresolved names only warn, as ranks use addresses.

    Args:
        infos: infos of all ranks.
        seen: results of `probe_other_hosts`, by rank.
    """
    leaders = first_ranks(infos)
    name = "every pair of hosts"
    if len(leaders) < 2:
        return [not_run("network", name, "all ranks are on one machine")]
    bad = [(rank, look) for rank in leaders for look in seen.get(rank, ()) if look["kind"] not in {"answers", "name"}]
    lost = [(rank, look) for rank in leaders for look in seen.get(rank, ()) if look["kind"] == "name"]
    checks = []
    for rank, look in bad[:_SHOWN]:
        pair = f"{infos[rank]['host']} to {infos[look['to']]['host']}"
        mend = MENDS.get(look["kind"]) or (
            f"on {infos[look['to']]['host']}, set GLOO_SOCKET_IFNAME to the interface that the others can reach, or "
            "make its name resolve to that address"
        )
        checks.append(failed("network", pair, f"{look['kind']}: {look['text']}", mend))
    if len(bad) > _SHOWN:
        checks.append(failed("network", name, f"{len(bad) - _SHOWN} more pairs cannot reach each other", "as above"))
    if not bad:
        count = len(leaders) * (len(leaders) - 1)
        ways = sorted({listener["who"] for rank in leaders for listener in infos[rank]["listeners"]})
        checks.append(
            passed("network", name, f"{count} connections between {len(leaders)} hosts work, {', '.join(ways)}")
        )
    if lost:
        told = "; ".join(f"{infos[rank]['host']}: {look['text']}" for rank, look in lost[:_SHOWN])
        checks.append(warned("network", "names of the hosts", told, MENDS["name"]))
    return checks


def check_clocks(infos: Sequence[Mapping[str, Any]], seen: Mapping[int, Sequence[Mapping[str, Any]]]) -> Check:
    """Check the clock differences of hosts, measured for every pair."""
    pairs = [
        (abs(look["offset_s"]) - look["error_s"], look, rank)
        for rank, results in seen.items()
        for look in results
        if look["kind"] == "answers"
    ]
    if not pairs:
        return not_run("network", "clocks", "no two hosts have exchanged times")
    surely, look, rank = max(pairs, key=lambda pair: pair[0])
    pair = f"{infos[look['to']]['host']} is {look['offset_s']:+.3f} s from {infos[rank]['host']}"
    told = f"{pair}, within {look['error_s']:.3f} s"
    if surely > _SKEW_S:
        mend = "synchronise the clocks (chrony, ntpd): logs, leases and time-outs compare times"
        return warned("network", "clocks", told, mend)
    return passed("network", "clocks", f"at most {told}")
