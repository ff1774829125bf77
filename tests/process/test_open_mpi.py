"""Open MPI's variables."""

import pytest

from rankwise._process.launchers import open_mpi_place
from rankwise.errors import WorldError

ONE_MACHINE = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-41@1",
}


def test_one_machine_needs_nothing_else():
    """All ranks of a job on one machine agree on the address and on a port made from the job's name."""
    place = open_mpi_place(ONE_MACHINE)
    other = open_mpi_place(ONE_MACHINE | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert (place.rank, place.local_world_size, place.num_nodes, place.master_addr) == (1, 2, 1, "127.0.0.1")
    assert place.master_port == other.master_port
    assert 10_000 <= place.master_port < 30_000
    assert open_mpi_place(ONE_MACHINE | {"PMIX_NAMESPACE": "prterun-host-42@1"}).master_port != place.master_port


def test_several_machines_need_an_address():
    """The launcher mpirun does not tell where rank 0 is: refused with the mend, unless MASTER_ADDR is passed."""
    several = ONE_MACHINE | {"OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(WorldError, match="mpirun -x MASTER_ADDR="):
        open_mpi_place(several)
    place = open_mpi_place(several | {"MASTER_ADDR": "node01", "MASTER_PORT": "12345"})
    assert (place.master_addr, place.master_port, place.num_nodes) == ("node01", 12345, None)


def test_outside_of_mpirun_it_says_nothing():
    """A missing variable of the three means: not this family."""
    assert open_mpi_place({"OMPI_COMM_WORLD_RANK": "0"}) is None
