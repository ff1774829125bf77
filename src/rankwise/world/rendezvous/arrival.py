"""The ranks' first meeting, over the store and before any collective: which ranks are here, missing or unable to go on.

A store may be left over from an earlier attempt (torch's agent keeps one store for all restarts), so no fixed key can
be trusted. Each rank *knocks* with a random nonce. Rank 0 answers every knock with the attempt's salt, from which the
ranks derive a key prefix. All further keys have this prefix, so no rank reads a stale key. Under it each rank writes a
card. Rank 0 reads all cards, judges them, writes each rank's place on its machine, and publishes one verdict for all.

Every process that reaches the store can write to it. Therefore every text of the meeting carries an HMAC-SHA256 over
key and text, made with the launcher's secret; the prefix cannot be computed without it either. Texts of other processes
are ignored, and a knock without the secret is refused while the job goes on.
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
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rankwise._process.cores import cpu_mask
from rankwise._process.place import Place
from rankwise._version import __version__
from rankwise.errors import WorldError

__all__ = ["SECRET_VARIABLE", "Card", "Company", "Mail", "await_key", "judge", "meet", "own_card", "survey"]

SECRET_VARIABLE = "RANKWISE_SECRET"  # noqa: S105  (its name)

_POLL_S = 0.01
_GRACE_S = 10.0  # after a rank has reported an error, how long the others get to arrive and read the verdict
_PREFIX = "rankwise"
_MAX_KNOCKS = 100_000  # checked per turn, as any process can increase the count
_REFUSED = "refused"

_log = logging.getLogger("rankwise.world")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
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
class Company:
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


def own_card(place: Place, *, gpu: str = "", trouble: Exception | None = None, **same: str) -> Card:
    """Return this process's card.

    Args:
        place: its place.
        gpu: UUID of its CUDA device, "" without one.
        trouble: why it cannot go on, None if it can.
        **same: values that must be equal on all ranks, besides the version of rankwise.
    """
    return Card(
        rank=place.rank,
        world_size=place.world_size,
        host=_host_id(),
        mask=",".join(map(str, cpu_mask())),
        gpu=gpu,
        place=f"host {platform.node()}, process {os.getpid()}",
        error="" if trouble is None else f"{type(trouble).__name__}: {trouble}",
        same={"rankwise": __version__, **same},
    )


def _host_id() -> str:
    """Return host name and boot id: machines may share a host name, and containers of one machine share a boot id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else ''}"


def judge(cards: list[Card], *, world_size: int, allow_shared_device: bool) -> str:
    """Return why these ranks cannot form a world, "" if they can; missing ranks are not checked here.

    Args:
        cards: in order of arrival.
        world_size: the size that rank 0 expects.
        allow_shared_device: whether two ranks may compute on one GPU.
    """
    troubles = [f"rank {card.rank} ({card.place}): {card.error}" for card in cards if card.error]
    if troubles:
        return "\n".join(troubles)
    for card in cards:
        if card.world_size != world_size:
            return (
                f"rank {card.rank} ({card.place}) expects {card.world_size} ranks, but rank 0 expects {world_size}: "
                "start all ranks with the same world size"
            )
    return _twice(cards, by_gpu=False) or _unlike(cards) or ("" if allow_shared_device else _twice(cards, by_gpu=True))


def _unlike(cards: list[Card]) -> str:
    first = cards[0]
    for card in cards[1:]:
        for name in sorted(first.same.keys() | card.same.keys()):
            one, other = (found.same.get(name, "none") for found in (first, card))
            if one != other:
                return (
                    f"rank {card.rank} ({card.place}) has {name} {other}, but rank {first.rank} ({first.place}) has "
                    f"{name} {one}: give all ranks the same {name}"
                )
    return ""


def _twice(cards: list[Card], *, by_gpu: bool) -> str:
    seen: dict[Any, Card] = {}
    for card in cards:
        mark = card.gpu if by_gpu else card.rank
        if mark == "":
            continue
        if mark in seen:
            other = seen[mark]
            if not by_gpu:
                return f"two processes are rank {card.rank}: {other.place} and {card.place}; start each rank once"
            return (
                f"ranks {other.rank} and {card.rank} are both on GPU {card.gpu} of {card.place}: give each rank its "
                "own (fewer ranks per machine, or CUDA_VISIBLE_DEVICES), or let them share it (rankwise run "
                "--ranks-per-gpu, or bind(allow_shared_device=True))"
            )
        seen[mark] = card
    return ""


class Mail:
    """Texts in a store, authenticated with an HMAC.

    Args:
        store: a torch store or a `SmallStore`.
        secret: the job's secret, "" if the launcher has set none.
    """

    def __init__(self, store: Any, secret: str) -> None:
        self.store, self._secret = store, secret.encode()

    def seal(self, *texts: str) -> str:
        """Return the HMAC of texts, which cannot be computed without the secret."""
        return hmac.new(self._secret, "\n".join(texts).encode(), "sha256").hexdigest()

    def put(self, key: str, text: str) -> None:
        """Write a text under a key."""
        self.store.set(key, f"{self.seal(key, text)} {text}")

    def read(self, key: str) -> str | None:
        """Return the text under an existing key; None if its HMAC is wrong."""
        return self.opened(key, self.store.get(key))

    def opened(self, key: str, value: bytes) -> str | None:
        """Return the text of a value that was found under a key; None if its HMAC is wrong."""
        code, _, text = value.decode(errors="replace").partition(" ")
        return text if hmac.compare_digest(code.encode(), self.seal(key, text).encode()) else None

    def prefix(self, salt: str) -> str:
        """Return the key prefix of an attempt."""
        return f"{_PREFIX}/{self.seal('prefix', salt)[:16]}"


def meet(
    store: Any,
    card: Card,
    *,
    timeout: timedelta,
    allow_shared_device: bool = False,
    secret: str = "",
    trouble: Exception | None = None,
) -> Company:
    """Meet the other ranks; every rank calls it, with a store of the same server.

    Args:
        store: a torch store or a `SmallStore`.
        card: this rank's card.
        timeout: how long the ranks wait for each other.
        allow_shared_device: whether two ranks may compute on one GPU.
        secret: the same on all ranks; a process without it cannot join. "": every process that reaches the store can.
        trouble: the card's error, which this rank raises instead of the common one.

    Raises:
        WorldError: a rank did not arrive in time, or the ranks cannot form a world; every rank that arrived raises.
    """
    mail = Mail(store, secret)
    deadline = time.monotonic() + timeout.total_seconds()
    try:
        if card.rank == 0:
            return _host(mail, card, deadline, allow_shared_device=allow_shared_device)
        return _arrive(mail, card, deadline)
    except WorldError:
        if trouble is not None:
            raise trouble from None
        raise


def _arrive(mail: Mail, card: Card, deadline: float) -> Company:
    store = mail.store
    nonce = secrets.token_hex(8)
    number = store.add(f"{_PREFIX}/knocks", 1)
    mail.put(f"{_PREFIX}/knock/{number}", nonce)
    prefix = mail.prefix(_await(mail, f"{_PREFIX}/answer/{nonce}", deadline, card))
    arrived = store.add(f"{prefix}/arrived", 1)
    mail.put(f"{prefix}/card/{arrived}", json.dumps(asdict(card)))
    error = _await(mail, f"{prefix}/verdict", deadline + _GRACE_S, card)
    seat = None if error else mail.read(f"{prefix}/seat/{arrived}")
    store.add(f"{prefix}/heard", 1)
    if seat is None:
        raise WorldError(
            error or f"rank {card.rank} ({card.place}) read an entry that rank 0 has not written: start the job again"
        )
    return replace(Company(**json.loads(seat)), prefix=prefix)


def await_key(store: Any, key: str, patience: timedelta) -> str:
    """Wait for a key of the store and return its text; on timeout the store raises its own error."""
    store.wait([key], patience)
    return str(store.get(key).decode())


def _await(mail: Mail, key: str, deadline: float, card: Card) -> str:
    try:
        await_key(mail.store, key, timedelta(seconds=max(1.0, deadline - time.monotonic())))
    except Exception as error:
        raise WorldError(
            f"rank {card.rank} ({card.place}) reached the store but got no answer from rank 0 in time: look at rank "
            "0's output: it did not start, failed or was stopped"
        ) from error
    text = mail.read(key)
    if text is None:
        raise WorldError(
            f"rank {card.rank} ({card.place}) was refused by rank 0: it belongs to another job or has another secret. "
            f"Start all ranks with one launcher, or give all of them the same {SECRET_VARIABLE} (and another "
            "MASTER_PORT to each job)"
        )
    return text


def _host(mail: Mail, card: Card, deadline: float, *, allow_shared_device: bool) -> Company:
    salt = secrets.token_hex(8)
    prefix = mail.prefix(salt)
    cards, arrivals = _collect(mail, card, salt, deadline)
    error = judge(cards, world_size=card.world_size, allow_shared_device=allow_shared_device)
    missing = sorted(set(range(card.world_size)) - {found.rank for found in cards})
    if missing and not error:
        error = (
            f"{len(missing)} of {card.world_size} ranks did not arrive in time: {_some(missing)}. Look at their "
            "output; a machine that cannot reach rank 0's address and port has the same effect"
        )
    seats = [] if error else survey(cards)
    for number, seat in enumerate(seats[1:], start=1):  # one key each: every rank would read all of a list
        mail.put(f"{prefix}/seat/{arrivals[number - 1]}", json.dumps(asdict(seat)))
    mail.put(f"{prefix}/verdict", error)
    if error:
        _wait_until_heard(mail.store, prefix, len(cards) - 1)
        raise WorldError(error)
    return replace(seats[0], prefix=prefix)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:20])) + (f" and {len(ranks) - 20} more" if len(ranks) > 20 else "")


def _collect(mail: Mail, own: Card, salt: str, deadline: float) -> tuple[list[Card], list[int]]:
    """Answer knocks and read cards until all ranks are here, time is up, or the grace period after an error is over.

    Returns:
        The cards, this rank's first, and the arrival numbers of the others.
    """
    prefix, cards, unanswered, knocks, read = mail.prefix(salt), [own], list[int](), 0, 0
    arrivals, ranks = list[int](), {own.rank}
    grace = min(deadline, time.monotonic() + _GRACE_S) if own.error else deadline
    while True:
        count = min(mail.store.add(f"{_PREFIX}/knocks", 0), knocks + _MAX_KNOCKS)
        unanswered += range(knocks + 1, count + 1)
        knocks = count
        unanswered = [number for number in unanswered if not _answer(mail, number, salt)]
        arrived = mail.store.add(f"{prefix}/arrived", 0)
        while read < arrived:
            read += 1
            # a rank counts itself before it writes its card, and not every store's `get` waits
            patience = timedelta(seconds=max(1.0, deadline - time.monotonic()))
            try:
                await_key(mail.store, f"{prefix}/card/{read}", patience)
            except Exception:  # noqa: BLE001  (each store has its own); it died in between: it is one that is missing
                return cards, arrivals
            card = _card(mail.read(f"{prefix}/card/{read}"))
            if card is None:
                _log.warning("refused an arrival message that no rank of this job has written")
                continue
            # the checks of `judge` for this card alone
            if card.error or card.world_size != own.world_size or card.rank in ranks or card.same != own.same:
                grace = min(grace, time.monotonic() + _GRACE_S)
            cards.append(card)
            arrivals.append(read)
            ranks.add(card.rank)
        if len(cards) >= own.world_size or time.monotonic() > grace:
            return cards, arrivals
        time.sleep(_POLL_S)


def _answer(mail: Mail, number: int, salt: str) -> bool:
    """Answer a knock if it has arrived; refuse a stranger's, so that a rank of another job fails at once."""
    key = f"{_PREFIX}/knock/{number}"
    if not mail.store.check([key]):
        return False
    nonce = mail.read(key)
    if nonce is not None:
        mail.put(f"{_PREFIX}/answer/{nonce}", salt)
        return True
    # from another job, or left over from an earlier attempt (whose ranks have ended)
    mail.store.set(f"{_PREFIX}/answer/{mail.store.get(key).decode(errors='replace').rpartition(' ')[2]}", _REFUSED)
    return True


def _card(text: str | None) -> Card | None:
    """Parse a card; return None if the text is none."""
    try:
        card = Card(**json.loads(text or ""))
    except (TypeError, ValueError):
        return None
    known = Card(rank=0, world_size=0, host="")
    right = all(type(getattr(card, name)) is type(value) for name, value in asdict(known).items())
    return card if right else None


def survey(cards: list[Card]) -> list[Company]:
    """Return each rank's place on its machine, in the order of the cards; without the prefix."""
    numbers: dict[str, int] = {}
    for card in sorted(cards, key=lambda card: card.rank):
        numbers.setdefault(card.host, len(numbers))
    neighbours = Counter(card.host for card in cards)
    sharers = Counter((card.host, card.mask) for card in cards)
    return [
        Company(
            host=numbers[card.host],
            num_hosts=len(numbers),
            local_size=neighbours[card.host],
            sharers=sharers[card.host, card.mask],
        )
        for card in cards
    ]


def _wait_until_heard(store: Any, prefix: str, others: int) -> None:
    """Wait until the other ranks have read the verdict, because the store may end with rank 0."""
    deadline = time.monotonic() + _GRACE_S / 2
    while store.add(f"{prefix}/heard", 0) < others and time.monotonic() < deadline:
        time.sleep(_POLL_S)
