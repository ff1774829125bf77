"""The rendezvous of the ranks, over the store and before any collective: which are here, missing or unable to go on.

A store may be left over from an earlier attempt (torch's agent keeps one store for all restarts), so no fixed key can
be trusted. Each rank sends a *hello* with a random nonce. Rank 0 answers every hello with the attempt's salt, from
which the ranks derive a key prefix. All further keys have this prefix, so no rank reads a stale key. Under it each rank
writes its `RankInfo`. Rank 0 reads and checks all of them, writes each rank's `Layout`, and publishes one verdict.

Every process that reaches the store can write to it. Therefore every text carries an HMAC-SHA256 over key and text,
made with the launcher's secret; the prefix cannot be computed without it either. Texts of other processes are ignored,
and a hello without the secret is refused while the job goes on.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import platform
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rankwise._process.cores import cpu_mask
from rankwise._process.place import Place
from rankwise._version import __version__
from rankwise.errors import WorldError

SECRET_VARIABLE = "RANKWISE_SECRET"  # noqa: S105  (its name)

_POLL_S = 0.01
_GRACE_S = 10.0  # after a rank has reported an error, how long the others get to arrive and read the verdict
_PREFIX = "rankwise"
HELLOS = f"{_PREFIX}/hellos"  # the number of hellos, which any process can increase; "hello/N" are they themselves
_MAX_HELLOS = 100_000  # checked per turn

_log = logging.getLogger("rankwise.world")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A rank's description of itself on arrival.

    Attributes:
        rank: its rank.
        world_size: how many ranks it expects.
        host: unique id of its machine.
        mask: the cores it may run on, as text.
        gpu: UUID of its CUDA device, "" without one.
        place: its name in messages.
        error: why it cannot go on, "" if it can.
        same: values that must be equal on all ranks, by name.
    """

    rank: int
    world_size: int
    host: str
    mask: str = ""
    gpu: str = ""
    place: str = ""
    error: str = ""
    same: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a rank learns from the meeting.

    Attributes:
        prefix: prefix of the store's keys for this attempt.
        host: number of its machine, in order of their lowest ranks.
        num_hosts: number of machines.
        local_size: ranks on its machine.
        sharers: how many ranks on its machine may use the same cores, itself included.
    """

    prefix: str = ""
    host: int = 0
    num_hosts: int = 1
    local_size: int = 1
    sharers: int = 1


def own_rank_info(place: Place, *, gpu: str = "", own_error: Exception | None = None, **same: str) -> RankInfo:
    """Return this process's info.

    Args:
        place: its place.
        gpu: UUID of its CUDA device, "" without one.
        own_error: why it cannot go on, None if it can.
        **same: values that must be equal on all ranks, besides the version of rankwise.
    """
    return RankInfo(
        rank=place.rank,
        world_size=place.world_size,
        host=_host_id(),
        mask=",".join(map(str, cpu_mask())),
        gpu=gpu,
        place=f"host {platform.node()}, process {os.getpid()}",
        error="" if own_error is None else f"{type(own_error).__name__}: {own_error}",
        same={"rankwise": __version__, **same},
    )


def _host_id() -> str:
    """Return host name and boot id: machines may share a host name, and containers of one machine share a boot id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else ''}"


def check_ranks(infos: list[RankInfo], *, world_size: int, allow_shared_device: bool) -> str:
    """Return why these ranks cannot form a world, "" if they can; missing ranks are not checked here.

    Args:
        infos: in order of arrival.
        world_size: the size that rank 0 expects.
        allow_shared_device: whether two ranks may compute on one GPU.
    """
    errors = [f"rank {info.rank} ({info.place}): {info.error}" for info in infos if info.error]
    if errors:
        return "\n".join(errors)
    for info in infos:
        if info.world_size != world_size:
            return (
                f"rank {info.rank} ({info.place}) expects {info.world_size} ranks, but rank 0 expects {world_size}: "
                "start all ranks with the same world size"
            )
    if pair := _equal_pair(infos, lambda info: info.rank):
        return f"two processes are rank {pair[0].rank}: {pair[0].place} and {pair[1].place}; start each rank once"
    if differences := _differences(infos):
        return differences
    if allow_shared_device or not (pair := _equal_pair(infos, lambda info: info.gpu)):
        return ""
    return (
        f"ranks {pair[0].rank} and {pair[1].rank} are both on GPU {pair[1].gpu} of {pair[1].place}: give each rank its "
        "own (fewer ranks per machine, or CUDA_VISIBLE_DEVICES), or let them share it (rankwise run --ranks-per-gpu, "
        "or bind(allow_shared_device=True))"
    )


def _differences(infos: list[RankInfo]) -> str:
    first = infos[0]
    for info in infos[1:]:
        for name in sorted(first.same.keys() | info.same.keys()):
            one, other = (found.same.get(name, "none") for found in (first, info))
            if one != other:
                return (
                    f"rank {info.rank} ({info.place}) has {name} {other}, but rank {first.rank} ({first.place}) has "
                    f"{name} {one}: give all ranks the same {name}"
                )
    return ""


def _equal_pair(infos: list[RankInfo], key: Callable[[RankInfo], Any]) -> tuple[RankInfo, RankInfo] | None:
    """Return the first two ranks with an equal key other than ""."""
    seen: dict[Any, RankInfo] = {}
    for info in infos:
        if key(info) != "" and key(info) in seen:
            return seen[key(info)], info
        seen[key(info)] = info
    return None


class SignedStore:
    """Texts in a store, authenticated with an HMAC.

    Args:
        store: a torch store or a `SmallStore`.
        secret: the job's secret, "" if the launcher has set none.
    """

    def __init__(self, store: Any, secret: str) -> None:
        self.store, self._secret = store, secret.encode()

    def sign(self, *texts: str) -> str:
        """Return the HMAC of texts, which cannot be computed without the secret."""
        return hmac.new(self._secret, "\n".join(texts).encode(), "sha256").hexdigest()

    def put(self, key: str, text: str) -> None:
        """Write a text under a key."""
        self.store.set(key, f"{self.sign(key, text)} {text}")

    def read(self, key: str) -> str | None:
        """Return the text under an existing key; None if its HMAC is wrong."""
        return self.verified(key, self.store.get(key))

    def verified(self, key: str, value: bytes) -> str | None:
        """Return the text of a value that was found under a key; None if its HMAC is wrong."""
        code, _, text = value.decode(errors="replace").partition(" ")
        return text if hmac.compare_digest(code.encode(), self.sign(key, text).encode()) else None

    def prefix(self, salt: str) -> str:
        """Return the key prefix of an attempt."""
        return f"{_PREFIX}/{self.sign('prefix', salt)[:16]}"


def rendezvous(
    store: Any,
    info: RankInfo,
    *,
    timeout: timedelta,
    allow_shared_device: bool = False,
    secret: str = "",
    own_error: Exception | None = None,
) -> Layout:
    """Meet the other ranks; every rank calls it, with a store of the same server.

    Args:
        store: a torch store or a `SmallStore`.
        info: this rank's info.
        timeout: how long the ranks wait for each other.
        allow_shared_device: whether two ranks may compute on one GPU.
        secret: the same on all ranks; a process without it cannot join. "": every process that reaches the store can.
        own_error: the info's error, which this rank raises instead of the common one.

    Raises:
        WorldError: a rank did not arrive in time, or the ranks cannot form a world; every rank that arrived raises.
    """
    signed = SignedStore(store, secret)
    deadline = time.monotonic() + timeout.total_seconds()
    try:
        if info.rank == 0:
            return _serve(signed, info, deadline, allow_shared_device=allow_shared_device)
        return _join(signed, info, deadline)
    except WorldError:
        if own_error is not None:
            raise own_error from None
        raise


def _join(signed: SignedStore, info: RankInfo, deadline: float) -> Layout:
    store = signed.store
    nonce = secrets.token_hex(8)
    number = store.add(HELLOS, 1)
    signed.put(f"{_PREFIX}/hello/{number}", nonce)
    prefix = signed.prefix(_await(signed, f"{_PREFIX}/answer/{nonce}", deadline, info))
    arrived = store.add(f"{prefix}/arrived", 1)
    signed.put(f"{prefix}/info/{arrived}", json.dumps(asdict(info)))
    error = _await(signed, f"{prefix}/verdict", deadline + _GRACE_S, info)
    layout = None if error else signed.read(f"{prefix}/layout/{arrived}")
    store.add(f"{prefix}/acknowledged", 1)
    if layout is None:
        raise WorldError(
            error or f"rank {info.rank} ({info.place}) read an entry that rank 0 has not written: start the job again"
        )
    return replace(Layout(**json.loads(layout)), prefix=prefix)


def await_key(store: Any, key: str, patience: timedelta) -> str:
    """Wait for a key of the store and return its text; on timeout the store raises its own error."""
    store.wait([key], patience)
    return str(store.get(key).decode())


def _await(signed: SignedStore, key: str, deadline: float, info: RankInfo) -> str:
    try:
        await_key(signed.store, key, timedelta(seconds=max(1.0, deadline - time.monotonic())))
    except Exception as error:
        raise WorldError(
            f"rank {info.rank} ({info.place}) reached the store but got no answer from rank 0 in time: look at rank "
            "0's output: it did not start, failed or was stopped"
        ) from error
    text = signed.read(key)
    if text is None:
        raise WorldError(
            f"rank {info.rank} ({info.place}) was refused by rank 0: it belongs to another job or has another secret. "
            f"Start all ranks with one launcher, or give all of them the same {SECRET_VARIABLE} (and another "
            "MASTER_PORT to each job)"
        )
    return text


def _serve(signed: SignedStore, info: RankInfo, deadline: float, *, allow_shared_device: bool) -> Layout:
    salt = secrets.token_hex(8)
    prefix = signed.prefix(salt)
    infos, arrivals = _collect(signed, info, salt, deadline)
    error = check_ranks(infos, world_size=info.world_size, allow_shared_device=allow_shared_device)
    missing = sorted(set(range(info.world_size)) - {found.rank for found in infos})
    if missing and not error:
        error = (
            f"{len(missing)} of {info.world_size} ranks did not arrive in time: {_listed(missing)}. Look at their "
            "output; a machine that cannot reach rank 0's address and port has the same effect"
        )
    layouts = [] if error else rank_layouts(infos)
    for number, layout in enumerate(layouts[1:], start=1):  # one key each: every rank would read all of a list
        signed.put(f"{prefix}/layout/{arrivals[number - 1]}", json.dumps(asdict(layout)))
    signed.put(f"{prefix}/verdict", error)
    if error:
        _wait_until_acknowledged(signed.store, prefix, len(infos) - 1)
        raise WorldError(error)
    return replace(layouts[0], prefix=prefix)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:20])) + (f" and {len(ranks) - 20} more" if len(ranks) > 20 else "")


def _collect(signed: SignedStore, own: RankInfo, salt: str, deadline: float) -> tuple[list[RankInfo], list[int]]:
    """Answer hellos and read infos until all ranks are here, time is up, or the grace period after an error is over.

    Returns:
        The infos, this rank's first, and the arrival numbers of the others.
    """
    prefix, infos, unanswered, hellos, read = signed.prefix(salt), [own], list[int](), 0, 0
    arrivals, ranks = list[int](), {own.rank}
    grace = min(deadline, time.monotonic() + _GRACE_S) if own.error else deadline
    while True:
        count = min(signed.store.add(HELLOS, 0), hellos + _MAX_HELLOS)
        unanswered += range(hellos + 1, count + 1)
        hellos = count
        unanswered = [number for number in unanswered if not _answer(signed, number, salt)]
        arrived = signed.store.add(f"{prefix}/arrived", 0)
        while read < arrived:
            read += 1
            # a rank counts itself before it writes its info, and not every store's `get` waits
            patience = timedelta(seconds=max(1.0, deadline - time.monotonic()))
            try:
                await_key(signed.store, f"{prefix}/info/{read}", patience)
            except Exception:  # noqa: BLE001  (each store has its own); it died in between: it is one that is missing
                return infos, arrivals
            info = _parse_info(signed.read(f"{prefix}/info/{read}"))
            if info is None:
                _log.warning("refused an arrival message that no rank of this job has written")
                continue
            # the checks of `check_ranks` for this info alone
            if info.error or info.world_size != own.world_size or info.rank in ranks or info.same != own.same:
                grace = min(grace, time.monotonic() + _GRACE_S)
            infos.append(info)
            arrivals.append(read)
            ranks.add(info.rank)
        if len(infos) >= own.world_size or time.monotonic() > grace:
            return infos, arrivals
        time.sleep(_POLL_S)


def _answer(signed: SignedStore, number: int, salt: str) -> bool:
    """Answer a hello if it has arrived; refuse a stranger's, so that a rank of another job fails at once."""
    key = f"{_PREFIX}/hello/{number}"
    if not signed.store.check([key]):
        return False
    nonce = signed.read(key)
    if nonce is not None:
        signed.put(f"{_PREFIX}/answer/{nonce}", salt)
        return True
    # from another job, or left over from an earlier attempt (whose ranks have ended)
    signed.store.set(f"{_PREFIX}/answer/{signed.store.get(key).decode(errors='replace').rpartition(' ')[2]}", "refused")
    return True


def _parse_info(text: str | None) -> RankInfo | None:
    """Parse a rank info; return None if the text is none."""
    try:
        info = RankInfo(**json.loads(text or ""))
    except (TypeError, ValueError):
        return None
    known = RankInfo(rank=0, world_size=0, host="")
    right = all(type(getattr(info, name)) is type(value) for name, value in asdict(known).items())
    return info if right else None


def rank_layouts(infos: list[RankInfo]) -> list[Layout]:
    """Return each rank's place on its machine, in the order of the infos; without the prefix."""
    hosts = dict.fromkeys(info.host for info in sorted(infos, key=lambda info: info.rank))
    numbers = {host: number for number, host in enumerate(hosts)}
    on_host = Counter(info.host for info in infos)
    sharers = Counter((info.host, info.mask) for info in infos)
    return [
        Layout(
            host=numbers[info.host],
            num_hosts=len(hosts),
            local_size=on_host[info.host],
            sharers=sharers[info.host, info.mask],
        )
        for info in infos
    ]


def _wait_until_acknowledged(store: Any, prefix: str, others: int) -> None:
    """Wait until the other ranks have read the verdict, because the store may end with rank 0."""
    deadline = time.monotonic() + _GRACE_S / 2
    while store.add(f"{prefix}/acknowledged", 0) < others and time.monotonic() < deadline:
        time.sleep(_POLL_S)
