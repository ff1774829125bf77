"""This machine's hardware from the kernel and its tools: cores, GPUs, memory, disks, network; without torch."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankwise._process.addresses import address_of, interface_of, resolve
from rankwise._process.cores import group_folders
from rankwise.launch.hardware import format_numbers, num_usable_cores, num_visible_gpus, read_topology

_PROC = Path("/proc")
_QUERY = "index,name,uuid,driver_version,memory.total,memory.used,compute_cap,pci.bus_id"
_TOOL_S = 20.0
_UNLIMITED = 1 << 60  # cgroup v1 reports a value above this for "no limit"


def cpus() -> dict[str, Any]:
    """Return model, number, affinity mask, quota and NUMA nodes of the processors."""
    topology = read_topology()
    return {
        "model": _cpu_model(),
        "online": os.cpu_count(),
        "affinity": format_numbers(topology.threads),
        "usable_with_quota": num_usable_cores(),
        "numa_nodes": {str(node): format_numbers(threads) for node, threads in topology.nodes.items()},
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", (_PROC / "cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def gpus() -> dict[str, Any]:
    """Return the output of nvidia-smi, or why there is none."""
    told: dict[str, Any] = {"visible": num_visible_gpus(), "devices": []}
    rows = ask_nvidia_smi(f"--query-gpu={_QUERY}")
    if isinstance(rows, str):
        return told | {"note": rows}
    names = [name.replace(".", "_") for name in _QUERY.split(",")]
    devices = [dict(zip(names, row, strict=False)) for row in rows]
    for device in devices:
        device["numa_node"] = _numa_node(device.get("pci_bus_id", ""))
    return told | {"devices": devices}


def ask_nvidia_smi(query: str) -> list[list[str]] | str:
    """Return the rows of a query, or why there are none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "no nvidia-smi on PATH"
    try:
        done = subprocess.run(  # noqa: S603
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_TOOL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        return f"nvidia-smi failed with exit code {done.returncode}: {lines[0]}"
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _numa_node(bus_id: str) -> str:
    """Return a GPU's NUMA node; nvidia-smi writes the PCI domain with eight digits, the kernel with four."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text().strip()
    except OSError:
        return "unknown"


def memory() -> dict[str, Any]:
    """Return memory in GiB: of the machine, of swap, and the cgroup limit."""
    fields: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            fields[name] = _gib(int(rest.split()[0]) * 1024)
    limit = min(_memory_limits(), default=None)
    return {
        "total_gib": fields.get("MemTotal"),
        "available_gib": fields.get("MemAvailable"),
        "swap_gib": fields.get("SwapTotal"),
        "group_limit_gib": None if limit is None else _gib(limit),
    }


def _gib(num_bytes: float) -> float:
    return round(num_bytes / (1 << 30), 2)


def _memory_limits() -> Iterator[int]:
    """Yield the memory limits of this process's cgroups and their parents, in bytes."""
    for folder, version in group_folders("memory"):
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")).read_text())
            if limit < _UNLIMITED:
                yield limit


def disks() -> dict[str, Any]:
    """Return size and free space, in GiB, of shared memory, of the temporary folder, and of this folder."""
    places = {"/dev/shm": Path("/dev/shm"), "temporary": Path(tempfile.gettempdir()), "here": Path.cwd()}  # noqa: S108
    found: dict[str, Any] = {}
    for name, path in places.items():
        with contextlib.suppress(OSError):
            usage = shutil.disk_usage(path)
            found[name] = {"size_gib": _gib(usage.total), "free_gib": _gib(usage.free)}
    return found


def network() -> dict[str, Any]:
    """Return interfaces with their addresses, and which one the ranks would use."""
    interfaces = {name: _addresses(name) for _, name in socket.if_nameindex()}
    address = ""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
    reached = resolve(socket.gethostname())
    return {
        "host": socket.gethostname(),
        "host_address": address or "the host's name does not resolve",
        "interfaces": interfaces,
        "default_route": _default_route(),
        "taken": {
            "on one machine": next((name for name in ("lo", "lo0") if name in interfaces), "none"),
            "on several": os.environ.get("GLOO_SOCKET_IFNAME") or _by_launch(reached, address),
        },
    }


def _by_launch(reached: list[str], address: str) -> str:
    """Return the interface that `rankwise run --nnodes` sets for gloo if other machines reach this host by its name.

    Without a launcher, gloo uses the address of the host name; if that is a loopback address, no other machine can
    reach it.
    """
    interface = next((name for name in map(interface_of, reached) if name), "none of them")
    if address.startswith("127."):
        return f"{interface}; gloo alone would use {address}, which no other machine can reach: set GLOO_SOCKET_IFNAME"
    return interface


def _addresses(interface: str) -> list[str]:
    found = [address] if (address := address_of(interface)) else []
    with contextlib.suppress(OSError):
        for line in (_PROC / "net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if name == interface:
                found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def _default_route() -> str:
    with contextlib.suppress(OSError):
        for line in (_PROC / "net/route").read_text().splitlines()[1:]:
            interface, destination, *_ = line.split()
            if destination == "00000000":
                return interface
    return "none"
