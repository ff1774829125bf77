"""Kubeflow's variables: what its operators tell each pod, where a pod is one rank."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.errors import WorldError
from rankwise.world.place import Place
from rankwise.world.variables import check_ranges, first_set, int_of, port_of

__all__ = ["kubeflow_place"]

# of a PyTorchJob, whose RANK is the pod's, and of a TrainJob: rank, size, host of rank 0, port there
_FAMILIES = (
    ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    ("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
)


def kubeflow_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place of a pod with one process, None outside of Kubernetes or below a launcher (LOCAL_RANK is set).

    Raises:
        WorldError: the variables contradict each other, or the job wants several processes in a pod.
    """
    if first_set(environ, "KUBERNETES_SERVICE_HOST") is None or first_set(environ, "LOCAL_RANK"):
        return None
    names = next((names for names in _FAMILIES if all(first_set(environ, name) for name in names)), None)
    if names is None:
        return None
    processes = environ.get("PET_NPROC_PER_NODE", "").strip()
    if processes.isdigit() and int(processes) > 1:
        raise WorldError(
            f"this job wants {processes} processes in each pod (PET_NPROC_PER_NODE={processes}) and this one was "
            "started without a launcher: make the container's command `rankwise run train.py`, which starts all of them"
        )
    rank, size = int_of(environ, names[0]) or 0, int_of(environ, names[1]) or 0
    check_ranges({(names[0], names[1]): (rank, size)})
    return Place(
        family="kubeflow",
        rank=rank,
        world_size=size,
        local_rank=0,
        local_world_size=1,
        node_rank=rank,
        num_nodes=size,
        master_addr=environ[names[2]].strip(),
        master_port=port_of(environ, names[3]) or 0,
    )
