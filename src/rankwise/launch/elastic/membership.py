"""Decide which nodes take part in a run and what happens next: pure decisions, without sockets and clocks.

A run is a sequence of *rounds*. In a round the ranks of its nodes start together and end together. Between rounds the
nodes *gather*. The input is joins, losses and messages of nodes; the output is messages to nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from rankwise._process.addresses import is_loopback
from rankwise.launch.elastic.nodes import Nodes

_FIRST_CALL_S = 5.0  # how long to wait for more nodes once the minimum is there
_LAST_CALL_S = 2.0  # the same between rounds
_SETTLE_S = 5.0  # after ranks lost peers: how long to wait for the cause from another node
_REMIND_S = 30.0
_FIRST_REMINDER_S = 3.0

Phase = Literal["gathering", "running", "stopping", "over"]


class Order(NamedTuple):
    """A message to nodes; `keys`: to which, None: to all."""

    message: dict[str, Any]
    keys: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """How a node's ranks ended in a round.

    Attributes:
        status: "ended": all succeeded; "failed"; "again": saved and ended when asked to; "stopped": by a supervisor.
        rank: global rank of the failure.
        headline: one line about what happened.
        text: the whole report.
        exitcode: exit code for the launch.
        suspicion: as `RankEnd.suspicion`: 0 is a cause, 2 a consequence.
        failed_s: when it failed, on the coordinator's clock.
    """

    status: str
    rank: int = 0
    headline: str = ""
    text: str = ""
    exitcode: int = 0
    suspicion: int = 0
    failed_s: float = 0.0


@dataclass(kw_only=True, slots=True)
class Member:
    """A node that takes part in the round or waits for the next one.

    Attributes:
        key: unique in the run; nodes that join later have greater keys.
        name: host name.
        address: its address on its connection to the rendezvous.
        host_address: the address of the rendezvous on the same connection.
        num_ranks: number of ranks that it starts.
        wanted_rank: the node rank that it asked for.
        home: whether it holds the rendezvous; it comes first among new nodes.
        port: port that it holds for rank 0; None while its ranks run.
        node_rank: its node rank in the newest round; None before its first.
        first_rank: global rank of its first rank in that round.
        done: how its ranks ended in this round.
        joined_s: when it joined.
        in_last_round: it was in the last round of a rendezvous that fell silent; the quorum counts such nodes.
    """

    key: int
    name: str
    address: str
    num_ranks: int
    host_address: str = ""
    wanted_rank: int | None = None
    home: bool = False
    port: int | None = None
    node_rank: int | None = None
    first_rank: int = 0
    done: Done | None = None
    joined_s: float = 0.0
    in_last_round: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def done_from(message: Mapping[str, Any], now: float) -> Done:
    """Read a node's report; missing fields get empty values."""
    age = message.get("age_s")
    texts = {name: str(message.get(name, "")) for name in ("status", "headline", "text")}
    numbers = {name: int(message.get(name) or 0) for name in ("rank", "exitcode", "suspicion")}
    return Done(**texts, **numbers, failed_s=now - float(age or 0.0))  # type: ignore[arg-type]


@dataclass(kw_only=True, slots=True)
class Membership:
    """The state of a run; each method takes one event and the time, and returns messages to nodes.

    Attributes:
        nodes: how many nodes take part, and how long they wait for each other.
        max_restarts: how many rounds may fail before the run fails.
        begun_s: when it begins, monotonic clock.
        run_id: the same for all rounds; a run that continues after a lost rendezvous keeps its id.
        number: number of the next round.
        failures: number of failed rounds.
        quorum: how many nodes of the last round the next one needs after a possible network split. If the number of
            nodes is fixed, replacements count too, because the other part needs the same number.
        held_until_s: until when a round goes on although ranks lost their peers: all nodes are asked for the culprit.
    """

    nodes: Nodes
    begun_s: float
    max_restarts: int = 0
    run_id: str = ""
    number: int = 0
    failures: int = 0
    quorum: int = 0
    phase: Phase = "gathering"
    members: dict[int, Member] = field(default_factory=dict)
    round: tuple[int, ...] = ()
    lost: list[Member] = field(default_factory=list)
    held_until_s: float = 0.0
    _silent: int = 0
    _signal: int | None = None
    _growing: bool = False
    _hurried: bool = False  # the ranks of this round are stopped without saving
    _doubt_until_s: float | None = None  # when to end the round if only consequences of a failure are known
    _since_s: float = 0.0
    _changed_s: float = 0.0
    _reminded_s: float = 0.0
    _out: list[Order] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._since_s = self._changed_s = self._reminded_s = self.begun_s

    def join(self, member: Member, now: float) -> list[Order]:
        """A node has joined."""
        member.joined_s = self._changed_s = now
        rank = member.wanted_rank
        other = next((m for m in self.members.values() if rank is not None and m.wanted_rank == rank), None)
        self.members[member.key] = member
        if other is not None:
            self._say(f"nodes {other} and {member} both have --node-rank {rank}: the second waits for this rank")
        elif self.phase in {"running", "stopping"} and len(self.round) >= self.nodes.max_nodes:
            self._say(f"node {member} waits: {len(self.round)} nodes are running, which is the maximum")
        return self.tick(now)

    def ending(self, key: int, signal: int | None, now: float) -> list[Order]:
        """A node ends its ranks: because of a signal from outside, or (None) because one of them has failed."""
        if key in self.round and self.phase in {"running", "stopping"}:
            if signal is not None:
                self._signal = signal if self._signal is None else self._signal
                self._say(f"node {self.members[key]} has received signal {signal}: all nodes save and end")
            self._stop(in_peace=signal is not None)
        return self.tick(now)

    def done(self, key: int, done: Done, port: int, now: float) -> list[Order]:
        """The ranks of a node have ended; it holds a port for the next round."""
        member = self.members.get(key)
        if member is not None:
            member.done, member.port = done, port
            if done.status == "failed" and key in self.round and self.phase in {"running", "stopping"}:
                if done.suspicion < 2:
                    self._stop(in_peace=False)
                elif self._doubt_until_s is None:
                    self._doubt_until_s = now + _SETTLE_S
        return self.tick(now)

    def gone(self, key: int, why: str, now: float, *, silent: bool) -> list[Order]:
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
                if self.phase == "gathering" and key in self.round and silent:
                    self._ends_as_minority(here, f"node {member} was lost", member.first_rank)
        return self.tick(now)

    def _order(self, kind: str, *, to: Iterable[int] | None = None, **fields: Any) -> None:
        self._out.append(Order({"kind": kind, **fields}, None if to is None else tuple(to)))

    def _say(self, text: str) -> None:
        self._order("say", text=text, detail="")

    def _stop(self, *, in_peace: bool) -> None:
        if self.phase == "stopping" and (in_peace or self._hurried):
            return
        self.phase, self._hurried = "stopping", not in_peace
        keys = [key for key in self.round if key in self.members and self.members[key].done is None]
        self._order("stop", to=keys, in_peace=in_peace)

    def tick(self, now: float) -> list[Order]:
        """Decide what is due; return this, and what was decided since the last call."""
        if self.phase in {"running", "stopping"}:
            here = [self.members[key] for key in self.round if key in self.members]
            if all(member.done is not None for member in here):
                self._decide(here, now)
            elif self._doubt_until_s is not None and now >= max(self._doubt_until_s, self.held_until_s):
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
        wanted = {self.members[key].wanted_rank for key in self.round if key in self.members} - {None}
        return len(self.round) < self.nodes.max_nodes and any(
            member.key not in self.round and now >= member.joined_s + _LAST_CALL_S and member.wanted_rank not in wanted
            for member in self.members.values()
        )

    def _decide(self, here: list[Member], now: float) -> None:
        """Decide after the end of a round: all its ranks have ended, or their nodes are lost."""
        ends = [member.done for member in here if member.done is not None]
        states = [done.status for done in ends]
        if self._signal is not None and not self.lost:
            self._end(again="again" in states, signal=self._signal)
        elif self.lost:
            self._decide_after_loss(here, now)
        elif any(d.status == "failed" and not (self._growing and d.suspicion == 2) for d in ends):
            self._decide_after_failure(here, now)
        elif all(state == "ended" for state in states):
            self._end()
        elif self._growing:
            self._gather_again(now)
        else:
            # the ranks agreed among themselves to end: they reached their time limit
            self._end(again="again" in states, exitcode=0 if "again" in states else 1, line="the ranks were ended")

    def _decide_after_loss(self, here: list[Member], now: float) -> None:
        names = ", ".join(map(str, self.lost))
        first = self.lost[0].first_rank
        line, elastic = f"node {names} was lost", self.nodes.elastic
        if here and self._silent and self._ends_as_minority(here, line, first):
            return
        self.failures += not elastic
        if not here or self._signal is not None or (not elastic and self.failures > self.max_restarts):
            self._end(exitcode=1, line=line, rank=first)
        else:
            self._record(line, first)
            if not elastic:
                self._say(f"restart {self.failures} of {self.max_restarts} once another node has joined")
            self._gather_again(now)

    def _ends_as_minority(self, here: list[Member], line: str, rank: int) -> bool:
        """End the run if the other nodes of the round may continue it at another rendezvous; return whether."""
        if len(self.nodes.rendezvous) == 1 or 2 * len(here) >= len(self.round):
            return False
        line += f"; the {len(here)} nodes here may be a cut-off minority of {len(self.round)}, which must not continue"
        self._end(exitcode=1, line=line, rank=rank)
        return True

    def _decide_after_failure(self, here: list[Member], now: float) -> None:
        failed = [
            (member, member.done) for member in here if member.done is not None and member.done.status == "failed"
        ]
        member, done = min(failed, key=lambda pair: (pair[1].suspicion, pair[1].failed_s))
        line = f"rank {done.rank} on node {member} {done.headline}"
        early = [str(other) for other in here if other.done is not None and other.done.status == "ended"]
        if done.suspicion and early:
            line += f" (the ranks of node {', '.join(early)} had finished: do all ranks call the same collectives?)"
        for key, other in self.members.items():
            if other is member:
                self._order("report", to=[key], line=line)
            else:
                self._order("say", to=[key], text=line, detail=done.text if other.home else "")
        self.failures += 1
        if self.failures <= self.max_restarts:
            self._say(f"starting all ranks again, restart {self.failures} of {self.max_restarts}")
            self._gather_again(now)
        else:
            self._end(exitcode=done.exitcode or 1, line=line, rank=done.rank, recorded=True)

    def _gather_again(self, now: float) -> None:
        self.phase = "gathering"
        self._since_s = self._changed_s = self._reminded_s = now
        self._growing, self._silent, self.quorum = False, 0, 0

    def _gather(self, now: float) -> None:
        """Begin the next round if enough nodes are here: those of the last round first, each node rank once."""
        here, wanted, nodes = list[Member](), set[int](), self.nodes
        known = sorted(
            self.members.values(),
            key=lambda m: (m.node_rank is None, m.node_rank, not m.home, not m.in_last_round, m.key),
        )
        for member in known:
            if member.port is not None and member.wanted_rank not in wanted and len(here) < nodes.max_nodes:
                here.append(member)
                wanted |= {member.wanted_rank} if member.wanted_rank is not None else set()
        least = max(nodes.min_nodes, self.quorum)
        counted = sum(member.in_last_round for member in here) if nodes.elastic else len(here)
        enough = len(here) >= least and counted >= self.quorum
        call_s = _FIRST_CALL_S if self.number == 0 else _LAST_CALL_S
        if enough and (len(here) >= nodes.max_nodes or now >= self._changed_s + call_s):
            self._begin(here, now)
        elif not enough:
            self._wait(here, least, now)

    def _begin(self, here: list[Member], now: float) -> None:
        # stable: without wanted ranks the order stays
        here = sorted(here, key=lambda m: (m.wanted_rank is None, m.wanted_rank or 0))
        address = here[0].address
        if is_loopback(address):  # of this machine's own node; other nodes reach it where they reach the rendezvous
            others = (member.host_address for member in self.members.values() if not is_loopback(member.address))
            address = next(others, address)
        for member in self.members.values():
            member.node_rank = None
        start = {
            "run_id": self.run_id,
            "round": self.number,
            "failures": self.failures,
            "num_nodes": len(here),
            "world_size": sum(member.num_ranks for member in here),
            "master_addr": address,
            "master_port": here[0].port,
            "elapsed_s": now - self.begun_s,
        }
        first = 0
        for node_rank, member in enumerate(here):
            member.node_rank, member.first_rank, member.port, member.done = node_rank, first, None, None
            first += member.num_ranks
            self._order("start", to=[member.key], node_rank=node_rank, first_rank=member.first_rank, **start)
        self._hurried, self._doubt_until_s, self.held_until_s = False, None, 0.0
        self.round, self.lost, self.phase = tuple(member.key for member in here), [], "running"
        self.number, self.quorum = self.number + 1, 0

    def _wait(self, here: list[Member], least: int, now: float) -> None:
        names = ", ".join(map(str, here)) or "none"
        lost = f"; lost: {', '.join(map(str, self.lost))}" if self.lost else ""
        if self.quorum:
            lost += f"; {self.quorum} of the last round must be here, because the others may continue behind a cut link"
        if now >= self._since_s + self.nodes.join_timeout_s:
            limit = f"{self.nodes.join_timeout_s:g} s (--join-timeout)"
            self._end(exitcode=1, line=f"{len(here)} of {least} nodes joined within {limit}: {names}{lost}")
        elif now >= self._reminded_s + (_FIRST_REMINDER_S if self._reminded_s == self._since_s else _REMIND_S):
            self._reminded_s = now
            self._say(f"waiting for {max(1, least - len(here))} more of {least} nodes; here: {names}{lost}")

    def _record(self, line: str, rank: int) -> None:
        """Record in the run directory why a round ended, if no rank's report says it."""
        self._order("record", to=[key for key, member in self.members.items() if member.home], line=line, rank=rank)

    def _end(
        self,
        *,
        exitcode: int = 0,
        again: bool = False,
        signal: int | None = None,
        line: str = "",
        rank: int = 0,
        recorded: bool = False,
    ) -> None:
        """End the run: exit code of its failure, whether it can be continued, the signal that ended it, why it failed.

        `rank` is the global rank of the failure.
        """
        self.phase = "over"
        if exitcode and not recorded:
            self._record(line, rank)
        self._order("end", exitcode=exitcode, again=again, signal=signal, line=line, rank=rank)
