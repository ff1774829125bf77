"""Where JAX's coordinator is."""

import socket

import pytest

from rankwise._process.place import Place
from rankwise.world.jax_start import choose_coordinator


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_on_one_machine_it_is_not_to_be_reached_from_others(host):
    """The ranks' own name for the machine, and a port on which a second socket of the same kind can listen."""
    found = choose_coordinator(Place(world_size=2, master_addr=host))
    name, _, port = found.address.rpartition(":")
    assert name == host
    assert found.bind_address == f"127.0.0.1:{port}"
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
    assert found.bind_address == (f"[::]:{port}" if not host[:1].isdigit() else found.address)
    found.held.close()


def test_an_address_is_listened_on_alone_and_a_name_everywhere():
    """What the ranks know by its address listens there only; a name may mean another address to others than here."""
    own = outgoing_address()
    for address, where in ((own, own), ("::1", "[::1]"), (socket.gethostname(), "[::]")):
        if address == "::1" and not socket.has_dualstack_ipv6():
            continue
        found = choose_coordinator(Place(world_size=2, master_addr=address))
        assert found.bind_address == f"{where}:{found.address.rpartition(':')[2]}"
        found.held.close()


def outgoing_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


def test_two_jobs_get_two_ports():
    """A port that is held is given to nobody else."""
    some = [choose_coordinator(Place(world_size=2, master_addr="127.0.0.1")) for _ in range(20)]
    assert len({found.address for found in some}) == 20
    for found in some:
        found.held.close()
