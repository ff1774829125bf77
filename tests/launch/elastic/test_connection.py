"""The two ends of a connection between a node and the rendezvous."""

import socket

from rankwise.launch.elastic.connection import Connection
from rankwise.launch.local.loop import Loop


def test_a_node_that_reads_nothing_is_lost():
    """It may be alive and send: what waits for it does not grow for ever, and the next tick says so."""
    received, ends = [], []
    with Loop() as loop, socket.create_server(("127.0.0.1", 0)) as listener:
        socket_of_node = socket.create_connection(listener.getsockname())
        first = lambda: {"kind": "join"}  # noqa: E731
        node = Connection(socket_of_node, "t" * 16, loop, obey=received.append, ended=ends.append, first=first)
        here = Connection(listener.accept()[0], "t" * 16, loop, obey=received.append, ended=ends.append)
        while not received:
            loop.step(1.0)
        assert received == [{"kind": "join"}]
        for _ in range(200):
            here.send({"text": "x" * 200_000})
        node.send({"kind": "done"})
        here.tick()
        assert [str(end) for end in ends] == ["it does not read our messages"]
        assert here.lost == "it does not read our messages"
        node.close()
