"""Check a launched job: do its ranks meet and agree, do its hosts reach each other, how fast are collectives."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rankwise._process.place import Place, loopback_address
from rankwise.diagnose.doctor.check import Check, failed, measured, not_run, passed, warned
from rankwise.diagnose.doctor.collectives import check_patterns, compare_patterns, sweep
from rankwise.diagnose.doctor.network import (
    check_clocks,
    check_pairs,
    check_rendezvous,
    exchange,
    first_ranks,
    listen,
    probe_other_hosts,
)
from rankwise.diagnose.environment import collect_environment
from rankwise.diagnose.variables import PREFIXES
from rankwise.errors import WorldError
from rankwise.launch.hardware import format_numbers
from rankwise.world import bind
from rankwise.world.binding import process_store

_VERSIONS = ("python", "rankwise", "torch", "numpy", "zarr")
_GROUP = ("collectives", "bandwidth of all_reduce")
_LEAST_S = 30.0  # minimum time for the group, even after a long wait for ranks


def check_job(
    place: Place, timeout_s: float, local: Sequence[Check] = (), *, with_group: bool = True
) -> tuple[list[Check], bool]:
    """Join the launched ranks, compare them, check collectives; return the checks and whether this rank prints them.

    The main rank prints the checks of all ranks. A rank that cannot join prints the obstacle.

    Args:
        place: this rank's.
        timeout_s: how long ranks wait for each other; missing ranks are named.
        local: this rank's local checks; problems are reported for every host.
        with_group: also create the group of all ranks and measure it; the same on all ranks.
    """
    deadline = time.monotonic() + timeout_s
    met = _rendezvous(place, deadline)
    if met.status == "fail":
        return [met], True
    try:
        store = process_store(place, timedelta(seconds=max(1.0, deadline - time.monotonic())))
        infos, checks = _compare(functools.partial(exchange, store, place, deadline), place, local)
    except ImportError as error:
        told = f"rank {place.rank} on {socket.gethostname()} cannot import torch: {error}"
        return [failed("ranks", "all ranks meet", told, "pip install 'rankwise[train]' on that machine")], True
    except (WorldError, RuntimeError, OSError) as error:  # torch's stores raise RuntimeError
        return [_no_store(place, error)], True
    checks = [met, *checks]
    if not infos or any(check.status == "fail" and check.section == "network" for check in checks):
        checks += [not_run("group", name, "the ranks do not all reach each other") for name in _GROUP]
    elif with_group:
        checks += _collectives(deadline, timeout_s, place)
    return checks, place.rank == 0


def _rendezvous(place: Place, deadline: float) -> Check:
    if "RANKWISE_STORE_FILE" in os.environ:
        return passed("network", "rendezvous", "through a file of this machine")
    return check_rendezvous(place, deadline)


def _no_store(place: Place, error: Exception) -> Check:
    """Return a failed check: rank 0 cannot serve the store, or another service answers, or the store has ended."""
    where = f"{place.master_addr}:{place.master_port}"
    told = str(error).splitlines()[0][:300]
    if place.rank == 0 and not place.agent_store:
        mend = "stop the process that uses the port, or choose another port (MASTER_PORT)"
        return failed("network", "rendezvous", f"rank 0 cannot serve {where}: {told}", mend)
    mend = (
        "another service may use the port, or rank 0 has ended: choose another port (MASTER_PORT), or read the report "
        "of rank 0"
    )
    who = f"rank {place.rank} on {socket.gethostname()}"
    return failed("network", "rendezvous", f"{who}: what answers at {where} is not the store of this job: {told}", mend)


def _compare(
    exchange_values: Callable[[str, Any], dict[int, Any]], place: Place, local: Sequence[Check]
) -> tuple[list[dict[str, Any]], list[Check]]:
    """Exchange the ranks' infos and test the connections; return the infos ([]: some are missing) and checks."""
    on_one_machine = bool(loopback_address(place.master_addr))
    with listen(os.environ, on_one_machine=on_one_machine) as listeners, _marker_file(place) as file:
        troubles = [asdict(check) for check in local if check.status in {"warn", "fail"}]
        mine = _facts(place) | {"file": file, "listeners": listeners, "checks": troubles}
        said = exchange_values("card", mine)
        missing = sorted(set(range(place.world_size)) - said.keys())
        if missing:
            told = f"{len(said)} of {place.world_size} ranks arrived; missing: rank {', '.join(map(str, missing))}"
            mend = "read their own reports; ranks without a report were not started, or their machine is unreachable"
            return [], [failed("ranks", "all ranks meet", told, mend)]
        infos = [said[rank] for rank in range(place.world_size)]
        results = {"hosts": probe_other_hosts(infos, place.rank), "file": os.path.exists(infos[0]["file"])}  # noqa: PTH110
        seen = exchange_values("seen", results)
        exchange_values("done", None)  # keep listening until all have tested
    ways = {rank: look["hosts"] for rank, look in seen.items()}
    checks = [passed("ranks", "all ranks meet", f"{place.world_size} ranks"), *check_pairs(infos, ways)]
    checks += [check_clocks(infos, ways), *check_facts(infos)]
    checks.append(check_shared_folder(infos, {rank: look["file"] for rank, look in seen.items()}))
    return infos, [*checks, *check_other_hosts(infos)]


@contextlib.contextmanager
def _marker_file(place: Place) -> Iterator[str]:
    """Write a file into rank 0's working directory, for other ranks to look for; yield its path, "" without one."""
    with contextlib.ExitStack() as stack:
        name = ""
        if place.rank == 0:
            with contextlib.suppress(OSError):  # a directory of another user, a file system that is full or read-only
                name = stack.enter_context(tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".rankwise-doctor-")).name
        yield name


def check_shared_folder(infos: Sequence[Mapping[str, Any]], seen: Mapping[int, bool]) -> Check:
    """Check which ranks do not see the file in rank 0's working directory."""
    name = "one working directory"
    path = Path(infos[0]["file"]).parent
    if not infos[0]["file"]:
        return not_run("ranks", name, "rank 0 cannot write in its own directory")
    blind = sorted(rank for rank, sees in seen.items() if not sees)
    if blind:  # possible on one machine too, as containers have their own file systems
        hosts = ", ".join(sorted({str(infos[rank]["host"]) for rank in blind}))
        told = f"rank {format_numbers(blind)} on {hosts} cannot see what rank 0 writes in {path}"
        mend = "put runs and checkpoints on a file system that all ranks share; code and data must be on each machine"
        return warned("ranks", name, told, mend)
    return passed("ranks", name, f"{path} on {infos[0]['host']} is visible to all ranks")


def check_other_hosts(infos: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Return the problems of other hosts: those of each host's first rank, and those that only another rank found."""
    found: list[Check] = []
    told: dict[str, list[dict[str, Any]]] = {}  # by host
    leaders = first_ranks(infos)
    for rank, info in enumerate(infos):
        known = told.setdefault(info["host"], [])
        for fields in info["checks"]:
            if fields not in known:
                known.append(fields)
                where = info["host"] if rank in leaders else f"rank {rank}"
                found += [replace(Check(**fields), name=f"{fields['name']} on {where}")] if rank else []
    return found


def _collectives(deadline: float, timeout_s: float, place: Place) -> list[Check]:
    try:
        with bind(timeout=max(min(timeout_s, _LEAST_S), deadline - time.monotonic())) as world:
            wrong = world.all_gather_object(check_patterns(world.device))
            used = world.all_gather_object({"boot": _boot(), "device": str(world.device), "host": socket.gethostname()})
            rows = sweep(world.device)
    except WorldError as error:
        mend = "read the network section and the reports of the other ranks"
        return [failed("group", "group of all ranks", f"rank {place.rank}: {error}", mend)]
    checks = [check_rank_devices(used)]
    right = f"correct on {world.world_size} ranks, {world.device}"
    checks.append(compare_patterns(wrong, [each["host"] for each in used], right))
    if checks[-1].status == "pass":
        checks.append(measured(rows))
    return checks


def _facts(place: Place) -> dict[str, Any]:
    found = collect_environment()
    variables = {
        key: value for key, value in found["variables"].items() if key.startswith((*PREFIXES, "TORCH_", "CUDA_"))
    }
    for varying in ("CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        variables.pop(varying, None)
    net = ""
    with contextlib.suppress(OSError):
        net = str(Path("/proc/self/ns/net").readlink())
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "net": net,
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", "its name has no address of its own"),
        "versions": {name: found["versions"].get(name, "none") for name in _VERSIONS} | {"files of rankwise": _code()},
        "variables": variables,
        "local_rank": place.local_rank,
    }


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def _code() -> str:
    """Return a digest of rankwise's files: development installations of one version may differ."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def check_facts(facts: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Compare the facts of all ranks: versions, rankwise's code, and variables."""
    return [
        _same("versions", [fact["versions"] for fact in facts], "install the same environment on all machines"),
        _same("variables", [fact["variables"] for fact in facts], "set them to the same values on all ranks"),
    ]


def _same(name: str, values: Sequence[Mapping[str, str]], mend: str) -> Check:
    differing = []
    for key in sorted({key for value in values for key in value}):
        groups: dict[str, list[int]] = {}
        for rank, value in enumerate(values):
            groups.setdefault(value.get(key, "not set"), []).append(rank)
        if len(groups) > 1:
            differing.append(
                f"{key}: " + ", ".join(f"{value} on rank {format_numbers(ranks)}" for value, ranks in groups.items())
            )
    if differing:
        return failed("ranks", f"same {name}", "; ".join(differing), mend)
    told = ", ".join(f"{key} {value}" for key, value in values[0].items()) or "none set"
    return passed("ranks", f"same {name}", told)


def check_rank_devices(facts: Sequence[Mapping[str, Any]]) -> Check:
    """Check whether two ranks use one GPU; a fact has the machine's `boot` id and the `device`."""
    if not any(fact["device"].startswith("cuda") for fact in facts):
        return not_run("devices", "one GPU for each rank", "no rank uses a GPU")
    seen: dict[tuple[str, str], list[int]] = {}
    for rank, fact in enumerate(facts):
        seen.setdefault((fact["boot"], fact["device"]), []).append(rank)
    twice = [(device, ranks) for (_, device), ranks in seen.items() if len(ranks) > 1]
    if twice:
        told = "; ".join(f"{device} by ranks {', '.join(map(str, ranks))}" for device, ranks in twice)
        return failed(
            "devices", "one GPU for each rank", told, "set the device from LOCAL_RANK, or use rankwise.bind()"
        )
    return passed("devices", "one GPU for each rank", f"{len(seen)} devices")
