"""Check variables: presence, range, contradictions, and unknown names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rankwise.diagnose.doctor.check import Check, failed, passed, warned
from rankwise.diagnose.hardware import network
from rankwise.diagnose.variables import PREFIXES, check_variable_name

_PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PORTS = 65535


def check_variables(environ: Mapping[str, str], interfaces: Mapping[str, object] | None = None) -> list[Check]:
    """Check the variables of a launch and of the communication libraries.

    Args:
        environ: the variables.
        interfaces: names of this machine's network interfaces; None: look them up.
    """
    found = network()["interfaces"] if interfaces is None else interfaces
    return [*_place(environ), *_names(environ), *_interfaces(environ, found), *_values(environ)]


def _place(environ: Mapping[str, str]) -> list[Check]:
    name = "place in the job"
    given = [key for key in _PLACE if environ.get(key)]
    if not given:
        return [passed("variables", name, "none set: a single process, or a launcher that uses other variables")]
    problems = []
    numbers = {}
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        text = environ.get(key, "")
        if text and not re.fullmatch(r"\d+", text):
            problems.append(f"{key}={text!r} is not a number")
        elif text:
            numbers[key] = int(text)
    for small, large in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if small in numbers and large in numbers and numbers[small] >= numbers[large]:
            problems.append(f"{small}={numbers[small]} is not below {large}={numbers[large]}")
    if numbers.get("MASTER_PORT", 1) not in range(1, _PORTS + 1):
        problems.append(f"MASTER_PORT={numbers['MASTER_PORT']} is not a port (1 to {_PORTS})")
    missing = [key for key in _PLACE if not environ.get(key)]
    if missing and (numbers.get("WORLD_SIZE", 2) > 1):
        problems.append(f"{', '.join(given)} set, but not {', '.join(missing)}")
    if problems:
        return [
            failed(
                "variables",
                name,
                "; ".join(problems),
                "use a launcher that sets them: rankwise run, torchrun or srun",
            )
        ]
    return [passed("variables", name, ", ".join(f"{key}={environ[key]}" for key in given))]


def _names(environ: Mapping[str, str]) -> list[Check]:
    ours = [key for key in sorted(environ) if key.startswith(PREFIXES)]
    judged = [(key, verdict) for key in ours if (verdict := check_variable_name(key)) is not None]
    checks = [warned("variables", key, f"{kind} name", mend) for key, (kind, mend) in judged]
    fine = len(ours) - len(judged)
    return checks or [passed("variables", "names of NCCL, gloo and torch", f"{fine} set, all known")]


def _interfaces(environ: Mapping[str, str], interfaces: Mapping[str, object]) -> list[Check]:
    checks = []
    for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        text = environ.get(key)
        if not text or text.startswith("^"):
            continue
        exact = key != "NCCL_SOCKET_IFNAME" or text.startswith("=")
        wanted = [name for name in text.removeprefix("=").split(",") if name]
        there = [i for i in interfaces if any(i == w if exact else i.startswith(w) for w in wanted)]
        lost = [w for w in wanted if not any(w == i if exact else i.startswith(w) for i in there)]
        usable = [i for i in there if interfaces[i] and _is_up(i)]
        if len(lost) == len(wanted):
            evidence = f"{key}={text} is not an interface of this machine ({', '.join(sorted(interfaces))})"
            checks.append(failed("variables", key, evidence, "name one of these, or unset it"))
        elif not usable:
            why = " and ".join(f"{i} {'has no address' if _is_up(i) else 'is down'}" for i in there)
            mend = "ip address shows which are up and have one: name one of these"
            checks.append(failed("variables", key, f"{key}={text}: {why}", mend))
        else:
            how = "exactly" if exact else "every interface with this prefix"
            checks.append(passed("variables", key, f"{text} ({how}) exists and is up: {', '.join(usable)}"))
    return checks


def _is_up(interface: str) -> bool:
    """Whether an interface is up; one unknown to the kernel comes from a test and counts as up."""
    try:
        return bool(int(Path(f"/sys/class/net/{interface}/flags").read_text(), 16) & 1)
    except (OSError, ValueError):
        return True


def _values(environ: Mapping[str, str]) -> list[Check]:
    checks = []
    file = environ.get("NCCL_DEBUG_FILE", "")
    if "%r" in file:
        mend = "write %h (host) and %p (process id): NCCL_DEBUG_FILE=nccl.%h.%p.log"
        checks.append(
            warned(
                "variables", "NCCL_DEBUG_FILE", f"{file}: NCCL does not support %r, so all ranks write one file", mend
            )
        )
    for key, cost in (
        ("NCCL_P2P_DISABLE", "copies between GPUs go through host memory"),
        ("NCCL_IB_DISABLE", "InfiniBand is not used"),
        ("NCCL_SHM_DISABLE", "shared memory is not used"),
    ):
        if environ.get(key, "0") not in {"", "0"}:
            checks.append(
                warned("variables", key, f"{environ[key]}: {cost}", "unset it once the original problem is solved")
            )
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}:
        mend = "unset it after debugging"
        checks.append(warned("variables", "CUDA_LAUNCH_BLOCKING", "set: every kernel waits for the one before", mend))
    if environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper() == "DETAIL":
        evidence = "DETAIL: every collective is checked by an additional one"
        checks.append(warned("variables", "TORCH_DISTRIBUTED_DEBUG", evidence, "unset it after debugging"))
    return checks
