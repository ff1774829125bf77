"""The two ends of a connection between a node and the rendezvous."""

import contextlib
import socket
import time

import pytest

from rankwise.launch.elastic.connection import Connection, ConnectionLost


def test_a_node_that_reads_nothing_is_lost():
    """It may be alive and send: what waits for it does not grow for ever, and the next tick says so."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        node = Connection(socket.create_connection(listener.getsockname()), "t" * 16, lambda: {"kind": "join"})
        here = Connection(listener.accept()[0], "t" * 16)
        stack.callback(node.close)
        stack.callback(here.close)
        while not (received := list(here.messages())):
            list(node.messages())
            time.sleep(0.001)
        assert received == [{"kind": "join"}]
        for _ in range(200):
            here.send({"text": "x" * 200_000})
        node.send({"kind": "done"})
        with pytest.raises(ConnectionLost, match="it does not read our messages"):
            here.tick(time.monotonic())
