"""Finding the place: a pure function of the environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise._process.place import Place, announced_place, find_place, num_local_ranks
from rankwise.errors import WorldError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node01", "MASTER_PORT": "29400"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_an_empty_environment_is_a_world_of_one():
    """Plain `python train.py` needs no variables."""
    assert find_place({}) == Place()
    assert find_place({"MASTER_ADDR": "node01", "MASTER_PORT": "1234"}) == Place()


def test_torchruns_variables_are_read():
    """The whole family gives the whole place; what is optional is None when missing."""
    place = find_place(TORCHRUN)
    assert (place.rank, place.world_size, place.local_rank) == (3, 8, 1)
    assert (place.master_addr, place.master_port, place.agent_store) == ("node01", 29400, False)
    assert (place.local_world_size, place.node_rank, place.num_nodes) == (None, None, None)
    full = find_place(TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "4"})
    assert (full.local_world_size, full.node_rank, full.num_nodes) == (2, 1, 4)


def test_the_agents_store_is_recognised():
    """Under torchrun with a shared store rank 0 must not serve a second one."""
    agent = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert find_place(TORCHRUN | agent).agent_store
    assert not find_place(TORCHRUN | agent | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).agent_store


def test_the_first_complete_family_wins(slurm_step):
    """With torchrun inside mpirun inside Slurm: the innermost launcher, which is the first family, decides."""
    assert find_place(TORCHRUN | OPEN_MPI | slurm_step).family == "torchrun"
    assert find_place(OPEN_MPI | slurm_step).family == "open mpi"
    assert find_place(slurm_step).family == "slurm"


def test_half_a_family_matters_only_without_a_whole_one(slurm_step):
    """WORLD_SIZE exported in a batch script does not disturb srun; alone it is refused, naming what is missing."""
    assert find_place(slurm_step | {"WORLD_SIZE": "6", "MASTER_ADDR": "gpu07"}).family == "slurm"
    with pytest.raises(WorldError, match=r"WORLD_SIZE=6 is set but RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"):
        find_place({"WORLD_SIZE": "6"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "RANK=8 contradicts WORLD_SIZE=8"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 contradicts LOCAL_WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK must be at least 0, it is -1"),
        ({"RANK": "one"}, "RANK must be an integer, it is 'one'"),
        ({"MASTER_PORT": "80000"}, "MASTER_PORT must be a port between 1 and 65535, it is 80000"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 is larger than WORLD_SIZE=8"),
        ({"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "2"}, "GROUP_RANK=2 contradicts GROUP_WORLD_SIZE=2"),
    ],
)
def test_contradictions_name_variables_and_values(slurm_step, change, message):
    """A contradiction inside the family that counts is an error, even where another family is whole."""
    with pytest.raises(WorldError, match=message):
        find_place(TORCHRUN | slurm_step | change)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_rank_is_accepted_exactly_when_it_lies_in_its_world(rank, size, local):
    """Any numbers: either a place with rank < size, or an error."""
    variables = TORCHRUN | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local)}
    if rank < size and local < size:
        assert find_place(variables).rank == rank
    else:
        with pytest.raises(WorldError):
            find_place(variables)


# What Lightning's own launcher sets for its second process, and Kubeflow's operator for a worker.
LIGHTNING = {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
KUBEFLOW = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("environ", "announced", "local_ranks"),
    [
        ({}, None, 1),
        (TORCHRUN, (3, 8), 8),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}, (3, 8), 4),
        (OPEN_MPI, (1, 2), 2),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "LOCAL_RANK": "0"}, (1, 2), 1),
        (KUBEFLOW, (3, 4), 1),
        (LIGHTNING, None, 2),
        ({"WORLD_SIZE": "8"}, None, 1),
        ({"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "0"}, None, 4),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None, 1),
    ],
)
def test_rank_and_size_are_enough_to_share(environ, announced, local_ranks):
    """Whoever shares work out takes rank and size from any launcher; half of them say nothing, and are no error."""
    place = announced_place(environ)
    assert (place and (place.rank, place.world_size)) == announced
    assert num_local_ranks(environ) == local_ranks


def test_numbers_that_contradict_are_no_numbers_to_share_by():
    """A rank beyond the size is refused where work is shared; threads are counted all the same."""
    for environ in (KUBEFLOW | {"RANK": "4"}, TORCHRUN | {"RANK": "8"}):
        with pytest.raises(WorldError, match="contradicts WORLD_SIZE"):
            announced_place(environ)
        assert num_local_ranks(environ) >= 1
    assert num_local_ranks({"LOCAL_RANK": "0", "WORLD_SIZE": "many"}) == 1
