"""All checks, in the order in which a cause comes before its effects: variables, host, devices, ranks, group, data."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping

from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.doctor.group import check_group
from rankwise.diagnose.doctor.host import check_host
from rankwise.diagnose.doctor.variables import check_variables
from rankwise.diagnose.hardware import gpus

__all__ = ["examine"]

_BUSY_MIB = 500


def examine(*, ranks: int = 2, deadline_s: float = 60.0, data: str | None = None) -> tuple[list[Check], bool]:
    """Examine this machine, or under a launcher of several ranks the job; return the checks and who should show them.

    Args:
        ranks: gloo ranks of the probe where nobody has launched this process.
        deadline_s: seconds that a probe or the ranks of the job have.
        data: arguments of `rankwise data bench`, a store and the extent of a crop; None: no data are read.
    """
    checks = [*check_variables(os.environ), *check_host(), *_devices()]
    is_main = True
    if _launched(os.environ):
        from rankwise.diagnose.doctor.job import check_job

        found, is_main = check_job(deadline_s, checks)
        checks += found
    else:
        why = "nobody has launched several ranks"
        checks.append(
            not_run("ranks", "ranks of a job", why, "rankwise run --nproc 2 -m rankwise doctor, or srun, torchrun")
        )
        checks += check_group(ranks, deadline_s)
    if is_main:
        checks.append(_data(data))
    return checks, is_main


def _launched(environ: Mapping[str, str]) -> bool:
    sizes = (environ.get("WORLD_SIZE", ""), environ.get("SLURM_NTASKS", "") if environ.get("SLURM_STEP_ID") else "")
    return any(size.isdigit() and int(size) > 1 for size in sizes)


def _devices() -> list[Check]:
    found = gpus()
    devices = found["devices"]
    if not devices:
        why = str(found.get("note", "no GPU"))
        return [not_run("devices", "GPUs", why)]
    checks = [passed("devices", "GPUs", ", ".join(str(device.get("name", "?")) for device in devices))]
    ids = [device.get("uuid") for device in devices if device.get("uuid")]
    if len(set(ids)) < len(ids):
        checks.append(
            failed("devices", "GPUs differ", "one UUID twice", "the container shows a device twice: name each once")
        )
    for number, device in enumerate(devices):
        used = str(device.get("memory_used", "0"))
        if used.isdigit() and int(used) > _BUSY_MIB:
            evidence = f"{used} MiB of its memory are taken"
            checks.append(warned("devices", f"GPU {number}", evidence, "another process uses it: nvidia-smi names it"))
    return checks


def _data(arguments: str | None) -> Check:
    """Measure how fast the data set is read, with the command for it in a process of its own."""
    name = "read rate of the data"
    if arguments is None:
        return not_run("data", name, "no data set given", "rankwise doctor --data 'STORE --crop 16,64,64'")
    command = [sys.executable, "-m", "rankwise", "data", "bench", *shlex.split(arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        return failed(
            "data", name, (done.stderr or done.stdout).strip()[-400:], "rankwise data audit shows what is wrong with it"
        )
    return passed("data", name, json.dumps(json.loads(done.stdout))[:400])
