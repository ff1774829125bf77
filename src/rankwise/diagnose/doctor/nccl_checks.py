"""Check NCCL's logs: which network it uses, whether that is the best one, and where ranks differ."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Sequence

from rankwise.diagnose.doctor.check import Check, failed, not_run, passed, warned
from rankwise.diagnose.doctor.nccl_log import Process
from rankwise.diagnose.variables import check_variable_name

_NONE = "set NCCL_DEBUG=INFO for the job, and NCCL_DEBUG_FILE=nccl.%h.%p.log for one file per process"
_INNER = ("docker", "virbr", "lo", "veth", "br-", "cni", "flannel", "podman")
_PER_RANK = {"NCCL_DEBUG_FILE", "NCCL_HOSTID", "NCCL_IB_HCA"}  # may differ between ranks
_SHOWN = 6


def check_logs(processes: Sequence[Process]) -> list[Check]:
    """Return checks for the processes of one job."""
    if not processes:
        return [not_run("nccl", "NCCL's logs", "no NCCL line in them", _NONE)]
    checks = [_version(processes), _ranks(processes), _interface(processes), _network(processes)]
    checks += [_transports(processes), _channels(processes), _connected(processes), *_variables(processes)]
    return [*checks, *_warnings(processes)]


def _version(processes: Sequence[Process]) -> Check:
    found = _groups(processes, lambda made: made.version)
    if not found:
        return not_run("nccl", "version", "no process prints its version", "NCCL_DEBUG=VERSION or INFO prints it")
    if len(found) > 1:
        mend = "install the same torch on all machines, and remove any system libnccl before it in LD_LIBRARY_PATH"
        return failed("nccl", "version", _format_groups(found), mend)
    return passed("nccl", "version", next(iter(found)))


def _ranks(processes: Sequence[Process]) -> Check:
    size = max(made.num_ranks for made in processes)
    if not size:
        return not_run(
            "nccl", "ranks", "no communicator was created", "the job stopped earlier: read the warnings below"
        )
    whole = [made for made in processes if made.num_ranks == size]
    missing = sorted(set(range(size)) - {made.rank for made in whole if made.rank is not None})
    hosts = len({made.host for made in processes})
    told = f"{size - len(missing)} of {size} ranks on {hosts} host{'s' * (hosts > 1)}"
    if missing:
        mend = "give the logs of all ranks; a rank without a log did not reach NCCL"
        return warned("nccl", "ranks", f"{told}; nothing of rank {_some(missing)}", mend)
    if any(made.completed for made in whole) and (late := [made.name for made in whole if not made.completed]):
        mend = "check these ranks first: the others wait for them"
        return failed("nccl", "ranks", f"{told}; never complete: {_some(late)}", mend)
    return passed("nccl", "ranks", told)


def _interface(processes: Sequence[Process]) -> Check:
    found = [made.interface for made in processes if made.interface is not None]
    if not found:
        return not_run("nccl", "interface", "no bootstrap line", _NONE)
    told = _format_groups(_groups(processes, lambda made: " ".join(made.interface or ()), by_host=True))
    hosts = {made.host for made in processes}
    mend = (
        "name the interface between the machines: NCCL_SOCKET_IFNAME==eth0 (= is exact), or exclude the others: "
        "^docker0,lo"
    )
    if len(hosts) > 1 and any(_is_loopback(address) for _, address in found):
        return failed("nccl", "interface", f"{told}: loopback cannot reach another machine", mend)
    if len(hosts) > 1 and any(name.startswith(_INNER) for name, _ in found):
        return warned("nccl", "interface", f"{told}: that is a network inside one machine", mend)
    return passed("nccl", "interface", told)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def _network(processes: Sequence[Process]) -> Check:
    used = _groups(processes, lambda made: made.network or _by_ways(made))
    if not used:
        return not_run("nccl", "network", "none named", _NONE)
    if len(used) > 1:
        return failed(
            "nccl",
            "network",
            _format_groups(used),
            "use the same devices and variables on all machines: ranks cannot mix networks",
        )
    (network,) = used
    if network != "Socket":
        devices = sorted({device for made in processes for device in made.ib_devices or ()})
        return passed("nccl", "network", f"{network} {', '.join(devices[:_SHOWN])}".strip())
    if len({made.host for made in processes}) == 1:
        return passed("nccl", "network", "Socket, and all ranks are on one host")
    return _socket(processes)


def _socket(processes: Sequence[Process]) -> Check:
    """Return a check for hosts that use sockets, with the reason if known."""
    devices = sorted({device for made in processes for device in made.ib_devices or ()})
    if _is_on(processes, "NCCL_IB_DISABLE"):
        told, mend = "Socket, because NCCL_IB_DISABLE is set", "unset NCCL_IB_DISABLE if there is InfiniBand or RoCE"
    elif devices:
        told = f"Socket, although the machine has {', '.join(devices[:_SHOWN])}"
        mend = "check NCCL_NET, NCCL_IB_HCA and the warnings: NCCL saw the devices but did not use them"
    else:
        told = "Socket: NCCL found no InfiniBand device"
        mend = (
            "if the machines have InfiniBand or RoCE, give the container /dev/infiniband, libibverbs and unlimited "
            "locked memory; otherwise this is correct"
        )
    return warned("nccl", "network", told, mend)


def _is_on(processes: Sequence[Process], variable: str) -> bool:
    return any(made.variables.get(variable, "0") != "0" for made in processes)


def _by_ways(made: Process) -> str:
    """Return the network from the channels: older versions do not log its name."""
    kinds = {kind.split("/")[1] for _, _, kind in made.ways if kind.startswith("NET/")}
    return next(iter(kinds)) if len(kinds) == 1 else ""


def _transports(processes: Sequence[Process]) -> Check:
    count: Counter[str] = Counter()
    for made in processes:
        for (_, _, kind), number in made.ways.items():
            count[kind] += number
    if not count:
        return not_run(
            "nccl", "transports", "no channel prints its transport", "include INIT in NCCL_DEBUG_SUBSYS, or unset it"
        )
    told = ", ".join(f"{kind} {number}" for kind, number in count.most_common())
    if "NET/IB" in count and "NET/IB/GDRDMA" not in count:
        mend = (
            "load nvidia-peermem (or dma-buf) and put GPU and network info under one PCIe switch: data now go through "
            "host memory"
        )
        return warned("nccl", "transports", f"{told}: InfiniBand without GPUDirect", mend)
    if "SHM" in count and "P2P" not in count:
        why = "NCCL_P2P_DISABLE is set" if _is_on(processes, "NCCL_P2P_DISABLE") else "no P2P"
        mend = "nvidia-smi topo -p2p r shows what is possible; IOMMU, ACS and containers without --ipc=host prevent it"
        return warned("nccl", "transports", f"{told}: GPUs of one machine communicate through its memory ({why})", mend)
    return passed("nccl", "transports", told)


def _channels(processes: Sequence[Process]) -> Check:
    found = _groups(processes, lambda made: str(made.channels or ""))
    if not found:
        return not_run("nccl", "channels", "none named", _NONE)
    if len(found) > 1:
        mend = "use the same GPUs, network cards and NCCL_* variables on all machines; or the logs are incomplete"
        return warned("nccl", "channels", _format_groups(found), mend)
    return passed("nccl", "channels", next(iter(found)))


def _connected(processes: Sequence[Process]) -> Check:
    name = "rings and trees"
    if not any(made.rings or made.trees for made in processes):
        return not_run(
            "nccl", name, "no process prints that they are connected", "newer versions connect them at first use"
        )
    for kind in ("rings", "trees"):
        done = [made for made in processes if getattr(made, kind)]
        late = [made.name for made in processes if made.ranks and not getattr(made, kind)]
        if done and late:
            mend = "these wait for a neighbour: rankwise doctor on all hosts tests every pair"
            return failed("nccl", name, f"{kind} not connected on {_some(late)}", mend)
    told = " and ".join(kind for kind in ("rings", "trees") if any(getattr(made, kind) for made in processes))
    return passed("nccl", name, f"{told} connected")


def _variables(processes: Sequence[Process]) -> list[Check]:
    names = sorted({name for made in processes for name in made.variables})
    joined = [made for made in processes if made.ranks]
    checks = []
    for name in names:
        judged = check_variable_name(name)
        if judged is not None:
            checks.append(warned("nccl", name, f"{judged[0]} name", judged[1]))
        found = _groups(joined, lambda made: made.variables.get(name, "not set"), by_host=True)  # noqa: B023
        if len(found) > 1 and name not in _PER_RANK:
            checks.append(warned("nccl", name, _format_groups(found), "set it to the same value on all ranks"))
    told = ", ".join(f"{name}={next(m.variables[name] for m in processes if name in m.variables)}" for name in names)
    return checks or [passed("nccl", "variables", told or "none set")]


def _warnings(processes: Sequence[Process]) -> list[Check]:
    """Return each warning once, ignoring numbers in it, with its first place."""
    found: dict[str, list[tuple[str, str]]] = {}
    for made in processes:
        for text in made.warnings:
            found.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "#", text), []).append((made.name, text))
    checks = []
    for said in found.values():
        who, text = said[0]
        more = f" (and {len(said) - 1} more like it)" if len(said) > 1 else ""
        checks.append(
            warned("nccl", "warning", f"{who}: {text[:300]}{more}", "rankwise explain LOG shows what is known about it")
        )
    return checks[:_SHOWN] or [passed("nccl", "warnings", "none")]


def _groups(
    processes: Sequence[Process], value: Callable[[Process], str], *, by_host: bool = False
) -> dict[str, list[str]]:
    """Return the names of the processes, or of their hosts, with each value that is not ""."""
    groups: dict[str, list[str]] = {}
    for made in processes:
        if told := value(made):
            members, name = groups.setdefault(told, []), made.host if by_host else made.name
            members += [] if name in members else [name]
    return groups


def _format_groups(groups: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} on {_some(members)}" for value, members in groups.items())


def _some(found: Sequence[object]) -> str:
    return ", ".join(map(str, found[:_SHOWN])) + (f", ... ({len(found)} in all)" if len(found) > _SHOWN else "")
