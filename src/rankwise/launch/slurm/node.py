"""The supervisor of one node of an allocation: `srun ... python -m rankwise.launch.slurm.node FOLDER`."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise import vitals
from rankwise._files import write_whole
from rankwise._process.addresses import address_towards, family_of, interface_of, is_loopback, resolve
from rankwise.errors import LaunchError, RankwiseError
from rankwise.launch.elastic.connection import Client
from rankwise.launch.elastic.nodes import derived_secret
from rankwise.launch.elastic.server import HangDetector, Server, obey_inquiry
from rankwise.launch.failures.outcome import AttemptEnd
from rankwise.launch.failures.record import keep_standstill
from rankwise.launch.functions.callee import value_path
from rankwise.launch.job import Job
from rankwise.launch.local.attempt import Attempt
from rankwise.launch.local.console import Console, log_text
from rankwise.launch.local.environment import Part
from rankwise.launch.local.loop import Loop
from rankwise.launch.local.ports import HeldPort
from rankwise.launch.slurm.start import Record, Rendezvous, Start

_CONNECT_S = 10.0
_RENDEZVOUS_S = 120.0  # nodes of one step start at the same time, but a shared file system may be slow
_CAUSE_S = 15.0  # how long a node that only lost its peers waits for a record with the cause
_POLL_S = 0.05


class HangClient(Client):
    """Implements `OtherNodes` on each node of an allocation. If one node fails, Slurm itself ends the others.

    The first node reports and records a standstill.

    Attributes:
        attempt: the attempt whose ranks are examined; None before there is one.

    Raises:
        OSError: the first node cannot be reached.
    """

    def __init__(
        self, address: tuple[str, int], secret: str, *, node: int, loop: Loop, console: Console, run_dir: Path | None
    ) -> None:
        self.attempt: Attempt | None = None
        self._node, self._console, self._run_dir = node, console, run_dir
        connected = socket.create_connection(address, timeout=_CONNECT_S)
        join = {"kind": "join", "name": socket.gethostname(), "home": node == 0}
        super().__init__(connected, address[0], secret, loop, lambda: join, obey=self._answer)

    def failing(self) -> None:
        """Do nothing: Slurm ends the other nodes when this one ends."""

    def leaving(self, number: int) -> None:
        """Do nothing: Slurm has signalled all nodes."""

    def ask(self, question: Mapping[str, Any]) -> None:
        """Ask all nodes; if the first node is gone, look for the culprit among the ranks here only."""
        self.send({"kind": "still", **question})
        if self.lost:
            alone = HangDetector(lambda: {0: socket.gethostname()})
            alone.home = 0
            for order in alone.ask(0, question, time.monotonic()):
                if order.keys == (0,):
                    self._answer(order.message)

    def _answer(self, message: Mapping[str, Any]) -> None:
        obey_inquiry(message, self.attempt, send=self.send, tell=self._tell_standstill)

    def _tell_standstill(self, text: str) -> None:
        # srun collects the output of all nodes: the first node alone tells, if it is there
        if self._node == 0 or self.lost:
            log_text(self._console, text)
            keep_standstill(self._run_dir, text, self._console.log)


def main(folder: Path) -> int:
    """Run the ranks of this node until they end and write a record; return this process's exit code.

    Return 0 for ranks that saved and ended because they were asked to: else Slurm would end the other nodes.
    """
    node = int(os.environ.get("SLURM_NODEID", "0"))
    try:
        start = Start.read(folder)
        with contextlib.ExitStack() as stack:
            record = _run(start, node, folder, stack)
    except RankwiseError as error:
        record = Record(node=node, text=f"node {socket.gethostname()}: {error}", exitcode=1, time_s=time.time())
    try:
        record.write(folder / f"node-{node}.json")
    except OSError:
        print(f"rankwise: {record.text}", file=sys.stderr)  # noqa: T201
    if record.text and record.suspicion == 2:
        # wait for a record with the cause: when this node ends, Slurm ends the others, and they could not write one
        deadline = time.monotonic() + _CAUSE_S
        while time.monotonic() < deadline and all(other.suspicion == 2 for other in Record.read_all(folder)):
            time.sleep(_POLL_S)
    return record.exitcode


def _run(start: Start, node: int, folder: Path, stack: contextlib.ExitStack) -> Record:
    loop, console = stack.enter_context(Loop()), Console()
    write_whole(folder / f"ready-{node}", b"", durable=False)
    secret = derived_secret(start.secret, "hang")
    rendezvous = _publish(folder, secret, loop, console, stack) if node == 0 else _receive(folder)
    job, first_rank = start.job, node * start.job.num_ranks
    if job.target.kind == "call":
        job = stack.enter_context(_local_call(job, first_rank, folder))
    part = Part(
        world_size=start.num_nodes * job.num_ranks,
        first_rank=first_rank,
        node_rank=node,
        num_nodes=start.num_nodes,
        master_addr=rendezvous.address,
        master_port=rendezvous.port,
        secret=start.secret,
        interface="" if is_loopback(rendezvous.address) else interface_of(_address_towards(rendezvous.address)),
    )
    client = _connect(rendezvous, secret, node=node, loop=loop, console=console, run_dir=job.run_dir)
    attempt = Attempt(
        job,
        part,
        number=start.attempt,
        run_id=start.run_id,
        loop=loop,
        console=console,
        logs=start.logs,
        other_nodes=client,
    )
    if client is not None:
        stack.callback(client.close)
        client.attempt = attempt
    end = attempt.run()
    console.flush()
    return _record(node, end)


def _record(node: int, end: AttemptEnd) -> Record:
    text, entry = ("", {}) if end.failure is None else end.describe()
    return Record(
        node=node,
        text=text,
        exitcode=0 if end.failure is None else end.failure.exitcode or 1,
        detail="" if end.failure is None else end.failure.detail,
        suspicion=end.suspicion,
        time_s=entry.get("time", 0.0),
        interrupted=end.interrupted,
        again=end.again,
        step=end.step,
        failure=entry,
    )


def _connect(
    rendezvous: Rendezvous, secret: str, *, node: int, loop: Loop, console: Console, run_dir: Path | None
) -> HangClient | None:
    """Connect to the first node's `Server`; return None if that fails: the culprit is then sought here only."""
    if not rendezvous.hang_port:
        return None
    address = rendezvous.address, rendezvous.hang_port
    try:
        return HangClient(address, secret, node=node, loop=loop, console=console, run_dir=run_dir)
    except OSError as error:
        console.log(
            f"node {socket.gethostname()} cannot reach {address[0]} port {address[1]} ({error.strerror}): if "
            "ranks hang, each node looks for the cause among its own ranks only"
        )
        return None


def _publish(folder: Path, secret: str, loop: Loop, console: Console, stack: contextlib.ExitStack) -> Rendezvous:
    """Take a port for rank 0 and one for the `Server`, and publish them to the other nodes."""
    port = HeldPort()
    stack.callback(port.close)
    # this node's address towards the host that started the step, which the other nodes can reach too
    alone = os.environ.get("SLURM_STEP_NUM_NODES", "1") == "1"
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or os.environ.get("SLURMD_NODENAME", "")
    address = "127.0.0.1" if alone else _address_towards(launcher)
    hangs = None
    if not alone:
        listener = socket.create_server((address, 0), family=family_of(address), backlog=1024)
        hangs = Server(listener, secret, loop, say=console.log)
        stack.callback(hangs.close)
    rendezvous = Rendezvous(
        address=address,
        port=port.number,
        step_id=os.environ.get("SLURM_STEP_ID", ""),
        hang_port=0 if hangs is None else hangs.port,
    )
    rendezvous.write(folder / "rendezvous.json")
    return rendezvous


def _receive(folder: Path) -> Rendezvous:
    deadline = time.monotonic() + _RENDEZVOUS_S
    while not (folder / "rendezvous.json").exists():
        if time.monotonic() > deadline:
            raise LaunchError(
                f"the first node has not published the address of rank 0 in {folder} within {_RENDEZVOUS_S:g} s: "
                "check its output, and that the nodes share this file system"
            )
        list(folder.iterdir())  # makes some network file systems refresh their cache
        time.sleep(_POLL_S)
    return Rendezvous.read(folder / "rendezvous.json")


def _address_towards(host: str) -> str:
    address = address_towards(host)
    if not address:
        why = "look at its routes" if resolve(host) else "its name is unknown here: look at /etc/hosts and DNS"
        raise LaunchError(f"this node cannot reach {host!r}, another host of this job; {why}")
    return address


@contextlib.contextmanager
def _local_call(job: Job, first_rank: int, folder: Path) -> Iterator[Job]:
    """Run the call in a local folder, which is removed even if all processes are killed; at the end copy the values."""
    here = vitals.make_folder(in_memory=False)
    try:
        shutil.copyfile(folder / "call", here / "call")
        yield replace(job, target=replace(job.target, name=str(here / "call")))
        for rank in range(first_rank, first_rank + job.num_ranks):
            if value_path(here, rank).exists():
                part = value_path(folder, rank).with_suffix(".part")
                shutil.copyfile(value_path(here, rank), part)
                part.replace(value_path(folder, rank))
    finally:
        vitals.remove_folder(here)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
