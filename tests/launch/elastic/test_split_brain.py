"""Two rendezvous of one run that come to see each other, in one process: one of them goes over."""

import contextlib
import os
import socket
import time

import pytest

from rankwise.launch.elastic import coordinator
from rankwise.launch.elastic.connection import Client
from rankwise.launch.elastic.coordinator import Coordinator
from rankwise.launch.elastic.membership import Membership
from rankwise.launch.elastic.nodes import Nodes
from rankwise.launch.local.loop import Loop

GREETING = b"rankwise-rendezvous-1 "
LIKE = {"--rdzv-id": ""}


class Party:
    """A rendezvous on an address of this machine, and the nodes that are there."""

    def __init__(self, stack, address, port, hosts, *, nodes=4, token="t" * 16, like=LIKE, looks=True):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        self.address, self.port, self.token, self.loop = address, listener.getsockname()[1], token, stack.loop
        counts = Nodes(min_nodes=1, max_nodes=nodes, rendezvous=tuple(hosts))
        self.membership = Membership(nodes=counts, begun_s=time.monotonic(), run_id="run")
        self.said, self.links = [], []
        self.coordinator = Coordinator(
            listener,
            self.membership,
            token,
            self.loop,
            say=self.said.append,
            home={"id": "home", "name": "home", "like": like},
        )
        stack.callback(self.close)
        self.hosts = hosts
        if looks:
            self.look_for_others()

    def look_for_others(self):
        self.coordinator.look_for_others(self.hosts, self.address, self.port)

    def join(self, name, **fields):
        connected = socket.create_connection((self.address, self.port))
        message = {"kind": "join", "id": name, "name": name, "num_ranks": 1, "like": LIKE, "wish": None, "port": 1}
        messages = []
        link = Client(connected, self.address, self.token, self.loop, lambda: message | fields, obey=messages.append)
        link.messages = messages
        self.links.append(link)
        return link

    def close(self):
        for link in self.links:
            link.close()
        self.coordinator.close()


@pytest.fixture
def stack(monkeypatch):
    monkeypatch.setattr(coordinator, "_AGAIN_S", 0.2)
    with contextlib.ExitStack() as made:
        made.loop = made.enter_context(Loop())
        yield made


def kinds(link):
    return [message["kind"] for message in link.messages]


def step_until(loop, condition, steps=6000):
    for _ in range(steps):
        if condition():
            return
        loop.step(0.02)
    raise AssertionError("the condition did not come true")


def two(stack, sizes=(4, 4), **options):
    hosts = {"127.0.0.1": ["127.0.0.1"], "127.0.0.2": ["127.0.0.2"]}
    first = Party(stack, "127.0.0.1", 0, hosts, nodes=sizes[0], looks=options.get("looks", True))
    return first, Party(stack, "127.0.0.2", first.port, hosts, nodes=sizes[1], **options)


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)])
def test_the_part_with_less_of_the_run_goes_over(stack, sizes):
    """Two nodes are at work at one, one at the other: only the latter's is sent away, and nothing starts there."""
    parties = two(stack, sizes, looks=False)
    for party, count in zip(parties, sizes, strict=True):
        for number in range(count):
            party.join(f"node{number}")
    step_until(stack.loop, lambda: all("start" in kinds(link) for party in parties for link in party.links))
    for party in parties:
        party.look_for_others()
    small, great = sorted(parties, key=lambda party: len(party.links))
    step_until(stack.loop, lambda: "moved" in kinds(small.links[0]))
    moved = [message for message in small.links[0].messages if message["kind"] == "moved"]
    assert [message["host"] for message in moved] == [great.address]
    # who comes later is sent there too, and those who stay are left alone
    late = small.join("late")
    step_until(stack.loop, lambda: "moved" in kinds(late))
    small.links[0].close()
    for _ in range(30):
        stack.loop.step(0.02)
    assert kinds(late) == ["moved"]
    assert all("start" in kinds(link) and "moved" not in kinds(link) for link in great.links)


def test_between_equals_the_first_of_the_list_stays(stack):
    """Both gather: the later one's nodes go to the first one."""
    first, second = two(stack)
    mine, theirs = first.join("a", quorum=9), second.join("b", quorum=9)
    step_until(stack.loop, lambda: "moved" in kinds(theirs))
    assert "moved" not in kinds(mine)


@pytest.mark.parametrize("other", [{"token": "another token 16"}, {"like": {"--rdzv-id": "another run"}}])
def test_another_run_changes_nothing(stack, other):
    """Who has another token or another name is asked in vain."""
    first, second = two(stack, **other)
    mine, theirs = first.join("a", quorum=9), second.join("b", quorum=9, like=other.get("like", LIKE))
    asked, brain = [], first.coordinator._split_brain
    priority = brain._priority
    brain._priority = lambda: asked.append("probe") or priority()
    step_until(stack.loop, lambda: len(asked) == 2)
    assert "moved" not in kinds(mine) + kinds(theirs)


def test_strangers_where_a_rendezvous_may_be_change_nothing(stack):
    """Something else that answers there is let go, again and again."""
    hosts = {"127.0.0.1": ["127.0.0.1"], "127.0.0.2": ["127.0.0.2"]}
    first = Party(stack, "127.0.0.1", 0, hosts)
    link = first.join("a", quorum=9)
    sayings = [b"HTTP/1.1 400\r\n\r\n", GREETING + os.urandom(99) + b"\n" + b"x" * 70 + b" {}\n", b"\xff" * 300_000]
    seen = []

    def accept():
        connected, _ = stranger.accept()
        stack.callback(connected.close)
        connected.setblocking(False)
        connected.send(sayings[len(seen) % 3])
        seen.append(connected)

    with socket.create_server(("127.0.0.2", first.port)) as stranger:
        stack.loop.watch(stranger.fileno(), accept)
        step_until(stack.loop, lambda: len(seen) == 4)
        stack.loop.remove(stranger.fileno())
    assert link.lost == ""
    assert "moved" not in kinds(link)
