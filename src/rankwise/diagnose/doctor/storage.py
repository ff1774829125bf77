"""Check disks: the file systems of runs and temporary files, and the read speed of the data set."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, not_run, passed

_NETWORK = {
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "wekafs", "pvfs2", "afs", "glusterfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "virtiofs",
}  # fmt: skip
_NAME = "read rate of the data"
_MOST_S = 600.0


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
        return not_run("data", _NAME, "no dataset given", "rankwise doctor --data STORE")
    try:
        words = shlex.split(arguments) or [""]
    except ValueError as error:
        return failed("data", _NAME, f"--data {arguments!r}: {error}", "quote the store and its options as in a shell")
    if "--crop" not in words:
        extent = _chunk(Path(words[0])) if words[0] else []
        if not extent:
            crop = "give the crop size: --data 'STORE --crop 16,64,64' (rankwise data bench --help)"
            mend = crop if words[0] else "give a STORE: rankwise doctor --data STORE"
            return failed("data", _NAME, f"{words[0]!r} is not a local Zarr array, so its chunks are unknown", mend)
        words += ["--crop", ",".join(map(str, extent))]
    command = [sys.executable, "-P", "-m", "rankwise", "data", "bench", "--json", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MOST_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        return failed(
            "data", _NAME, f"not finished after {_MOST_S:g} s", "rankwise data bench --rounds 2 measures less"
        )
    if done.returncode:
        told = (done.stderr or done.stdout).strip()[-400:]
        return failed("data", _NAME, told, "rankwise data audit shows what is wrong with it")
    facts = json.loads(done.stdout[f"\n{done.stdout}".rindex("\n{") :])  # after what a sitecustomize has printed
    rows = [_row(group, audit) for group, audit in zip(facts["groups"], facts["audit"]["groups"], strict=True)]
    told = "; ".join(
        f"{row['crops_per_s']:.4g} crops of {row['crop']} a second, {row['mb_s']:.4g} MB/s decoded ({row['codec']})"
        for row in rows
    )
    return passed("data", _NAME, told, rows)


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
