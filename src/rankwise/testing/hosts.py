"""Several hosts on one Linux machine: network namespaces with own addresses and host names, connected by a bridge.

A lab, including its bridge, uses its own namespaces. So several labs do not affect each other or the machine's
network. Needs root and iproute2 (`HostLab.obstacle` returns what is missing).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ENTER = """\
hostname "$1"; mount --bind "$2/hosts" /etc/hosts
[ ! -e /etc/nsswitch.conf ] || mount --bind "$2/nsswitch" /etc/nsswitch.conf
[ ! -e /etc/resolv.conf ] || mount --bind "$2/resolv" /etc/resolv.conf
shift 2; exec "$@"
"""
_GONE_S = 20.0


class HostLab:
    """Hosts with names and addresses that reach only each other; a context manager.

    Args:
        names: their host names; each resolves all others by name, host i has the address 10.77.0.(i + 1).
        network: the first three numbers of their addresses.
        here: name of this machine if it is on their network too, as number 254; "" if it is not.

    Raises:
        RuntimeError: not possible on this machine; with the reason.
    """

    def __init__(self, names: Sequence[str], *, network: str = "10.77.0", here: str = "") -> None:
        self.names = tuple(names)
        self._network, self._here = network, here
        self._id = f"rw{secrets.token_hex(3)}"
        self._processes: list[subprocess.Popen[Any]] = []

    @staticmethod
    def obstacle() -> str:
        """Return why no lab can be created here, "" if one can."""
        if sys.platform != "linux":
            return "network namespaces exist on Linux only"
        if os.geteuid() != 0:
            return "making network namespaces needs root"
        missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
        if missing:
            return f"{', '.join(missing)} not found (packages iproute2 and util-linux)"
        tried = _run("unshare", "-n", "-m", "-u", "true")
        return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"{self._network}.{self.names.index(name) + 1}"

    def space(self, name: str) -> str:
        """Return the name of a host's network namespace."""
        return f"{self._id}n{self.names.index(name)}"

    def __enter__(self) -> Self:
        if obstacle := self.obstacle():
            raise RuntimeError(obstacle)
        self._folder = Path(tempfile.mkdtemp(prefix="rankwise-hosts-"))
        self._folder.chmod(0o755)
        known = "".join(f"{self.address(name)} {name}\n" for name in self.names)
        if self._here:
            known += f"{self._network}.254 {self._here} {socket.gethostname()}\n"
        (self._folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{known}")
        (self._folder / "nsswitch").write_text("passwd: files\ngroup: files\nhosts: files\n")
        (self._folder / "resolv").write_text("")
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        bridge = f"{self._id}b"
        if not self._here:
            _ip("netns", "add", f"{self._id}hub")
        self._hub("link", "add", bridge, "type", "bridge")
        if self._here:
            self._hub("addr", "add", f"{self._network}.254/24", "dev", bridge)
        self._hub("link", "set", bridge, "up")
        for name in self.names:
            space, port = self.space(name), self._port(name)
            _ip("netns", "add", space)
            self._hub("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._hub("link", "set", port, "master", bridge, "up")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")

    def _hub(self, *words: str) -> None:
        """Run `ip` where the bridge is."""
        _ip(*(() if self._here else ("-n", f"{self._id}hub")), *words)

    def _port(self, name: str) -> str:
        return f"{self._id}p{self.names.index(name)}"

    def command(self, name: str, *words: object) -> list[str]:
        """Return the command that runs `words` on a host; it replaces itself with them by exec."""
        # not `ip netns exec`, which remounts /sys: slurmd's cgroups are there
        net = f"--net=/run/netns/{self.space(name)}"
        enter = ["nsenter", net, "unshare", "-m", "-u", "sh", "-ec", _ENTER, "sh", name, str(self._folder)]
        return [*enter, *map(str, words)]

    def start(self, name: str, *words: object, **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a host, with the options of Popen; closing the lab kills it."""
        process = subprocess.Popen(self.command(name, *words), **options)  # noqa: S603
        self._processes.append(process)
        return process

    def run(self, name: str, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on a host until it ends, and return its result."""
        options = {"capture_output": True, "text": True, "timeout": 240, "check": False} | options
        return subprocess.run(self.command(name, *words), **options)  # noqa: S603, PLW1510

    def cut(self, name: str) -> None:
        """Disconnect a host from the network silently: packets to and from it are lost."""
        self._hub("link", "set", self._port(name), "down")

    def restore(self, name: str) -> None:
        """Reconnect a host to the network."""
        self._hub("link", "set", self._port(name), "up")

    def pids(self, name: str) -> list[int]:
        """Return the processes on a host."""
        return [int(word) for word in _run("ip", "netns", "pids", self.space(name)).stdout.split()]

    def kill_all(self, name: str) -> None:
        """Kill all processes on a host (SIGKILL), and wait until they are gone."""
        deadline = time.monotonic() + _GONE_S
        while (left := self.pids(name)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._processes:
                process.poll()
            time.sleep(0.02)

    def _remove(self) -> None:
        for name in self.names:
            self.kill_all(name)
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        # this side first: deleting its ends of the links deletes the hosts' ends, whose namespaces may live on a while
        if self._here:
            for link in (*map(self._port, self.names), f"{self._id}b"):
                _run("ip", "link", "del", link)
        else:
            _run("ip", "netns", "del", f"{self._id}hub")
        for space in map(self.space, self.names):
            _run("ip", "netns", "del", space)
        shutil.rmtree(self._folder, ignore_errors=True)


def _ip(*words: str) -> None:
    done = _run("ip", *words)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
