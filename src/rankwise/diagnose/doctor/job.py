"""The ranks of a launched job: do they agree with each other, do they see each other, how fast are they together?"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.doctor.collectives import check_patterns, sweep
from rankwise.diagnose.doctor.group import describe_sweep
from rankwise.diagnose.environment import collect_environment
from rankwise.diagnose.variables import PREFIXES
from rankwise.errors import WorldError
from rankwise.world import World, bind

__all__ = ["check_job", "judge_facts"]

_VERSIONS = ("python", "rankwise", "torch", "numpy", "zarr")
_SKEW_S = 1.0


def check_job(timeout_s: float) -> tuple[list[Check], bool]:
    """Join the launched ranks, compare them, check collectives; return the checks and whether this is the main rank.

    Args:
        timeout_s: how long ranks wait for each other; who is missing then is named.
    """
    try:
        with bind(timeout=timeout_s) as world:
            facts = world.all_gather_object(_facts(world))
            wrong = world.all_gather_object(check_patterns(world.device))
            rows = sweep(world.device)
    except WorldError as error:
        evidence = str(error)
        mend = "start all ranks; from another machine, look at MASTER_ADDR, MASTER_PORT and firewalls"
        return [failed("ranks", "all ranks meet", evidence, mend)], os.environ.get("RANK", "0") == "0"
    checks = [passed("ranks", "all ranks meet", f"{world.world_size} ranks"), *judge_facts(facts)]
    bad = [(rank, name, text) for rank, found in enumerate(wrong) for name, text in found.items() if text]
    if bad:
        told = "; ".join(f"rank {rank}: {name} {text}" for rank, name, text in bad)
        checks.append(failed("group", "collectives", told, "the transport changes data: exclude that machine"))
    else:
        checks.append(passed("group", "collectives", f"right on {world.world_size} ranks, {world.device}"))
        checks.append(passed("group", "bandwidth of all_reduce", describe_sweep(rows)))
    return checks, world.is_main


def _facts(world: World) -> dict[str, Any]:
    found = collect_environment()
    variables = {
        key: value for key, value in found["variables"].items() if key.startswith((*PREFIXES, "TORCH_", "CUDA_"))
    }
    for varying in ("CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        variables.pop(varying, None)
    return {
        "host": socket.gethostname(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "versions": {name: found["versions"].get(name, "none") for name in _VERSIONS},
        "variables": variables,
        "time": time.time(),
        "local_rank": world.local_rank,
        "device": str(world.device),
    }


def judge_facts(facts: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Compare what all ranks have told of themselves: versions, variables, clocks, devices."""
    checks = [_same("versions", [fact["versions"] for fact in facts], "install the same environment on all machines")]
    checks.append(_same("variables", [fact["variables"] for fact in facts], "set them for all ranks alike"))
    skew = max(fact["time"] for fact in facts) - min(fact["time"] for fact in facts)
    if skew > _SKEW_S:
        late = min(range(len(facts)), key=lambda rank: facts[rank]["time"])
        evidence = f"{skew:.1f} s between ranks, the earliest is rank {late} on {facts[late]['host']}"
        checks.append(
            warned("ranks", "clocks", evidence, "synchronise them (chrony, ntpd): logs and leases compare times")
        )
    else:
        checks.append(passed("ranks", "clocks", f"within {skew:.2f} s (as seen by one exchange)"))
    checks.append(_devices(facts))
    return checks


def _same(name: str, values: Sequence[Mapping[str, str]], mend: str) -> Check:
    differing = []
    for key in sorted({key for value in values for key in value}):
        groups: dict[str, list[int]] = {}
        for rank, value in enumerate(values):
            groups.setdefault(value.get(key, "not set"), []).append(rank)
        if len(groups) > 1:
            differing.append(
                f"{key}: "
                + ", ".join(f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in groups.items())
            )
    if differing:
        return failed("ranks", f"same {name}", "; ".join(differing), mend)
    told = ", ".join(f"{key} {value}" for key, value in values[0].items()) or "none set"
    return passed("ranks", f"same {name}", told)


def _devices(facts: Sequence[Mapping[str, Any]]) -> Check:
    if not any(fact["device"].startswith("cuda") for fact in facts):
        return not_run("devices", "one GPU for each rank", "no rank uses a GPU")
    seen: dict[tuple[str, str], list[int]] = {}
    for rank, fact in enumerate(facts):
        seen.setdefault((fact["boot"], fact["device"]), []).append(rank)
    twice = [(device, ranks) for (_, device), ranks in seen.items() if len(ranks) > 1]
    if twice:
        told = "; ".join(f"{device} by ranks {', '.join(map(str, ranks))}" for device, ranks in twice)
        return failed(
            "devices", "one GPU for each rank", told, "set the device by LOCAL_RANK, or let rankwise.bind() do it"
        )
    return passed("devices", "one GPU for each rank", f"{len(seen)} devices")
