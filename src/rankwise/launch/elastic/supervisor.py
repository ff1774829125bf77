"""A node's supervisor: find the rendezvous, run this node's ranks in each round, and report how they ended."""

from __future__ import annotations

import secrets
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankwise._process.addresses import interface_of, is_loopback
from rankwise.errors import LaunchError
from rankwise.launch.elastic.connection import Client
from rankwise.launch.elastic.coordinator import Coordinator
from rankwise.launch.elastic.discovery import Discovery, StoppedWhileWaiting
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.elastic.nodes import Nodes, derived_secret, describe_node, read_token
from rankwise.launch.elastic.server import INQUIRY_KINDS, obey_inquiry
from rankwise.launch.failures.outcome import Outcome
from rankwise.launch.failures.record import keep, keep_standstill
from rankwise.launch.failures.verdict import Failure
from rankwise.launch.job import Job
from rankwise.launch.local.attempt import Attempt
from rankwise.launch.local.console import Console, log_text
from rankwise.launch.local.environment import Part, with_time_left
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.ports import HeldPort
from rankwise.launch.local.pump import next_logs

_FIND_AGAIN_S = 60.0
_CALM_S = 0.5  # wait before another try, if the connection was accepted and closed
_TEXT_CHARACTERS = 1 << 15  # maximum of a report that is sent


def supervise_node(job: Job) -> Outcome:
    """Take part in a run of several nodes until it ends; each node calls it with the same job, but its own ranks.

    As for `local.supervisor.supervise`: call it in the main thread of a process without other threads. No rank is left
    when it returns, or when this process is killed.

    Raises:
        LaunchError: the nodes do not find each other, have different settings, or the rendezvous refuses this node.
        ConfigError: there is no usable token.
    """
    assert job.nodes is not None
    console = Console()
    with Loop() as loop:
        node = _Node(job, job.nodes, loop, console)
        try:
            outcome = node.run()
        finally:
            node.close()
    if outcome.again:
        console.log("the ranks have saved and ended as requested: the same command resumes the run")
    elif outcome.text and outcome.text not in node.told:
        console.log(outcome.text)
    console.flush()
    return outcome


class _Node:
    """One node during a run.

    Attributes:
        told: the lines already printed.
    """

    def __init__(self, job: Job, nodes: Nodes, loop: Loop, console: Console) -> None:
        self.told: set[str] = set()
        self._job, self._nodes, self._loop, self._console = job, nodes, loop, console
        self._token, self._token_source = read_token(nodes.token_file)
        self._like = describe_node(job.target, nodes, max_restarts=job.max_restarts)
        self._discovery = Discovery(nodes, loop, console.log)
        self._port = HeldPort(job.master_port)
        self._coordinator: Coordinator | None = None
        self._client: Client | None = None
        self._pending: deque[Mapping[str, Any]] = deque()  # messages that are handled in order, between attempts
        self._attempt: Attempt | None = None
        self._dead: list[str] = []  # hosts whose rendezvous is known to have ended
        self._run_id = ""
        self._round = self._failures = self._last_size = self._quorum = 0
        self._interrupted: int | None = None
        self._text = ""  # the whole report of this node's last failure
        self._record: dict[str, Any] = {}  # its entry for the run directory

    def run(self) -> Outcome:
        """Take part until the run is over; look for another rendezvous when one is lost."""
        patience_s = self._nodes.join_timeout_s
        try:
            while True:
                client = self._meet(patience_s)
                outcome = self._follow(client)
                if outcome is not None:
                    return outcome
                if client.welcome:
                    # after a network split wait as long as for any node; a dead rendezvous will not come back soon
                    patience_s = max(_FIND_AGAIN_S, self._nodes.join_timeout_s if client.silent else 0.0)
                else:
                    self._discovery.pause(_CALM_S)
        except StoppedWhileWaiting as stop:
            if self._client is not None:
                self._client.send({"kind": "bye"})
            return Outcome(interrupted=stop.args[0])

    def close(self) -> None:
        """Leave the run; if the rendezvous is here, let other nodes read their last message."""
        if self._client is not None:
            self._client.close()
        if self._coordinator is not None:
            self._coordinator.close()
        self._port.close()

    def failing(self) -> None:
        """Report that the ranks here are being ended because one of them failed."""
        self._send({"kind": "ending", "signal": None})

    def leaving(self, number: int) -> None:
        """Report that a signal from outside asks the ranks here to save and end."""
        self._interrupted = number
        self._send({"kind": "ending", "signal": number})

    def ask(self, question: Mapping[str, Any]) -> None:
        """Ask the rendezvous which rank of all nodes blocks the ranks here."""
        self._send({"kind": "still", "round": self._round - 1, **question})

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._client is not None
        self._client.send(message)

    def _meet(self, patience_s: float) -> Client:
        host, found, listens = self._discovery.find(dead=self._dead, again=self._round > 0, patience_s=patience_s)
        join = {
            "kind": "join",
            "id": secrets.token_hex(8),
            "name": socket.gethostname(),
            "num_ranks": self._job.num_ranks,
            "like": self._like,
            "wish": self._nodes.node_rank,
            "port": self._port.number,
            "round": self._round,
            "failures": self._failures,
            "quorum": self._quorum,
            "run_id": self._run_id,
        }
        if listens:
            found = self._host(host, found, join)
        self._pending.clear()
        self._client = Client(
            found, host, self._token, self._loop, lambda: join, obey=self._receive, ended=self._leave_attempt
        )
        return self._client

    def _host(self, host: str, listener: socket.socket, join: Mapping[str, Any]) -> socket.socket:
        nodes = self._nodes
        address = listener.getsockname()
        self._console.log(
            f"the rendezvous is here, {host} ({address[0]}) port {address[1]}; token of {self._token_source}"
        )
        membership = Membership(
            nodes=nodes,
            max_restarts=self._job.max_restarts,
            begun_s=time.monotonic(),
            run_id=self._run_id or f"rankwise-{secrets.token_hex(8)}",
        )
        self._coordinator = Coordinator(listener, membership, self._token, self._loop, say=self._console.log, home=join)
        if len(nodes.rendezvous) > 1:
            self._coordinator.look_for_others(self._discovery.known, host, nodes.port)
        return socket.create_connection(address[:2])

    def _follow(self, client: Client) -> Outcome | None:
        """Follow the rendezvous's messages; return how the run ended, None if it continues at another rendezvous."""
        while True:
            if client.error is not None:
                raise client.error
            if not self._pending and client.lost:
                return self._after_loss(client)
            if not self._pending:
                self._discovery.pause(1.0)
                continue
            message = self._pending.popleft()
            if message["kind"] == "start":
                self._take_part(client, message)
            elif message["kind"] == "record":
                lost = {"time": time.time(), "attempt": self._round - 1, "exitcode": 1}
                lost |= {"rank": message["rank"], "cause": message["line"]}
                keep(self._job.run_dir, lost, self._console.log)
            elif message["kind"] == "end":
                return self._outcome(message)
            elif message["kind"] == "moved":
                host, before = message["host"], client.host
                self._console.log(
                    f"the run continues at the rendezvous of {host}: this node leaves {before} and joins it"
                )
                self._dead = []
                client.close()
                if self._coordinator is not None:
                    self._coordinator.close()
                    self._coordinator = None
                return None

    def _receive(self, message: Mapping[str, Any]) -> None:
        """Handle a message if it cannot wait until the ranks end."""
        kind = message["kind"]
        if kind == "say":
            self.told.add(message["text"])
            self._console.log(message["text"])
            if message["detail"]:  # for the node of the rendezvous: the report of a rank that failed on another node
                self._console.block(message["detail"].partition("\n")[2])
        elif kind == "report":  # the failure of a rank here is the cause of the round's end
            self.told.add(message["line"])
            log_text(self._console, self._text)
            keep(self._job.run_dir, self._record, self._console.log)
        elif kind in INQUIRY_KINDS:
            obey_inquiry(message, self._attempt, send=self._send, tell=self._tell_standstill)
        elif kind == "stop" and self._attempt is not None:
            self._attempt.end_with_other_nodes(in_peace=bool(message["in_peace"]))
        else:
            self._pending.append(message)  # including a stop that belongs to a start before it
            if kind == "moved":
                self._leave_attempt()

    def _leave_attempt(self) -> None:
        """End the ranks here: the run goes on without them, and what they saved now would be another branch of it."""
        if self._attempt is not None:
            self._attempt.end_with_other_nodes(in_peace=False)

    def _tell_standstill(self, text: str) -> None:
        log_text(self._console, text)
        if self._coordinator is not None:
            keep_standstill(self._job.run_dir, text, self._console.log)

    def _take_part(self, client: Client, start: Mapping[str, Any]) -> None:
        """Run this node's ranks of a round, and report how they ended."""
        self._round, self._failures = int(start["round"]) + 1, int(start["failures"])
        self._last_size, self._run_id, self._quorum = int(start["num_nodes"]), str(start["run_id"]), 0
        done: dict[str, Any] = {"status": "stopped"}
        if not client.lost and not any(message["kind"] in {"moved", "stop"} for message in self._pending):
            done = self._run_ranks(client, start)
        self._port.close()
        self._port = HeldPort(self._job.master_port)
        client.send({"kind": "done", "port": self._port.number, **done})

    def _run_ranks(self, client: Client, start: Mapping[str, Any]) -> dict[str, Any]:
        part, job = self._part(client, start), with_time_left(self._job, time.monotonic() - float(start["elapsed_s"]))
        if part.node_rank == 0:
            self._port.hand_over()
        logs = next_logs(job.logs / socket.gethostname() if job.logs is not None else None, job.run_dir)
        attempt = Attempt(
            job,
            part,
            number=int(start["round"]),
            run_id=self._run_id,
            loop=self._loop,
            console=self._console,
            logs=logs,
            other_nodes=self,
        )
        self._attempt = attempt
        try:
            end = attempt.run()
        except LaunchError as error:
            headline = f"could not be started: {error}"
            failure = Failure(rank=part.first_rank, headline=headline, detail="", status=None, exitcode=1)
            end = replace(attempt.end(failure), ranks=())
        finally:
            self._attempt = None
        if end.failure is None:
            ended = end.ranks and all(rank.status == 0 for rank in end.ranks)
            return {"status": "again" if end.again else "ended" if ended else "stopped"}
        self._text, self._record = end.describe()
        return {
            "status": "failed",
            "rank": end.failure.rank,
            "headline": end.failure.headline,
            "text": self._text[:_TEXT_CHARACTERS],
            "exitcode": end.failure.exitcode,
            "suspicion": end.suspicion,
            "age_s": end.age_s,
        }

    def _part(self, client: Client, start: Mapping[str, Any]) -> Part:
        own, master = client.addresses[0], str(start["master_addr"])
        if is_loopback(own) and not is_loopback(master):
            own = master  # this node joined over loopback; use the address that other nodes use
        return Part(
            world_size=int(start["world_size"]),
            first_rank=int(start["first_rank"]),
            node_rank=int(start["node_rank"]),
            num_nodes=int(start["num_nodes"]),
            master_addr=master,
            master_port=int(start["master_port"]),
            secret=derived_secret(self._token, f"of the ranks of {self._run_id}, round {start['round']}"),
            interface="" if is_loopback(own) else interface_of(own),
        )

    def _outcome(self, end: Mapping[str, Any]) -> Outcome:
        line, code, failure = end["line"], end["exitcode"], None
        if code:
            failure = Failure(rank=end["rank"], headline=line, detail="", status=None, exitcode=code)
        return Outcome(failure=failure, interrupted=end["signal"], again=end["again"], text=line)

    def _after_loss(self, client: Client) -> Outcome | None:
        """Return how the run ends after the loss of the rendezvous, None if it may continue at another one."""
        what = f"the rendezvous at {client.host} is lost: {client.lost}"
        if not client.welcome:
            self._console.log(what)
            return None
        if self._interrupted is not None:
            return Outcome(interrupted=self._interrupted)
        # a silent rendezvous may still be alive: look for it too, as it may accept this node again
        self._dead = [] if client.silent else [client.host]
        others = [host for host in self._nodes.rendezvous if host != client.host]
        self._failures += not self._nodes.elastic and self._round > 0
        if not others or self._failures > self._job.max_restarts:
            why = "--rdzv names no other host" if not others else "no restart is left (--max-restarts)"
            failure = Failure(rank=0, headline=what, detail="", status=None, exitcode=1)
            return Outcome(failure=failure, text=f"{what}; {why}")
        # a silent rendezvous may continue without this node: only a majority of the nodes may continue without it
        self._quorum = self._last_size // 2 + 1 if client.silent else 0
        self._console.log(
            f"{what}; looking for {'it, or ' * client.silent}another one{',' * client.silent} at {', '.join(others)}"
        )
        return None
