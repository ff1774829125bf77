"""Which rank blocks the others, and why: a pure function of all ranks' last collective calls and stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankwise.launch.failures.observation import Observation
from rankwise.launch.failures.verdict import Failure
from rankwise.launch.hardware import format_numbers
from rankwise.vitals.stacks import shorten_stacks

# operations for which all ranks must pass the same shapes; other operations allow different shapes
_SAME_SHAPES = {"all_reduce", "broadcast", "reduce", "all_gather", "allgather", "allreduce", "barrier"}


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Which ranks block the others.

    Attributes:
        kind: "gone", "stopped", "missing", "mismatch", "crossed", "transport" or "unknown".
        ranks: the culprits; empty if all ranks look the same.
        text: one sentence for the user.
    """

    kind: str
    ranks: tuple[int, ...]
    text: str


def find_culprit(states: Sequence[Observation]) -> Culprit:
    """Return which ranks block the others.

    Checked in this order: a process that ended or was stopped; a rank that has not joined a collective in which others
    wait; ranks that wait for each other in different groups; ranks that made different calls; else nobody is blamed.
    """
    ordered = sorted(states, key=lambda state: state.rank)
    for kind, what in (("gone", "has ended"), ("stopped", "is stopped (SIGSTOP)")):
        lost = [state for state in ordered if state.state == kind]
        if lost:
            others = [state for state in ordered if state.state not in {"gone", "stopped"}]
            verb = what if len(lost) == 1 else what.replace("has", "have").replace("is", "are", 1)
            text = f"{_names(lost)} {verb}{_waiting_text(others)}"
            return Culprit(kind=kind, ranks=_ranks(lost), text=text)
    groups = _open_groups(ordered)
    found = [culprit for group in groups if (culprit := _different(group)) is not None]
    if found and found[0].kind == "mismatch":
        return found[0]
    besides = f"; in addition, {found[0].text}" if found else ""
    missing = [culprit for group in groups if (culprit := _missing(group)) is not None]
    if missing:
        cause = _first_cause(missing, ordered)
        return replace(cause, text=cause.text + besides)
    if groups:
        members = groups[0].members
        text = (
            f"all ranks are in {groups[0].call_of(members[0].rank)} with the same arguments{_lines(members)}: the data "
            "do not arrive; check the network between them (rankwise doctor), and whether a backend thread has ended"
        )
        return Culprit(kind="transport", ranks=(), text=text)
    return _by_stacks(ordered)


@dataclass(frozen=True)
class _Group:
    """A process group in which at least one rank waits."""

    name: str
    members: tuple[Observation, ...]  # those with a known state
    calls: Mapping[int, Mapping[int, Mapping[str, Any]]]  # rank -> number -> call, up to the last that the rank began

    def __str__(self) -> str:
        if self.name in {"0", "default_pg"}:
            return "the default group"
        return f"group {self.name} (ranks {format_numbers([state.rank for state in self.members])})"

    def number(self, rank: int) -> int:
        return max(self.calls[rank], default=0)

    def call_of(self, rank: int, number: int | None = None) -> str:
        """Return the name of a call, by default of the last."""
        number = self.number(rank) if number is None else number
        return f"{self.calls[rank][number]['name']} #{number} of {self}"


def _open_groups(states: Sequence[Observation]) -> list[_Group]:
    """Return the groups with an unfinished call of some rank; the default group comes first."""
    names: dict[tuple[str, tuple[int, ...]], None] = {}
    for state in states:
        for group in state.groups:
            if group["calls"] and group["calls"][-1]["ended"] is not True:
                names.setdefault((group["name"], tuple(group["ranks"])))
    found = []
    for name, ranks in sorted(names, key=lambda key: (-len(key[1]), key)):
        members = tuple(state for state in states if state.rank in ranks)
        calls: dict[int, dict[int, Mapping[str, Any]]] = {state.rank: {} for state in members}
        for state in members:
            for group in state.groups:
                if group["name"] == name and tuple(group["ranks"]) == ranks:
                    calls[state.rank] |= {int(call["number"]): call for call in group["calls"]}
        found.append(_Group(name, members, calls))
    return found


def _different(group: _Group) -> Culprit | None:
    """Return the first call that differs between ranks, among those that all known ranks still have recorded."""
    known = [state for state in group.members if group.calls[state.rank]]
    if len(known) < 2:
        return None
    numbers = set.intersection(*(set(group.calls[state.rank]) for state in known))
    for number in sorted(numbers):
        calls = {state.rank: group.calls[state.rank][number] for state in known}
        for aspect in ("name", "arguments", "dtypes", "sizes"):
            if aspect == "sizes" and calls[known[0].rank]["name"] not in _SAME_SHAPES:
                continue
            values = {rank: _aspect(call, aspect) for rank, call in calls.items()}
            if len(set(values.values())) > 1 and "" not in values.values():
                return _mismatch(group, number, aspect, values, calls)
    return None


def _aspect(call: Mapping[str, Any], aspect: str) -> str:
    value = call[aspect]
    if aspect == "arguments":
        return ", ".join(f"{key} {value[key]}" for key in sorted(value))
    if aspect == "sizes":
        return " ".join("x".join(map(str, size)) or "scalar" for size in value)
    return value if isinstance(value, str) else " ".join(value)


def _mismatch(
    group: _Group, number: int, aspect: str, values: Mapping[int, str], calls: Mapping[int, Mapping[str, Any]]
) -> Culprit:
    usual, votes = Counter(values.values()).most_common(1)[0]
    agreed = votes > len(values) / 2
    odd = tuple(rank for rank in sorted(values) if values[rank] != usual) if agreed else tuple(sorted(values))
    what = {"name": "operation", "arguments": "arguments", "dtypes": "dtype", "sizes": "shape"}[aspect]
    parts = []
    for value in dict.fromkeys(values[rank] for rank in sorted(values)):
        ranks = [rank for rank in sorted(values) if values[rank] == value]
        call = calls[ranks[0]]
        told = call["name"] if aspect == "name" else f"{call['name']} with {what} {value}"
        line = f" ({call['line']})" if call["line"] else ""
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {format_numbers(ranks)} called {told}{line}")
    place = f"call #{number} of {group}"
    # a call that has ended on all ranks is an error, but not the call in which they wait
    kind = "past" if all(call["ended"] is True for call in calls.values()) else "mismatch"
    verb = "differ" if what == "arguments" else "differs"
    return Culprit(kind=kind, ranks=odd, text=f"the {what} of {place} {verb}: {'; '.join(parts)}")


def _missing(group: _Group) -> Culprit | None:
    """Return the ranks of a group that have not begun the call in which another rank waits."""
    furthest = max(group.number(state.rank) for state in group.members)
    # if some rank is known to be behind, do not blame a running rank whose calls are unknown
    known = [state for state in group.members if state.groups or state.state != "running"]
    if all(group.number(state.rank) == furthest for state in known):
        known = list(group.members)
    # assume that a rank whose calls are unknown lacks the last call only
    numbers = {state.rank: group.number(state.rank) if state.groups else furthest - 1 for state in known}
    behind = [state for state in known if numbers[state.rank] < furthest]
    if not behind:
        return None
    least = min(numbers.values())
    behind = [state for state in behind if numbers[state.rank] == least]
    there = [state for state in known if numbers[state.rank] > least]
    unheard = [state for state in group.members if state not in known]
    known_there = (state.rank for state in there if least + 1 in group.calls[state.rank])
    rank = next(known_there, None)
    name = f"call #{least + 1} of {group}" if rank is None else group.call_of(rank, least + 1)
    text = (
        f"{_names(behind)} {'has' if len(behind) == 1 else 'have'} not joined {name} "
        f"({_wait(there, 'there')}); {_where(behind)}"
    )
    if unheard:
        text += f"; {_names(unheard)} did not report {'its' if len(unheard) == 1 else 'their'} calls"
    return Culprit(kind="missing", ranks=_ranks(behind), text=text)


def _first_cause(missing: Sequence[Culprit], states: Sequence[Observation]) -> Culprit:
    """Do not blame a rank that misses one group's call because it waits in another group, unless all do."""
    missed = {rank for culprit in missing for rank in culprit.ranks}
    waiting = {state.rank for state in states if _has_open_call(state)}
    for culprit in missing:
        if not set(culprit.ranks) & waiting:
            return culprit
    if len(missing) == 1 or missed - waiting:
        return missing[0]
    text = "ranks wait for each other in different groups: " + "; ".join(culprit.text for culprit in missing)
    return Culprit(kind="crossed", ranks=tuple(sorted(missed)), text=text)


def _has_open_call(state: Observation) -> bool:
    return any(group["calls"] and group["calls"][-1]["ended"] is False for group in state.groups)


def _by_stacks(states: Sequence[Observation]) -> Culprit:
    """Find the culprit from the stacks alone: no unfinished call is known."""
    busy = [state for state in states if not state.waits]
    if busy and len(busy) < len(states):
        there = [state for state in states if state.waits]
        text = f"{_wait(there, 'in a collective')}; {_where(busy)}"
        return Culprit(kind="missing", ranks=_ranks(busy), text=text)
    what = "no rank waits in a collective" if busy else "all ranks wait in collectives that were not recorded"
    return Culprit(kind="unknown", ranks=(), text=f"{what}: {_where(states)}")


def _where(states: Sequence[Observation]) -> str:
    """Return where the ranks are, equal places once."""
    places: dict[str, list[int]] = {}
    for state in states:
        what = f"in {state.place}" if state.place else "at an unknown place"
        if state.state == "silent":
            what += ", its threads do not run (a call holds the interpreter lock, or it cannot be reached)"
        places.setdefault(what, []).append(state.rank)
    if len(places) == 1 and len(states) == 1:
        return f"it is {next(iter(places))}"
    told = [
        (f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {format_numbers(ranks)} are", what)
        for what, ranks in places.items()
    ]
    return ", ".join(" ".join(pair) for pair in told)


def _waiting_text(others: Sequence[Observation]) -> str:
    waiting = [state for state in others if _has_open_call(state) or state.waits]
    if not waiting:
        return ""
    what = "a collective"
    for group in _open_groups(waiting)[:1]:
        what = group.call_of(next(rank for rank, calls in group.calls.items() if calls))
    return f"; {_wait(waiting, f'in {what}')}"


def _lines(states: Sequence[Observation]) -> str:
    places = list(dict.fromkeys(state.place for state in states if state.place))
    return f", {places[0]}" if len(places) == 1 else (f", {len(places)} places" if places else "")


def _names(states: Sequence[Observation]) -> str:
    return f"rank{'s' if len(states) > 1 else ''} {format_numbers([state.rank for state in states])}"


def _wait(states: Sequence[Observation], where: str) -> str:
    return f"{_names(states)} {'waits' if len(states) == 1 else 'wait'} {where}{_lines(states)}"


def _ranks(states: Sequence[Observation]) -> tuple[int, ...]:
    return tuple(state.rank for state in states)


def blame(
    found: Sequence[Observation],
    missing: Collection[int],
    reason: str,
    *,
    gone: Mapping[int, float] | None = None,
) -> Failure:
    """Return a failure for the rank that blocks the others, with its stacks.

    Checked in this order: a rank that never began; a rank that has exited, if all others wait; the rank that `choose`
    returns.

    Args:
        found: observations of the running ranks; at least one unless a rank is missing.
        missing: ranks that have not begun.
        reason: why the ranks count as hung.
        gone: ranks that have ended with exit 0, and when.
    """
    places = {seen.rank: seen.where for seen in found}
    if missing:
        headline = f"hangs: {reason}; it never started"
        return Failure(rank=min(missing), headline=headline, detail="", status=None, exitcode=1, places=places)
    culprit, why = choose(found)
    rank, headline = culprit.rank, f"hangs ({culprit.where}): {'; '.join(filter(None, (reason, why)))}"
    if gone and not any(seen.frozen for seen in found) and all(seen.waits for seen in found):
        rank = min(gone, key=gone.__getitem__)
        headline = (
            f"had finished (exit 0) while rank {culprit.rank} still waits for it in a collective "
            f"({culprit.where}): {reason}; the ranks do not call the same collectives, here is rank "
            f"{culprit.rank}"
        )
    return Failure(
        rank=rank,
        headline=headline,
        detail=shorten_stacks(culprit.stacks),
        witness=culprit.rank,
        status=None,
        exitcode=1,
        places=places,
        waits=culprit.waits > 0,
    )


def choose(found: Sequence[Observation]) -> tuple[Observation, str]:
    """Return the rank that blocks the others, and the reason; the reason is "" for a single rank.

    Checked in this order: the collectives that torch has recorded; a process that is stopped or has no heartbeat; a
    rank that does not wait in a collective while others do; the rank with the lowest (epoch, step); the rank at another
    place than most; the only rank in its phase.
    """
    if any(group.get("calls") for seen in found for group in seen.groups):
        culprit = find_culprit(found)
        if culprit.kind in {"missing", "mismatch", "crossed"}:
            return next(seen for seen in found if seen.rank == culprit.ranks[0]), culprit.text
    frozen = [seen for seen in found if seen.frozen]
    if frozen:
        return frozen[0], frozen[0].frozen
    if len(found) == 1:
        return found[0], ""
    return _choose_by_stacks(found)


def _choose_by_stacks(found: Sequence[Observation]) -> tuple[Observation, str]:
    places = {seen.rank: seen.place for seen in found}
    here = Counter(places.values())

    def suspect(seen: Observation) -> tuple[tuple[int, int], int, float]:
        return _progress(seen), here[places[seen.rank]], -seen.quiet_s

    least = min(seen.waits for seen in found)
    busy = [seen for seen in found if seen.waits == least]
    if len(busy) < len(found):
        return min(busy, key=suspect), "the others wait for it in a collective"
    behind, furthest = min(found, key=suspect), max(found, key=_progress)
    if _progress(behind) != _progress(furthest):
        return behind, f"it is behind the others (furthest: {furthest.said})"
    most, num_most = here.most_common(1)[0]
    if len(here) > 1 and num_most > len(found) / 2:
        odd = [seen for seen in found if places[seen.rank] != most]
        return min(odd, key=suspect), f"it is elsewhere than the others ({num_most} of {len(found)} are at {most})"
    phases = [seen.phase for seen in found]
    lone = [seen for seen in found if phases.count(seen.phase) == 1]
    first = max(lone or found, key=lambda seen: seen.quiet_s)
    if lone:
        return first, "its phase differs from the others'"
    where = "all ranks are at the same place" if len(here) == 1 else "the ranks are at different places"
    return first, f"{where}; it was the first to stop reporting"


def _progress(seen: Observation) -> tuple[int, int]:
    none = -1
    return (none if seen.epoch is None else seen.epoch, none if seen.step is None else seen.step)
