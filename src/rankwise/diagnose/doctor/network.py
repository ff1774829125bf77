"""Check the hosts of a job: does each reach the rendezvous and each other host, and do their clocks agree.

The ranks exchange their results over the rendezvous store only, which needs a connection to rank 0's host and no
other. gloo and NCCL, which need connections between all pairs, are tested later.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankwise._process.place import Place, loopback_address
from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.doctor.connection import MENDS, ProbeResult, listening, probe_listener, reach, read_banner
from rankwise.diagnose.hardware import network

_TRY_S = 5.0  # limit for one connection
_SKEW_S = 1.0
_SHOWN = 8


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
