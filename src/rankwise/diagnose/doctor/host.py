"""This machine: shared memory, limits, disks and their file systems, its own name."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
import time
from pathlib import Path

from rankwise.diagnose.doctor.check import Check, failed, passed, warned
from rankwise.diagnose.doctor.storage import is_network, kind_of

__all__ = ["check_host"]

_SHM = Path("/dev/shm")  # noqa: S108
_GIB = 1 << 30
_FILES = 4096
_FULL = 0.02


def check_host() -> list[Check]:
    """Judge what loader workers, stores and checkpoints need of this machine."""
    return [_shared_memory(), _open_files(), _locked_memory(), _own_name(), *_disks(), _file_times()]


def _shared_memory() -> Check:
    name = "shared memory (/dev/shm)"
    if not _SHM.is_dir():
        return warned("host", name, "there is none", "mount a tmpfs there: loader workers hand batches over through it")
    free = shutil.disk_usage(_SHM).free
    if free < _GIB:
        mend = "docker run --shm-size 8g (or --ipc host), in Kubernetes an emptyDir with medium: Memory"
        return warned("host", name, f"{free / _GIB:.2f} GiB free: loader workers die of SIGBUS when it is full", mend)
    return passed("host", name, f"{free / _GIB:.1f} GiB free")


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        mend = f"ulimit -n {min(65536, hard) if hard > 0 else 65536} before the launch, or LimitNOFILE= of the service"
        return warned("host", "open files", f"limit {soft}: loader workers and shards need thousands", mend)
    return passed("host", "open files", f"limit {soft}")


def _locked_memory() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY or not Path("/sys/class/infiniband").is_dir():
        told = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes, and no InfiniBand device"
        return passed("host", "locked memory", told)
    mend = "ulimit -l unlimited: RDMA registers its buffers as locked memory"
    return failed("host", "locked memory", f"limit {soft} bytes, and there are InfiniBand devices", mend)


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
            "mend the name service: every rank waits for it",
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
        told = f"{usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f}, {kind or 'file system not known'}"
        if path == temporary and is_network(kind):
            mend = "set TMPDIR to a disk of the machine: sockets, locks and caches are slow or fail on a network"
            checks.append(warned("host", f"disk of {path}", told, mend))
            continue
        full = usage.free < max(_GIB, _FULL * usage.total)
        mend = "make room: checkpoints are written here"
        checks.append(
            warned("host", f"disk of {path}", told, mend) if full else passed("host", f"disk of {path}", told)
        )
    return checks


def _file_times() -> Check:
    """A file server whose clock differs makes new files look old."""
    try:
        with tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".rankwise-doctor-") as file:
            before = time.time()
            os.write(file.fileno(), b"x")
            skew = Path(file.name).stat().st_mtime - before
    except OSError as error:
        return warned("host", "clock of the file system", str(error), "run it where files can be written")
    if abs(skew) > 2:
        return warned(
            "host", "clock of the file system", f"{skew:+.1f} s from this machine's", "synchronise both (chrony, ntpd)"
        )
    return passed("host", "clock of the file system", f"{skew:+.2f} s from this machine's")
