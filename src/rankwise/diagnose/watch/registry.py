"""The registry of a job's ranks: keys in the store of torch.distributed, read only during a standstill."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JOB = "job"  # a file beside a watched rank's vitals: the name of its job
_PREFIX = "rankwise/watch"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One watched rank.

    Attributes:
        rank: global rank.
        pid: its process id, in the process namespace of `host`.
        host: key of its machine (or container); ranks with equal keys see each other's processes and memory files.
        name: host name, for messages.
        folder: folder of its vitals.
    """

    rank: int
    pid: int
    host: str
    name: str
    folder: str


class Registry:
    """The job's store, on a separate connection, because the main thread may block in the other one.

    Args:
        store: a store of torch.distributed.
    """

    def __init__(self, store: Any) -> None:
        self._store = store.clone()
        self._appends = bool(self._store.has_extended_api())

    def enter(self, entry: Entry) -> str:
        """Register this rank; return the name of its job, which no other job on any machine has."""
        line = json.dumps(asdict(entry))
        if self._appends:
            self._store.append(f"{_PREFIX}/ranks", line + "\n")
        else:
            self._store.set(f"{_PREFIX}/rank/{entry.rank}", line)
        name = self._store.compare_set(f"{_PREFIX}/job", "", os.urandom(8).hex())  # the first rank's counts
        return str(name, "ascii")

    def entries(self, world_size: int) -> list[Entry]:
        """Return the registered ranks; the last entry of a rank counts.

        Raises:
            RuntimeError: the store does not answer (torch's own error).
        """
        if self._appends:
            text = self.read("ranks") or ""
        else:
            text = "\n".join(filter(None, (self.read(f"rank/{rank}") for rank in range(world_size))))
        found = {entry.rank: entry for entry in (Entry(**json.loads(line)) for line in text.splitlines())}
        return [found[rank] for rank in sorted(found)]

    def read(self, key: str) -> str | None:
        """Return a value, None if missing, without waiting for it."""
        full = f"{_PREFIX}/{key}"
        return self._store.get(full).decode() if self._store.check([full]) else None

    def write(self, key: str, value: str) -> None:
        """Set a value."""
        self._store.set(f"{_PREFIX}/{key}", value)


def host_key() -> str:
    """Return a key that is equal for processes that see each other: kernel, process and mount namespaces, user."""
    parts = [socket.gethostname(), str(os.geteuid())]
    if sys.platform == "linux":
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts += [os.fspath(Path(f"/proc/self/ns/{name}").readlink()) for name in ("pid", "mnt")]
    return " ".join(parts)
