"""Parse NCCL's logs with NCCL_DEBUG=INFO: interface, network, transport and channels of each process.

The lines change from version to version. The formats parsed here are those of NCCL 2.4 to 2.27 as quoted in public
threads: NVIDIA/nccl issues 226, 302, 367, 671, 743, 810, 952, 1189, 1267 and 1358, NVIDIA/nccl-tests issue 188.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankwise.errors import ConfigError

# "host:pid:thread [device] NCCL INFO text", after an optional time or launcher prefix; WARN lines may have a place
_LINE = re.compile(
    r"(?:^|\s|\])(?P<host>[^\s:\[\]]+):(?P<pid>\d+):\d+ \[-?\d+\] (?:\S+:\d+ )?NCCL (?P<level>INFO|WARN) (?P<text>.*)"
)
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+\S*)")
_COMM = re.compile(r"\brank (\d+) n[rR]anks (\d+)\b")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d+\])?(\S+?):(.+?)<\d+>")
_NETWORK = re.compile(r"Using network (\S+)")
_IB_DEVICES = re.compile(r"NET/IB ?: Using (.*?)(?:\s*(?:\[RO\])?\s*; OOB|$)")
_SOCKETS = re.compile(r"NET/Socket ?: Using (.*)")
_VARIABLE = re.compile(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?$")
_RING = re.compile(r"Channel \d+/(\d+) ?:\s+\d+(?:\s+\d+)*\s*$")
_WAY = re.compile(r"(?:Channel|Ring) (\d+)(?:/\d+)? ?: (\d+)\S* -> (\d+)\S* (?:\[(?:send|receive)\] )?via (.+)")
_MOST_WARNINGS = 50


@dataclass(slots=True)
class Process:
    """The log of one process.

    Attributes:
        host: host name in the log.
        pid: process id.
        version: NCCL's version, "" if not logged: often only one process of a job logs it.
        ranks: (rank, number of ranks) of each communicator, in order.
        completed: number of communicators with a completed initialisation.
        interface: interface of the bootstrap, with its address.
        network: "IB", "Socket" or the name of a plugin.
        ib_devices: devices found by NET/IB; None: it did not search, or did not log.
        sockets: interfaces of NET/Socket.
        variables: environment variables that NCCL logged.
        channels: number of channels of the largest communicator, 0 if not logged.
        ways: number of channels of each (rank, other, transport).
        rings: whether it logged that all rings are connected; trees too.
        warnings: its WARN lines.
    """

    host: str
    pid: int
    version: str = ""
    ranks: list[tuple[int, int]] = field(default_factory=list)
    completed: int = 0
    interface: tuple[str, str] | None = None
    network: str = ""
    ib_devices: tuple[str, ...] | None = None
    sockets: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    channels: int = 0
    ways: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    rings: bool = False
    trees: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return rank, host and process as text, without the rank if it was not logged."""
        place = f"host {self.host}, process {self.pid}"
        return f"rank {self.rank} ({place})" if self.ranks else place

    @property
    def rank(self) -> int | None:
        """Return the rank in its largest communicator."""
        return max(self.ranks, key=lambda pair: pair[1])[0] if self.ranks else None

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of its largest communicator."""
        return max((size for _, size in self.ranks), default=0)

    def add_line(self, level: str, text: str) -> None:
        """Parse one line."""
        if level == "WARN":
            if len(self.warnings) < _MOST_WARNINGS:
                self.warnings.append(text.strip())
            return
        if found := _VERSION.search(text):
            self.version = found[1]
        elif found := _WAY.search(text):
            self.ways[int(found[2]), int(found[3]), _transport(found[4])] += 1
            self.channels = max(self.channels, int(found[1]) + 1)
        elif found := _RING.search(text):
            self.channels = max(self.channels, int(found[1]))
        elif found := _COMM.search(text):
            pair = int(found[1]), int(found[2])
            self.ranks += [] if pair in self.ranks else [pair]
            self.completed += "Init COMPLETE" in text
        elif found := _VARIABLE.search(text):
            self.variables[found[1]] = found[2]
        else:
            self._add_network_line(text)

    def _add_network_line(self, text: str) -> None:
        if found := _BOOTSTRAP.search(text):
            self.interface = found[1], found[2]
        elif found := _NETWORK.search(text):
            self.network = found[1]
        elif "NET/IB" in text and "No device found" in text:
            self.ib_devices = ()
        elif found := _IB_DEVICES.search(text):
            self.ib_devices = tuple(re.sub(r"^\[\d+\]", "", word) for word in found[1].split() if ":" in word)
        elif found := _SOCKETS.search(text):
            self.sockets = found[1]
        self.rings |= "Connected all rings" in text
        self.trees |= "Connected all trees" in text


def _transport(told: str) -> str:
    """Return "P2P", "SHM", "NET/IB", "NET/IB/GDRDMA", "NET/Socket", or "NET/" and a plugin."""
    if told.startswith("NET/"):
        name = "/".join(told.split(maxsplit=1)[0].split("/")[:2])
        return f"{name}/GDRDMA" if "GDRDMA" in told else name
    if told.startswith("SHM") or "shared memory" in told:
        return "SHM"
    return told.split("/", maxsplit=1)[0].split(maxsplit=1)[0]


def find_logs(words: Sequence[str]) -> list[Path]:
    """Return the matching files; %h and %p of NCCL_DEBUG_FILE match anything.

    Raises:
        ConfigError: a word matches no file.
    """
    found: list[Path] = []
    for word in words:
        pattern = re.sub(r"%[hp]", "*", glob.escape(word))
        paths = [Path(path) for path in sorted(glob.glob(pattern))] if pattern != word else [Path(word)]  # noqa: PTH207
        paths = [path for path in paths if path.is_file()]
        if not paths:
            raise ConfigError(
                f"--nccl-log needs files that NCCL or a job has written, found none for {word!r} in {Path.cwd()}"
            )
        found += paths
    return list(dict.fromkeys(found))


def read_logs(paths: Iterable[Path]) -> list[Process]:
    """Read the logs of one job: one file per process or for all; other lines are ignored.

    Raises:
        ConfigError: a file cannot be read.
    """
    processes: dict[tuple[str, int], Process] = {}
    for path in paths:
        before: Process | None = None  # some versions log their version without the process
        loose = ""
        try:
            with path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    found = _LINE.search(line)
                    if found is None:
                        if said := _VERSION.search(line):
                            loose = said[1]
                            if before is not None:
                                before.version = before.version or loose
                        continue
                    key = found["host"], int(found["pid"])
                    before = processes.setdefault(key, Process(*key))
                    before.add_line(found["level"], found["text"])
        except OSError as error:
            raise ConfigError(f"--nccl-log {path}: {error.strerror}") from error
        if before is not None and loose and not before.version:
            before.version = loose
    return sorted(processes.values(), key=lambda made: (made.rank is None, made.rank or 0, made.host, made.pid))
