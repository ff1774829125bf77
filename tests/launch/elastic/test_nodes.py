"""The options of several machines."""

import pytest

from rankwise.errors import ConfigError
from rankwise.launch.elastic.nodes import parse_nodes


@pytest.mark.parametrize(
    ("nnodes", "options", "what"),
    [
        ("2", {}, "--rdzv HOST:PORT"),
        ("two", {}, "--nnodes must be a number or MIN:MAX"),
        ("3:2", {"rdzv": "a"}, "1 <= MIN <= MAX"),
        ("2", {"rdzv": "a:1,b:2"}, "one port"),
        ("2", {"rdzv": "a:b:c"}, "HOST[,HOST ...][:PORT]"),
        ("2", {"rdzv": "a:70000"}, "between 1 and 65535"),
        ("2", {"rdzv": "a", "node_rank": 2}, "between 0 and 1"),
        ("2", {"rdzv": "a", "join_timeout_s": 0}, "positive"),
        ("1", {"node_rank": 1}, "is only valid with several nodes"),
        ("1", {"rdzv": "a:1"}, "set their number with --nnodes"),
    ],
)
def test_options_that_make_no_sense_are_refused(nnodes, options, what):
    """With what was wanted."""
    with pytest.raises(ConfigError) as raised:
        parse_nodes(nnodes, **options)
    assert what in str(raised.value)


def test_endpoints():
    """Hosts in order, one port or the default; IPv6 in brackets; torchrun's static way; one machine is none of it."""
    nodes = parse_nodes("1:4", rdzv="h1, h2:1234")
    assert (nodes.min_nodes, nodes.max_nodes, nodes.rendezvous, nodes.port) == (1, 4, ("h1", "h2"), 1234)
    assert parse_nodes("2", rdzv="[::1]").rendezvous == ("::1",)
    assert parse_nodes("2", rdzv="h").port == 29400
    static = parse_nodes("2", master_addr="h", master_port=7, node_rank=1)
    assert (static.rendezvous, static.port, static.node_rank) == (("h",), 7, 1)
    assert parse_nodes("2", master_addr="fe80::1", master_port=7).rendezvous == ("fe80::1",)
    assert parse_nodes("1") is None
    assert parse_nodes("1:1", node_rank=0) is None
