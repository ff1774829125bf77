"""Check this machine: shared memory, limits, disks, file systems, host name, GPUs, and the read rate of its data."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.hardware import ask_nvidia_smi, gpus

_NETWORK = {
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "wekafs", "pvfs2", "afs", "glusterfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "virtiofs",
}  # fmt: skip
_READ_RATE = "read rate of the data"
_MOST_S = 600.0
_SHM = Path("/dev/shm")  # noqa: S108
_GIB = 1 << 30
_FILES = 4096
_FULL = 0.02


def kind_of(path: Path, mounts: str | None = None) -> str:
    """Return the kernel's type of the file system that holds a path; "" if unknown.

    Args:
        path: a file or folder.
        mounts: text in the format of /proc/self/mountinfo; None: read that file.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return ""
    target, best = path.resolve(), ("", "")
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        if target.is_relative_to(place) and len(place) >= len(best[0]):
            best = place, after.split()[0]
    return best[1]


def is_network(kind: str) -> bool:
    """Whether a file system of this type can be shared by several machines."""
    return kind in _NETWORK


def check_data(arguments: str | None) -> Check:
    """Measure how fast the data set is read, with `rankwise data bench` in a separate process.

    Args:
        arguments: arguments of `rankwise data bench`: a store, and the extent of a crop, by default one chunk.
    """
    if arguments is None:
        return not_run("data", _READ_RATE, "no dataset given", "rankwise doctor --data STORE")
    try:
        words = shlex.split(arguments) or [""]
    except ValueError as error:
        return failed(
            "data", _READ_RATE, f"--data {arguments!r}: {error}", "quote the store and its options as in a shell"
        )
    if "--crop" not in words:
        extent = _chunk(Path(words[0])) if words[0] else []
        if not extent:
            told = f"{words[0]!r} is not a local Zarr array, so its chunks are unknown"
            mend = "give the crop size: --data 'STORE --crop 16,64,64' (rankwise data bench --help)"
            if not words[0]:
                mend = "give a STORE: rankwise doctor --data STORE"
            elif "://" not in words[0] and not Path(words[0]).exists():
                told, mend = f"there is nothing at {Path(words[0]).absolute()}", "check the path: --data STORE"
            return failed("data", _READ_RATE, told, mend)
        words += ["--crop", ",".join(map(str, extent))]
    command = [sys.executable, "-P", "-m", "rankwise", "data", "bench", "--json", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MOST_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return failed(
            "data", _READ_RATE, f"not finished after {_MOST_S:g} s", "rankwise data bench --rounds 2 measures less"
        )
    if done.returncode:
        told = (done.stderr or done.stdout).strip()[-400:]
        return failed("data", _READ_RATE, told, "rankwise data audit shows what is wrong with it")
    facts = json.loads(done.stdout[f"\n{done.stdout}".rindex("\n{") :])  # after what a sitecustomize has printed
    rows = [_row(group, audit) for group, audit in zip(facts["groups"], facts["audit"]["groups"], strict=True)]
    told = "; ".join(
        f"{row['crops_per_s']:.4g} crops of {row['crop']} a second, {row['mb_s']:.4g} MB/s decoded ({row['codec']})"
        for row in rows
    )
    return passed("data", _READ_RATE, told, rows)


def _row(group: dict[str, Any], audit: dict[str, Any]) -> dict[str, Any]:
    crops = float(group["crops_per_s"])
    return {
        "crop": "x".join(map(str, audit["arrays"][0]["crop"])) if audit["arrays"] else "?",
        "codec": audit["codec"],
        "crops_per_s": crops,
        "mb_s": crops * float(audit["cost"]["asked_bytes"]) / 1e6,
    }


def _chunk(store: Path) -> list[int]:
    """Return the extent of the chunks of the first array of a local store along its last three axes, [] if none."""
    try:
        found = sorted(
            [*store.rglob("zarr.json"), *store.rglob(".zarray")] if store.is_dir() else [],
            key=lambda path: (len(path.parts), path),
        )
        for path in found:
            facts = json.loads(path.read_text())
            chunks = facts.get("chunks") or facts.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
            for codec in facts.get("codecs", []):
                if codec.get("name") == "sharding_indexed":
                    chunks = codec["configuration"]["chunk_shape"]
            if chunks and math.prod(chunks) > 0:
                return [min(int(c), int(n)) for c, n in zip(chunks, facts["shape"], strict=True)][-3:]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return []


def check_host() -> list[Check]:
    """Check what loader workers, stores and checkpoints need on this machine."""
    shm = shutil.disk_usage(_SHM).free if _SHM.is_dir() else None
    limits = [
        check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        check_locked_memory(
            resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], infiniband=Path("/sys/class/infiniband").is_dir()
        ),
    ]
    return [check_shared_memory(shm), *limits, _own_name(), *_disks(), _file_times()]


def check_shared_memory(free_bytes: int | None) -> Check:
    """Check the space in /dev/shm for loader workers; None: there is no /dev/shm."""
    name = "shared memory (/dev/shm)"
    if free_bytes is None:
        return warned("host", name, "missing", "mount a tmpfs there: loader workers pass batches through it")
    if free_bytes < _GIB:
        mend = "docker run --shm-size 8g (or --ipc host), in Kubernetes an emptyDir with medium: Memory"
        told = f"{free_bytes / _GIB:.2f} GiB free: loader workers die of SIGBUS when it is full"
        return warned("host", name, told, mend)
    return passed("host", name, f"{free_bytes / _GIB:.1f} GiB free")


def check_open_files(soft: int, hard: int) -> Check:
    """Check the limits of open files, as returned by `resource.getrlimit`."""
    if soft == resource.RLIM_INFINITY or soft >= _FILES:
        return passed("host", "open files", f"limit {'none' if soft == resource.RLIM_INFINITY else soft}")
    if hard == resource.RLIM_INFINITY or hard >= _FILES:
        wish = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        mend = f"ulimit -n {wish} before the launch, or LimitNOFILE= of the service"
    else:  # a shell cannot raise its limit above the hard limit
        mend = (
            f"the hard limit is {hard} as well: raise it as root (nofile in /etc/security/limits.conf, LimitNOFILE= of "
            "the service, docker run --ulimit nofile=65536)"
        )
    return warned("host", "open files", f"limit {soft}: loader workers and shards need thousands", mend)


def check_locked_memory(soft_bytes: int, *, infiniband: bool) -> Check:
    """Check the limit of locked memory, which RDMA needs."""
    if soft_bytes == resource.RLIM_INFINITY or not infiniband:
        unlimited = soft_bytes == resource.RLIM_INFINITY
        told = "unlimited" if unlimited else f"{soft_bytes} bytes, and no InfiniBand device"
        return passed("host", "locked memory", told)
    mend = "ulimit -l unlimited: RDMA registers its buffers as locked memory"
    return failed("host", "locked memory", f"limit {soft_bytes} bytes, and there are InfiniBand devices", mend)


def _own_name() -> Check:
    name = socket.gethostname()
    begun = time.monotonic()
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
    except OSError as error:
        mend = f"add {name} to /etc/hosts or DNS; until then set MASTER_ADDR to an address, and GLOO_SOCKET_IFNAME"
        return warned("host", "own name", f"{name} cannot be resolved: {error}", mend)
    took_s = time.monotonic() - begun
    if took_s > 1:
        return warned(
            "host",
            "own name",
            f"{name} resolves after {took_s:.1f} s",
            "fix the name service: every rank waits for it",
        )
    return passed("host", "own name", f"{name} is {', '.join(found)}")


def _disks() -> list[Check]:
    checks = []
    run_dir = os.environ.get("RANKWISE_RUN_DIR")
    temporary = Path(tempfile.gettempdir())
    for path in dict.fromkeys([Path.cwd(), *([Path(run_dir)] if run_dir else []), temporary]):
        try:
            usage = shutil.disk_usage(path)
            with tempfile.NamedTemporaryFile(dir=path, prefix=".rankwise-doctor-"):
                pass
        except OSError as error:
            checks.append(
                warned(
                    "host", f"disk of {path}", str(error), "runs are written in the working directory: choose another"
                )
            )
            continue
        kind = kind_of(path)
        told = f"{usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f}, {kind or 'file system unknown'}"
        if path == temporary and is_network(kind):
            mend = "set TMPDIR to a disk of the machine: sockets, locks and caches are slow or fail on a network"
            checks.append(warned("host", f"disk of {path}", told, mend))
            continue
        full = usage.free < max(_GIB, _FULL * usage.total)
        mend = "free some space: checkpoints are written here"
        checks.append(
            warned("host", f"disk of {path}", told, mend) if full else passed("host", f"disk of {path}", told)
        )
    return checks


def _file_times() -> Check:
    """Check the file server's clock: if it differs, new files look old."""
    try:
        with tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".rankwise-doctor-") as file:
            before = time.time()
            os.write(file.fileno(), b"x")
            skew = Path(file.name).stat().st_mtime - before
    except OSError as error:
        return warned("host", "clock of the file system", str(error), "run doctor in a writable directory")
    if abs(skew) > 2:
        return warned(
            "host", "clock of the file system", f"{skew:+.1f} s from this machine's", "synchronise both (chrony, ntpd)"
        )
    return passed("host", "clock of the file system", f"{skew:+.2f} s from this machine's")


_BUSY_MIB = 500


def check_devices() -> list[Check]:
    """Check the GPUs of this machine."""
    found = gpus()
    devices = found["devices"]
    if not devices:
        return [not_run("devices", "GPUs", str(found.get("note", "no GPU")))]
    checks = [passed("devices", "GPUs", ", ".join(str(device.get("name", "?")) for device in devices))]
    drivers = {str(device.get("driver_version")) for device in devices}
    checks += [passed("devices", "driver", ", ".join(sorted(drivers)))]
    ids = [device.get("uuid") for device in devices if device.get("uuid")]
    if len(set(ids)) < len(ids):
        mend = "the container lists a device twice: list each once"
        checks.append(failed("devices", "GPUs differ", "one UUID twice", mend))
    owners = _processes()
    for number, device in enumerate(devices):
        checks += _busy(number, device, owners.get(str(device.get("uuid")), []))
    return checks


def _busy(number: int, device: dict[str, Any], owners: list[str]) -> list[Check]:
    used = str(device.get("memory_used", "0"))
    taken = used.isdecimal() and int(used) > _BUSY_MIB
    if owners:
        told = f"used by {', '.join(owners)}" + (f", {used} MiB of its memory" if taken else "")
        mend = "end these processes if they are left over from an old run (ps -fp PID), or use another GPU"
        return [warned("devices", f"GPU {number}", told, mend)]
    if taken:
        mend = "a process that this container does not see: run nvidia-smi on the machine itself"
        return [
            warned(
                "devices",
                f"GPU {number}",
                f"{used} MiB of its memory are in use, but no process is visible here",
                mend,
            )
        ]
    return []


def _processes() -> dict[str, list[str]]:
    """Return the foreign processes on each GPU, by its UUID; this process and its parent are excluded."""
    rows = ask_nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name,used_memory")
    found: dict[str, list[str]] = {}
    for fields in rows if isinstance(rows, list) else []:
        if len(fields) == 4 and fields[1] not in {str(os.getpid()), str(os.getppid())}:
            found.setdefault(fields[0], []).append(f"process {fields[1]} ({fields[2]}, {fields[3]} MiB)")
    return found
