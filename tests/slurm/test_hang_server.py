"""The server that the supervisors of several nodes ask who holds them up: real sockets, ranks that are described."""

import contextlib
import socket
import time

import pytest

from rankwise._process.addresses import is_own
from rankwise.launch.elastic.server import Server
from rankwise.launch.failures.observation import Observation
from rankwise.launch.local.loop import Loop
from rankwise.launch.slurm import node as node_module
from rankwise.launch.slurm.node import HangClient
from rankwise.launch.slurm.start import Rendezvous

SECRET = "s" * 32


class Ranks:
    """Stands for an `Attempt`: what a node sees of its ranks, and what it is told."""

    def __init__(self, view):
        self._view, self.blamed, self.told = view, [], 0

    def view(self, *, final):
        return self._view

    def blame(self, failure):
        self.blamed.append(failure)

    def note_standstill(self):
        self.told += 1


class Console:
    def __init__(self):
        self.lines = []

    def log(self, text):
        self.lines.append(text)

    def block(self, text):
        self.lines.append(text)


COLLECTIVE = (
    'Thread 0x1 (most recent call first):\n  File "/x/torch/distributed/distributed_c10d.py", line 9 in all_reduce'
)
ELSEWHERE = 'Thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 3 in load'


def _observation(rank, *, waits):
    return Observation(rank=rank, stacks=COLLECTIVE if waits else ELSEWHERE).to_dict()


def question(*, final, limit_s=9.0, **view):
    return {"final": final, "limit_s": limit_s, "reason": "no rank has made progress for 9 s", **view}


@pytest.fixture
def served():
    with Loop() as loop:
        console = Console()
        server = Server(socket.create_server(("127.0.0.1", 0)), SECRET, loop, say=console.log)
        made = []

        def node(number, view, secret=SECRET):
            client = HangClient(
                ("127.0.0.1", server.port), secret, node=number, loop=loop, console=console, run_dir=None
            )
            client.attempt = Ranks(view)
            made.append(client)
            return client

        yield server, node, loop, console
        for client in made:
            client.close()
        server.close()


@pytest.mark.skipif(not is_own("::1"), reason="no IPv6")
def test_the_nodes_meet_over_ipv6(tmp_path, monkeypatch):
    """The first node listens on its address of either family, and publishes it."""
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "::1")
    with Loop() as loop, contextlib.ExitStack() as stack:
        console = Console()
        rendezvous = node_module._publish(tmp_path, SECRET, loop, console, stack)
        assert rendezvous == Rendezvous.read(tmp_path / "rendezvous.json")
        address = rendezvous.address, rendezvous.hang_port
        assert address[0] == "::1"
        client = HangClient(address, SECRET, node=1, loop=loop, console=console, run_dir=None)
        stack.callback(client.close)
        joined(loop, client)


def until(loop, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        loop.step(0.05)


def joined(loop, *nodes):
    until(loop, lambda: all(node.welcome for node in nodes))


def quiet(*ranks, quiet_s=20.0, missing=()):
    return {"quiet_s": quiet_s, "missing": list(missing), "ranks": list(ranks)}


def test_the_server_names_a_rank_of_another_node(served):
    """The node that asks has only ranks that wait; the one of the culprit is told, and nobody else."""
    _, node, loop, _ = served
    waiting, busy = quiet(_observation(0, waits=1)), quiet(_observation(1, waits=0))
    first, second = node(0, waiting), node(1, busy)
    joined(loop, first, second)
    first.ask(question(final=True, **waiting))
    until(loop, lambda: second.attempt.blamed)
    (failure,) = second.attempt.blamed
    assert failure.rank == 1
    assert "no rank has made progress for 9 s" in failure.headline
    assert first.attempt.blamed == []


def test_a_standstill_is_told_once(served):
    """By the first node; the others note it."""
    _, node, loop, console = served
    nodes = [node(number, quiet(_observation(number, waits=number))) for number in range(3)]
    joined(loop, *nodes)
    nodes[2].ask(question(final=False, **nodes[2].attempt.view(final=False)))
    until(loop, lambda: all(each.attempt.told for each in nodes))
    assert sum("(--stall), the run continues; look at rank 0" in line for line in console.lines) == 1


def test_others_advance(served):
    """Then nobody is blamed, and the node that asked hears it."""
    _, node, loop, _ = served
    still = quiet(_observation(0, waits=1))
    first, second = node(0, still), node(1, quiet(_observation(1, waits=0), quiet_s=0.1))
    joined(loop, first, second)
    first.ask(question(final=True, **still))
    until(loop, lambda: first.attempt.blamed)
    assert first.attempt.blamed == [None]
    assert second.attempt.blamed == []


def test_without_the_first_node_each_decides_alone(served):
    """Its supervisor has ended: the answer comes at once, from what this node sees."""
    server, node, loop, console = served
    still = quiet(_observation(2, waits=0), _observation(3, waits=1))
    second = node(1, still)
    joined(loop, second)
    server.close()
    until(loop, lambda: second.lost)
    second.ask(question(final=True, **still))
    assert [failure.rank for failure in second.attempt.blamed] == [2]
    second.ask(question(final=False, **still))
    assert any("look at rank 2" in line for line in console.lines)


def test_garbage_and_strangers_are_dropped(served):
    """Who sends noise, or has another secret, is not heard; the nodes of the start are."""
    server, node, loop, console = served
    still = quiet(_observation(0, waits=0))
    good = node(0, still)
    joined(loop, good)
    noise = socket.create_connection(("127.0.0.1", server.port))
    noise.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    stranger = node(1, still, secret="t" * 32)
    until(loop, lambda: stranger.lost or stranger.error is not None)
    until(loop, lambda: any("a different token" in line for line in console.lines))
    good.ask(question(final=True, **still))
    until(loop, lambda: good.attempt.blamed)
    assert stranger.attempt.blamed == []
    noise.close()
