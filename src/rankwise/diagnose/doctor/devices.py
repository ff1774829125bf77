"""Check the GPUs with nvidia-smi: their number, no device listed twice, no foreign processes."""

from __future__ import annotations

import os
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.hardware import ask_nvidia_smi, gpus

__all__ = ["check_devices"]

_BUSY_MIB = 500


def check_devices() -> list[Check]:
    """Judge the GPUs of this machine."""
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
    taken = used.isdigit() and int(used) > _BUSY_MIB
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
