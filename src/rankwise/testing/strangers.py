"""Traffic of foreign clients on a run's ports: garbage, greetings of other protocols, silent connections."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import random
import socket
import struct
from collections.abc import Collection
from pathlib import Path

from rankwise.world.rendezvous.protocol import HELLOS

_SILENT = 20  # silent connections per call of `throw_garbage`
_TIMEOUT_S = 10.0
_LISTENS = "0A"  # the state LISTEN in the kernel's tables
_STORE_GREETING = b"\x00" + struct.pack("<I", 0x3C85F7CE)  # the greeting of torch's store


def listening(pids: Collection[int] | None = None, *, of: int | str = "self") -> set[tuple[str, int]]:
    """Return the (address, port) pairs on which processes of a network namespace listen; Linux only.

    Args:
        pids: the processes; None: all processes of the namespace, of any user.
        of: a process of the namespace.
    """
    inodes = None if pids is None else _sockets(pids)
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{of}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            waits = fields[3] == _LISTENS if table.startswith("tcp") else fields[2].endswith(":0000")
            if waits and (inodes is None or fields[9] in inodes):
                digits, _, port = fields[1].partition(":")
                words = struct.unpack(f">{len(digits) // 8}I", bytes.fromhex(digits))
                found.add((str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)))
    return found


def _sockets(pids: Collection[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    name = str(fd.readlink())
                    if name.startswith("socket:["):
                        found.add(name[8:-1])
    return found


def throw_garbage(address: str, port: int, held: list[socket.socket], seed: int) -> None:
    """Send unexpected data in several ways; some connections stay open and silent.

    Args:
        address: address to connect to.
        port: port to connect to.
        held: list to which the open connections are appended.
        seed: seed of the random bytes.
    """
    rng = random.Random(seed)  # noqa: S311  (no secret)
    sayings = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(32),  # TLS: a client's hello
        b"\xff" * 64,
        b"\x00" * 4096,
        struct.pack("<Q", 1 << 62) * 8,
        _STORE_GREETING + b"\x01" + struct.pack("<Q", 1 << 60),  # followed by a length
        json.dumps(["set", HELLOS, "1000000000"]).encode() + b"\n[[[[[[",
        *(rng.randbytes(1 << power) for power in (0, 3, 10, 17)),
    ]
    for saying in sayings:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=_TIMEOUT_S) as stranger:
            stranger.settimeout(2)
            stranger.sendall(saying)
            if rng.random() < 0.5:  # close without a shutdown
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(_SILENT):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((address, port), timeout=_TIMEOUT_S))
