"""Decide which nodes take part in a run and what happens next: pure decisions, without sockets and clocks.

A run is a sequence of *rounds*. In a round the ranks of its nodes start together and end together. Between rounds the
nodes *gather*. The input is joins, losses and messages of nodes; the output is `Action`s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rankwise.launch.elastic.decisions import Action, Cause, Done, End, Lost, Member, Rules, Say, Start, Stop

__all__ = ["Membership"]

_FIRST_CALL_S = 5.0  # how long to wait for more nodes once the minimum is there
_LAST_CALL_S = 2.0  # the same between rounds
_SETTLE_S = 5.0  # after ranks lost peers: how long to wait for the cause from another node
_REMIND_S = 30.0
_FIRST_REMINDER_S = 3.0

Phase = Literal["gathering", "running", "stopping", "over"]


@dataclass(kw_only=True, slots=True)
class Membership:
    """The state of a run; each method takes one event and the time, and returns the actions.

    Attributes:
        rules: the rules of the run.
        now_s: when it begins, monotonic clock.
        number: number of the next round.
        failures: number of failed rounds.
        quorum: how many nodes of the last round the next one needs after a possible network split. If the number of
            nodes is fixed, replacements count too, because the other part needs the same number.
    """

    rules: Rules
    now_s: float
    number: int = 0
    failures: int = 0
    quorum: int = 0
    phase: Phase = "gathering"
    members: dict[int, Member] = field(default_factory=dict)
    round: tuple[int, ...] = ()
    lost: list[Member] = field(default_factory=list)
    _silent: int = 0
    _signal: int | None = None
    _growing: bool = False
    _hurried: bool = False  # the ranks of this round are stopped without saving
    _doubt_until_s: float | None = None  # when to end the round if only consequences of a failure are known
    _held_until_s: float = 0.0  # until when a running inquiry looks for the culprit
    _since_s: float = 0.0
    _changed_s: float = 0.0
    _reminded_s: float = 0.0
    _out: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._since_s = self._changed_s = self._reminded_s = self.now_s

    def join(self, member: Member, now: float) -> list[Action]:
        """A node has joined."""
        member.joined_s = self._changed_s = now
        twin = next((m for m in self.members.values() if m.wish is not None and m.wish == member.wish), None)
        self.members[member.key] = member
        if twin is not None:
            self._say(f"nodes {twin} and {member} both have --node-rank {member.wish}: the second waits for this rank")
        elif self.phase in {"running", "stopping"} and len(self.round) >= self.rules.max_nodes:
            self._say(f"node {member} waits: {len(self.round)} nodes are running, which is the maximum")
        return self._settle(now)

    def at_work(self) -> dict[int, str]:
        """Return the names of the nodes with running ranks, by key."""
        here = [self.members[key] for key in self.round if key in self.members]
        return {member.key: member.name for member in here if member.done is None}

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._settle(now)

    def failing(self, key: int, now: float) -> list[Action]:
        """A node ends its ranks because one of them has failed."""
        if key in self.round and self.phase in {"running", "stopping"}:
            self._stop(in_peace=False)
        return self._settle(now)

    def leaving(self, key: int, signal: int, now: float) -> list[Action]:
        """A node ends its ranks because of a signal from outside."""
        if key in self.round and self.phase in {"running", "stopping"}:
            self._signal = signal if self._signal is None else self._signal
            self._say(f"node {self.members[key]} has received signal {signal}: all nodes save and end")
            self._stop(in_peace=True)
        return self._settle(now)

    def done(self, key: int, done: Done, port: int, now: float) -> list[Action]:
        """The ranks of a node have ended; it holds a port for the next round."""
        member = self.members.get(key)
        if member is not None:
            member.done, member.port = done, port
            if done.status == "failed" and key in self.round and self.phase in {"running", "stopping"}:
                if done.suspicion < 2:
                    self._stop(in_peace=False)
                elif self._doubt_until_s is None:
                    self._doubt_until_s = now + _SETTLE_S
        return self._settle(now)

    def hold(self, until_s: float) -> None:
        """Keep the round running until then: an inquiry looks for the culprit."""
        self._held_until_s = until_s

    def gone(self, key: int, why: str, now: float, *, silent: bool) -> list[Action]:
        """A node is lost; `silent`: it may still be alive behind a network split."""
        member = self.members.pop(key, None)
        if member is not None and self.phase != "over":
            at_work = key in self.round and self.phase in {"running", "stopping"} and member.done is None
            self._changed_s = now
            if at_work:
                self._say(f"node {member} is lost: {why}")
                self.lost.append(member)
                self._silent += silent
                self._stop(in_peace=False)
            else:
                self._say(f"node {member} has left: {why}")
                here = [self.members[other] for other in self.round if other in self.members]
                if self.phase == "gathering" and key in self.round and silent and self._is_minority(here):
                    self._end_minority(here, f"node {member} was lost", member.first_rank)
        return self._settle(now)

    def _say(self, text: str) -> None:
        self._out.append(Say(text=text))

    def _stop(self, *, in_peace: bool) -> None:
        if self.phase == "stopping" and (in_peace or self._hurried):
            return
        self.phase, self._hurried = "stopping", not in_peace
        keys = tuple(key for key in self.round if key in self.members and self.members[key].done is None)
        self._out.append(Stop(in_peace=in_peace, keys=keys))

    def _settle(self, now: float) -> list[Action]:
        if self.phase in {"running", "stopping"}:
            here = [self.members[key] for key in self.round if key in self.members]
            if all(member.done is not None for member in here):
                self._judge(here, now)
            elif self._doubt_until_s is not None and now >= max(self._doubt_until_s, self._held_until_s):
                self._stop(in_peace=False)
            elif self.phase == "running" and self._may_grow(now):
                self._growing = True
                self._say("another node has joined: the ranks save and continue with it")
                self._stop(in_peace=True)
        if self.phase == "gathering":
            self._gather(now)
        out, self._out = self._out, []
        return out

    def _may_grow(self, now: float) -> bool:
        wishes = {self.members[key].wish for key in self.round if key in self.members} - {None}
        return len(self.round) < self.rules.max_nodes and any(
            member.key not in self.round and now >= member.joined_s + _LAST_CALL_S and member.wish not in wishes
            for member in self.members.values()
        )

    def _judge(self, here: list[Member], now: float) -> None:
        """Decide after the end of a round: all its ranks have ended, or their nodes are lost."""
        ends = [member.done for member in here if member.done is not None]
        states = [done.status for done in ends]
        if self._signal is not None and not self.lost:
            self._end(End(again="again" in states, signal=self._signal))
        elif self.lost:
            self._judge_loss(here, now)
        elif any(d.status == "failed" and not (self._growing and d.suspicion == 2) for d in ends):
            self._judge_failure(here, now)
        elif all(state == "ended" for state in states):
            self._end(End())
        elif self._growing:
            self._gather_again(now)
        else:
            # the ranks agreed among themselves to end: they reached their time limit
            self._end(End(again="again" in states, exitcode=0 if "again" in states else 1, line="the ranks were ended"))

    def _judge_loss(self, here: list[Member], now: float) -> None:
        names = ", ".join(map(str, self.lost))
        first = self.lost[0].first_rank
        line = f"node {names} was lost"
        if not here:
            self._end(End(exitcode=1, line=line, rank=first))
        elif self._silent and self._is_minority(here):
            self._end_minority(here, line, first)
        elif self._signal is not None or not self._may_go_on(counts=self.rules.min_nodes == self.rules.max_nodes):
            self._end(End(exitcode=1, line=line, rank=first))
        else:
            self._out.append(Lost(line=line, rank=first))
            if self.rules.min_nodes == self.rules.max_nodes:
                self._say(f"restart {self.failures} of {self.rules.max_restarts} once another node has joined")
            self._gather_again(now)

    def _is_minority(self, here: list[Member]) -> bool:
        return self.rules.others_may_host and 2 * len(here) < len(self.round)

    def _end_minority(self, here: list[Member], line: str, rank: int) -> None:
        line += f"; the {len(here)} nodes here may be a cut-off minority of {len(self.round)}, which must not continue"
        self._end(End(exitcode=1, line=line, rank=rank))

    def _judge_failure(self, here: list[Member], now: float) -> None:
        failed = [
            (member, member.done) for member in here if member.done is not None and member.done.status == "failed"
        ]
        member, done = min(failed, key=lambda pair: (pair[1].suspicion, pair[1].failed_s))
        line = f"rank {done.rank} on node {member} {done.headline}"
        early = [str(other) for other in here if other.done is not None and other.done.status == "ended"]
        if done.suspicion and early:
            line += f" (the ranks of node {', '.join(early)} had finished: do all ranks call the same collectives?)"
        self._out.append(Cause(key=member.key, line=line, text=done.text))
        if self._may_go_on(counts=True):
            self._say(f"starting all ranks again, restart {self.failures} of {self.rules.max_restarts}")
            self._gather_again(now)
        else:
            self._end(End(exitcode=done.exitcode or 1, line=line, rank=done.rank))

    def _may_go_on(self, *, counts: bool) -> bool:
        self.failures += counts
        return self.failures <= self.rules.max_restarts or not counts

    def _gather_again(self, now: float) -> None:
        self.phase = "gathering"
        self._since_s = self._changed_s = self._reminded_s = now
        self._growing, self._silent, self.quorum = False, 0, 0

    def _gather(self, now: float) -> None:
        here, rules = self._candidates(), self.rules
        least = max(rules.min_nodes, self.quorum)
        counted = len(here) if rules.min_nodes == rules.max_nodes else sum(member.veteran for member in here)
        enough = len(here) >= least and counted >= self.quorum
        call_s = _FIRST_CALL_S if self.number == 0 else _LAST_CALL_S
        if enough and (len(here) >= rules.max_nodes or now >= self._changed_s + call_s):
            self._begin(here)
        elif not enough:
            self._wait(here, least, now)

    def _candidates(self) -> list[Member]:
        """Return the nodes for the next round: those of the last round first, each node rank once."""
        found, wishes = list[Member](), set[int]()
        known = sorted(self.members.values(), key=lambda m: (m.seat is None, m.seat, not m.home, not m.veteran, m.key))
        for member in known:
            if member.port is not None and member.wish not in wishes and len(found) < self.rules.max_nodes:
                found.append(member)
                wishes |= {member.wish} if member.wish is not None else set()
        return found

    def _begin(self, here: list[Member]) -> None:
        here = sorted(here, key=lambda m: (m.wish is None, m.wish or 0))  # stable: without wishes the order stays
        for member in self.members.values():
            member.seat = None
        first = 0
        for seat, member in enumerate(here):
            member.seat, member.first_rank, member.done = seat, first, None
            first += member.num_ranks
        self._hurried, self._doubt_until_s, self._held_until_s = False, None, 0.0
        self.round, self.lost, self.phase = tuple(member.key for member in here), [], "running"
        self._out.append(Start(number=self.number, members=tuple(here)))
        self.number, self.quorum = self.number + 1, 0

    def _wait(self, here: list[Member], least: int, now: float) -> None:
        names = ", ".join(map(str, here)) or "none"
        lost = f"; lost: {', '.join(map(str, self.lost))}" if self.lost else ""
        if self.quorum:
            lost += f"; {self.quorum} of the last round must be here, because the others may continue behind a cut link"
        if now >= self._since_s + self.rules.join_timeout_s:
            limit = f"{self.rules.join_timeout_s:g} s (--join-timeout)"
            self._end(End(exitcode=1, line=f"{len(here)} of {least} nodes joined within {limit}: {names}{lost}"))
        elif now >= self._reminded_s + (_FIRST_REMINDER_S if self._reminded_s == self._since_s else _REMIND_S):
            self._reminded_s = now
            self._say(f"waiting for {max(1, least - len(here))} more of {least} nodes; here: {names}{lost}")

    def _end(self, end: End) -> None:
        self.phase = "over"
        self._out.append(end)
