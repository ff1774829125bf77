"""Where JAX's coordinator is."""

import socket

import pytest

from rankwise.world.jax_coordinator import choose_coordinator
from rankwise.world.place import Place


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_one_machine_it_is_not_to_be_reached_from_others(host):
    """The ranks' own name for the machine, and a port on which a second socket of the same kind can listen."""
    found = choose_coordinator(Place(world_size=2, master_addr=host))
    name, _, port = found.address.rpartition(":")
    assert name == host
    assert found.bind_address == found.address
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", int(port)))
        server.listen()
    found.held.close()


def test_over_machines_it_is_where_rank_0_is():
    """Where the known address belongs to another machine (an agent's), rank 0 names its own."""
    found = choose_coordinator(Place(world_size=2, master_addr="192.0.2.1"))  # an address for documentation: nobody's
    host, _, port = found.address.rpartition(":")
    assert host.strip("[]") != "192.0.2.1"
    assert found.bind_address == (f"[::]:{port}" if not host.startswith("127.") else found.address)
    found.held.close()


def test_two_jobs_get_two_ports():
    """A port that is held is given to nobody else."""
    some = [choose_coordinator(Place(world_size=2, master_addr="127.0.0.1")) for _ in range(20)]
    assert len({found.address for found in some}) == 20
    for found in some:
        found.held.close()
