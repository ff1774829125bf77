"""Slurm's variables: a job step is a world, an allocation alone is not."""

import pytest

from rankwise._process.place import announced_place, find_place, num_local_ranks
from rankwise._process.slurm import slurm_place, slurm_port
from rankwise.errors import WorldError


def test_a_step_is_a_world(slurm_step):
    """Rank, sizes, node and the first host come from the step's variables."""
    place = slurm_place(slurm_step)
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (5, 6, 1, 2)
    assert (place.node_rank, place.num_nodes, place.master_addr) == (2, 3, "gpu07")
    assert place.master_port == slurm_port(7001, 0, 0, 0)
    assert slurm_place(slurm_step | {"MASTER_ADDR": "fast07", "MASTER_PORT": "15000"}).master_addr == "fast07"
    announced = announced_place(slurm_step)
    assert (announced.rank, announced.world_size, num_local_ranks(slurm_step)) == (5, 6, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_ID": ""},
        {"SLURM_STEP_ID": "batch"},
        {"SLURM_STEP_ID": "interactive"},
        {"SLURM_STEP_ID": "4294967291"},
        {"SLURM_STEP_ID": "4294967290"},
        {"SLURM_PTY_PORT": "40123"},
    ],
)
def test_an_allocation_without_a_step_is_a_world_of_one(slurm_step, change):
    """In a batch script or a terminal nobody else was started: one rank, and a note that says how to get all."""
    place = find_place(slurm_step | {"SLURM_PROCID": "0"} | change)
    assert place.world_size == 1
    assert "of 6 tasks" in place.note
    assert "srun" in place.note


def test_the_steps_own_number_of_tasks_counts(slurm_step):
    """`srun -n 2` inside a job of 6: the step has 2 ranks."""
    assert slurm_place(slurm_step | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}).world_size == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_PROCID": "6"}, "SLURM_PROCID=6 contradicts SLURM_NTASKS=6"),
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID=3 contradicts"),
        ({"SLURM_LOCALID": "2"}, "SLURM_LOCALID=2 contradicts the tasks of this node"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is missing"),
    ],
)
def test_contradictions_are_named(slurm_step, change, message):
    """A step whose variables do not fit is refused, not guessed at."""
    with pytest.raises(WorldError, match=message):
        slurm_place(slurm_step | change)


def test_ports_lie_outside_the_ephemeral_range():
    """Ports of neighbouring jobs and steps seldom meet, all below 32768."""
    ports = {slurm_port(job, step, 0, 0) for job in range(5000, 5050) for step in range(3)}
    assert len(ports) > 140
    assert min(ports) >= 10_000
    assert max(ports) < 30_000


def test_the_port_does_not_follow_from_the_job_alone(slurm_step):
    """Another srun of the same job, or the same one after a requeue, has another port; a reserved one is taken."""
    first = slurm_place(slurm_step | {"SLURM_SRUN_COMM_PORT": "43731"}).master_port
    assert slurm_place(slurm_step | {"SLURM_SRUN_COMM_PORT": "43732"}).master_port != first
    assert slurm_place(slurm_step | {"SLURM_SRUN_COMM_PORT": "43731", "SLURM_RESTART_COUNT": "1"}).master_port != first
    assert slurm_place(slurm_step | {"SLURM_STEP_RESV_PORTS": "12007-12008"}).master_port == 12007
