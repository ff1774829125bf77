"""The variables of MPICH's Hydra, as its version 4.0.2 sets them."""

import pytest

from rankwise._process.launchers import mpich_place
from rankwise._process.place import find_place
from rankwise.errors import WorldError

ONE_MACHINE = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3", "MASTER_PORT": "20123"}


def test_one_machine_needs_a_port():
    """Nothing in the variables is common to the ranks of one job alone, so that the user chooses; the mend is named."""
    place = mpich_place(ONE_MACHINE)
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (1, 3, 1, 3)
    assert (place.num_nodes, place.master_addr, place.master_port) == (1, "127.0.0.1", 20123)
    with pytest.raises(WorldError, match="-genv MASTER_PORT 20123"):
        mpich_place({name: value for name, value in ONE_MACHINE.items() if name != "MASTER_PORT"})


def test_several_machines_need_an_address():
    """Refused with the mend, unless MASTER_ADDR is passed."""
    several = ONE_MACHINE | {"MPI_LOCALNRANKS": "2"}
    with pytest.raises(WorldError, match="-genv MASTER_ADDR node01"):
        mpich_place(several)
    place = mpich_place(several | {"MASTER_ADDR": "node01"})
    assert (place.master_addr, place.local_world_size, place.num_nodes) == ("node01", 2, None)


def test_contradictions_and_a_single_rank():
    """A rank beyond the size is refused; one rank needs no port."""
    with pytest.raises(WorldError, match="PMI_RANK=3 contradicts PMI_SIZE=3"):
        mpich_place(ONE_MACHINE | {"PMI_RANK": "3"})
    assert mpich_place({"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}).world_size == 1


def test_in_a_slurm_allocation_its_daemons_are_slurms_tasks():
    """One task of srun per machine starts the ranks there: their own variables decide, not those of that task."""
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "node01",
    }
    assert find_place(step | ONE_MACHINE).family == "mpich"
    pmi2 = step | {"PMI_RANK": "0", "PMI_SIZE": "1"}  # what `srun --mpi=pmi2` sets for its own tasks
    assert find_place(pmi2).family == "slurm"
