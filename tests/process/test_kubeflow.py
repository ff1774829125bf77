"""Kubeflow's variables, as its operators set them in each pod."""

import pytest

from rankwise._process.launchers import kubeflow_place
from rankwise._process.place import find_place
from rankwise.errors import WorldError

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-worker-0"}
PYTORCHJOB = POD | {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}
TRAINJOB = POD | {
    "PET_NNODES": "3",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train",
    "PET_MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("variables", "where"), [(PYTORCHJOB, ("train-master-0", 23456)), (TRAINJOB, ("train-node-0-0.train", 29500))]
)
def test_a_pod_of_one_process_is_a_rank(variables, where):
    """`python train.py` in each pod: rank and size are the pods', every pod is a machine of its own."""
    place = find_place(variables)
    assert (place.family, place.rank, place.world_size) == ("kubeflow", 1, 3)
    assert (place.local_rank, place.local_world_size, place.node_rank, place.num_nodes) == (0, 1, 1, 3)
    assert (place.master_addr, place.master_port) == where


def test_a_pod_of_several_processes_needs_a_launcher():
    """Refused with the mend, instead of one rank where four were asked for."""
    with pytest.raises(WorldError, match=r"4 processes in each pod.*`rankwise run"):
        find_place(TRAINJOB | {"PET_NPROC_PER_NODE": "4"})


def test_below_a_launcher_the_ranks_are_the_launchers():
    """What `rankwise run` sets in a pod goes before what the operator has set there."""
    ranks = {"RANK": "5", "WORLD_SIZE": "12", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    place = find_place(PYTORCHJOB | ranks)
    assert (place.family, place.rank, place.world_size, place.local_rank) == ("torchrun", 5, 12, 1)


def test_outside_of_kubernetes_it_says_nothing():
    """Half of torchrun's variables stay an error elsewhere; contradictions are one everywhere."""
    elsewhere = {name: value for name, value in PYTORCHJOB.items() if name != "KUBERNETES_SERVICE_HOST"}
    assert kubeflow_place(elsewhere) is None
    with pytest.raises(WorldError, match="LOCAL_RANK is not"):
        find_place(elsewhere)
    with pytest.raises(WorldError, match="RANK=3 contradicts WORLD_SIZE=3"):
        find_place(PYTORCHJOB | {"RANK": "3"})
