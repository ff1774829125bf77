"""The ranks' first meeting, over the store and before any collective: who is here, who is missing, who cannot go on.

A store may be left over from an earlier attempt (torch's agent keeps one store for all restarts), so no fixed key
can be trusted. Each rank *knocks* with a random nonce, rank 0 answers every knock with the attempt's own random prefix,
and all further keys live under it: what is stale is never read. Under the prefix each rank leaves a card; rank 0 reads
them all, judges, and publishes one verdict that every rank obeys.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from rankwise.errors import WorldError

__all__ = ["Card", "Company", "await_key", "judge", "meet"]

_POLL_S = 0.01
_GRACE_S = 10.0  # after a rank has reported an error the others get this long to arrive and hear of it
_PREFIX = "rankwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a rank says of itself on arrival.

    Attributes:
        rank: its rank.
        world_size: how many ranks it expects.
        host: what tells its machine from others.
        mask: the cores it may run on, as text.
        gpu: UUID of its CUDA device, "" without one.
        place: how to name it in a message.
        error: why it cannot go on, "" if it can.
    """

    rank: int
    world_size: int
    host: str
    mask: str = ""
    gpu: str = ""
    place: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """What every rank learns from the meeting; lists are by rank.

    Attributes:
        prefix: prefix of the store's keys for this attempt.
        hosts: number of each rank's machine, in order of their lowest ranks.
        sharers: how many ranks of the same machine may use the same cores, itself included.
    """

    prefix: str
    hosts: list[int]
    sharers: list[int]


def judge(cards: list[Card], *, world_size: int, allow_shared_device: bool) -> str:
    """Return why these ranks cannot form a world, "" if they can; missing ranks are not judged here.

    Args:
        cards: in order of arrival.
        world_size: what rank 0 expects.
        allow_shared_device: whether two ranks may compute on one GPU.
    """
    troubles = [f"rank {card.rank} ({card.place}): {card.error}" for card in cards if card.error]
    if troubles:
        return "\n".join(troubles)
    for card in cards:
        if card.world_size != world_size:
            return (
                f"rank {card.rank} ({card.place}) expects {card.world_size} ranks, rank 0 expects {world_size}: "
                "start all ranks with the same number of ranks"
            )
    return _twice(cards, by_gpu=False) or ("" if allow_shared_device else _twice(cards, by_gpu=True))


def _twice(cards: list[Card], *, by_gpu: bool) -> str:
    seen: dict[Any, Card] = {}
    for card in cards:
        mark = card.gpu if by_gpu else card.rank
        if mark == "":
            continue
        if mark in seen:
            other = seen[mark]
            if not by_gpu:
                return f"two processes are rank {card.rank}: {other.place} and {card.place}; each rank is started once"
            return (
                f"ranks {other.rank} and {card.rank} are both on GPU {card.gpu} of {card.place}: give each rank its "
                "own (fewer ranks per machine, or CUDA_VISIBLE_DEVICES), or pass allow_shared_device=True"
            )
        seen[mark] = card
    return ""


def meet(store: Any, card: Card, *, timeout: timedelta, allow_shared_device: bool = False) -> Company:
    """Meet the other ranks; every rank calls it, with a store of the same server.

    Raises:
        WorldError: a rank did not arrive in time, or the ranks cannot form a world; every rank that arrived raises.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if card.rank == 0:
        return _host(store, card, deadline, allow_shared_device=allow_shared_device)
    nonce = secrets.token_hex(8)
    number = store.add(f"{_PREFIX}/knocks", 1)
    store.set(f"{_PREFIX}/knock/{number}", nonce)
    prefix = _await(store, f"{_PREFIX}/answer/{nonce}", deadline, card)
    arrived = store.add(f"{prefix}/arrived", 1)
    store.set(f"{prefix}/card/{arrived}", json.dumps(asdict(card)))
    verdict = json.loads(_await(store, f"{prefix}/verdict", deadline + _GRACE_S, card))
    store.add(f"{prefix}/heard", 1)
    return _obey(verdict, prefix)


def await_key(store: Any, key: str, patience: timedelta) -> str:
    """Return what somebody puts under a key of the store; what the store raises when it does not come is its own."""
    store.wait([key], patience)
    return str(store.get(key).decode())


def _await(store: Any, key: str, deadline: float, card: Card) -> str:
    try:
        return await_key(store, key, timedelta(seconds=max(1.0, deadline - time.monotonic())))
    except Exception as error:
        raise WorldError(
            f"rank {card.rank} ({card.place}) reached the store but heard nothing from rank 0 in time: "
            "look at rank 0's output, it did not start, failed, or was stopped"
        ) from error


def _obey(verdict: dict[str, Any], prefix: str) -> Company:
    if verdict["error"]:
        raise WorldError(verdict["error"])
    return Company(prefix=prefix, hosts=verdict["hosts"], sharers=verdict["sharers"])


def _host(store: Any, card: Card, deadline: float, *, allow_shared_device: bool) -> Company:
    prefix = f"{_PREFIX}/{secrets.token_hex(8)}"
    cards = _collect(store, card, prefix, deadline)
    error = judge(cards, world_size=card.world_size, allow_shared_device=allow_shared_device)
    missing = sorted(set(range(card.world_size)) - {found.rank for found in cards})
    if missing and not error:
        error = (
            f"{len(missing)} of {card.world_size} ranks did not arrive in time: {_some(missing)}. "
            "Look at their output; a machine that cannot reach rank 0's address and port looks the same"
        )
    verdict = {"error": error, **({} if error else _survey(cards))}
    store.set(f"{prefix}/verdict", json.dumps(verdict))
    if error:
        _wait_until_heard(store, prefix, len(cards) - 1)
    return _obey(verdict, prefix)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:20])) + (f" and {len(ranks) - 20} more" if len(ranks) > 20 else "")


def _collect(store: Any, own: Card, prefix: str, deadline: float) -> list[Card]:
    """Answer knocks and read cards until everybody is here, time is up, or a failure has had its time to spread."""
    cards, unanswered, knocks = [own], list[int](), 0
    grace = min(deadline, time.monotonic() + _GRACE_S) if own.error else deadline
    while True:
        count = store.add(f"{_PREFIX}/knocks", 0)
        unanswered += range(knocks + 1, count + 1)
        knocks = count
        unanswered = [number for number in unanswered if not _answer(store, number, prefix)]
        arrived = store.add(f"{prefix}/arrived", 0)
        for number in range(len(cards), arrived + 1):
            # counted before it is put: not every store's get waits for it
            patience = timedelta(seconds=max(1.0, deadline - time.monotonic()))
            try:
                card = await_key(store, f"{prefix}/card/{number}", patience)
            except Exception:  # noqa: BLE001  (each store has its own); it died in between: it is one that is missing
                return cards
            cards.append(Card(**json.loads(card)))
            if judge(cards, world_size=own.world_size, allow_shared_device=True):
                grace = min(grace, time.monotonic() + _GRACE_S)
        if len(cards) >= own.world_size or time.monotonic() > grace:
            return cards
        time.sleep(_POLL_S)


def _answer(store: Any, number: int, prefix: str) -> bool:
    key = f"{_PREFIX}/knock/{number}"
    if not store.check([key]):
        return False
    store.set(f"{_PREFIX}/answer/{store.get(key).decode()}", prefix)
    return True


def _survey(cards: list[Card]) -> dict[str, list[int]]:
    by_rank = sorted(cards, key=lambda card: card.rank)
    numbers: dict[str, int] = {}
    for card in by_rank:
        numbers.setdefault(card.host, len(numbers))
    cores = [(card.host, card.mask) for card in by_rank]
    return {"hosts": [numbers[card.host] for card in by_rank], "sharers": [cores.count(core) for core in cores]}


def _wait_until_heard(store: Any, prefix: str, others: int) -> None:
    """Rank 0 may hold the store: leaving before the others have read the verdict would hide it from them."""
    deadline = time.monotonic() + _GRACE_S / 2
    while store.add(f"{prefix}/heard", 0) < others and time.monotonic() < deadline:
        time.sleep(_POLL_S)
