"""Read the environment variables of torchrun, Open MPI, MPICH and Kubeflow; Slurm has a module of its own."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rankwise._process.variables import (
    FIRST_PORT,
    NUM_PORTS,
    Place,
    check_ranges,
    first_set,
    int_of,
    port_of,
)
from rankwise.errors import WorldError

# variables of rankwise and torchrun
WANTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_MPIRUN = "mpirun -x MASTER_ADDR=node01 ..."
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
_MPIEXEC = "mpiexec -genv MASTER_ADDR node01 -genv MASTER_PORT 20123 ..."
# of a PyTorchJob, whose RANK is that of the pod, and of a TrainJob: rank, size, host and port of rank 0
_KUBEFLOW = (
    ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    ("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
)


def torchrun_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place that rankwise's and torchrun's variables describe, None if one of them is missing.

    Raises:
        WorldError: they contradict each other.
    """
    if any(first_set(environ, name) is None for name in WANTED):
        return None
    rank, size, local = (int_of(environ, name) or 0 for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    local_size = int_of(environ, "LOCAL_WORLD_SIZE")
    node, num_nodes = int_of(environ, "GROUP_RANK"), int_of(environ, "GROUP_WORLD_SIZE")
    check_ranges(
        {
            ("RANK", "WORLD_SIZE"): (rank, size),
            ("LOCAL_RANK", "LOCAL_WORLD_SIZE"): (local, local_size),
            ("LOCAL_RANK", "WORLD_SIZE"): (local, size),
            ("GROUP_RANK", "GROUP_WORLD_SIZE"): (node, num_nodes),
        }
    )
    if local_size is not None and local_size > size:
        raise WorldError(f"LOCAL_WORLD_SIZE={local_size} is larger than WORLD_SIZE={size}: fix whatever sets them")
    return Place(
        family="torchrun",
        rank=rank,
        world_size=size,
        local_rank=local,
        local_world_size=local_size,
        node_rank=node,
        num_nodes=num_nodes,
        master_addr=environ["MASTER_ADDR"].strip(),
        master_port=port_of(environ, "MASTER_PORT") or 0,
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "TORCHELASTIC_RUN_ID" in environ,
    )


def open_mpi_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place that mpirun's variables describe, None outside of mpirun.

    Raises:
        WorldError: they contradict each other, or the ranks are on several machines and MASTER_ADDR is not set.
    """
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    found = _mpi_place(environ, "open mpi", names, launcher="mpirun", example=_MPIRUN)
    if found is None:
        return None
    job = first_set(environ, *_JOB_NAMES)
    port = FIRST_PORT + zlib.crc32((environ[job] if job else "").encode()) % NUM_PORTS
    return replace(found, master_port=port_of(environ, "MASTER_PORT") or port)


def mpich_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place that the variables of Hydra (MPICH's launcher) describe, None without them.

    `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE too, but no MPI_LOCALRANKID: those tasks are Slurm's.

    Raises:
        WorldError: they contradict each other, or address and port of rank 0 are missing.
    """
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    found = _mpi_place(environ, "mpich", names, launcher="mpiexec", example=_MPIEXEC)
    if found is None:
        return None
    if found.world_size == 1:
        return Place(family="mpich")
    port = port_of(environ, "MASTER_PORT")
    if port is None:  # Hydra sets no variable that is equal on all ranks of a job and unique to the job
        raise WorldError(
            "mpiexec does not set the port where the ranks meet: pass one that is free on rank 0's machine, for "
            "example `mpiexec -genv MASTER_PORT 20123 ...`"
        )
    return replace(found, master_port=port)


def _mpi_place(
    environ: Mapping[str, str], family: str, names: Sequence[str], *, launcher: str, example: str
) -> Place | None:
    """Return a place without port from the names of rank, size, local rank and local size; None if one is missing.

    MPI launchers do not provide the address of rank 0, nor the machine's number: Open MPI's NODE_RANK counts processes
    on a node over all jobs.

    Raises:
        WorldError: they contradict each other, or the ranks are on several machines and MASTER_ADDR is not set.
    """
    rank, size, local, local_size = (int_of(environ, name) for name in names)
    if rank is None or size is None or local is None:
        return None
    check_ranges({(names[0], names[1]): (rank, size), (names[2], names[3]): (local, local_size)})
    one_machine = size in (1, local_size)
    if not one_machine and not first_set(environ, "MASTER_ADDR"):
        raise WorldError(
            f"{launcher} does not set the machine of rank 0, and the ranks are on several machines: pass its host "
            f"name, for example `{example}`"
        )
    return Place(
        family=family,
        rank=rank,
        world_size=size,
        local_rank=local,
        local_world_size=local_size,
        node_rank=0 if one_machine else None,
        num_nodes=1 if one_machine else None,
        master_addr=environ.get("MASTER_ADDR", "").strip() or "127.0.0.1",
    )


def kubeflow_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place of a pod with one process, None outside Kubernetes or under a launcher (LOCAL_RANK is set).

    Raises:
        WorldError: the variables contradict each other, or the job requests several processes per pod.
    """
    if first_set(environ, "KUBERNETES_SERVICE_HOST") is None or first_set(environ, "LOCAL_RANK"):
        return None
    names = next((names for names in _KUBEFLOW if all(first_set(environ, name) for name in names)), None)
    if names is None:
        return None
    processes = environ.get("PET_NPROC_PER_NODE", "").strip()
    if processes.isdecimal() and int(processes) > 1:
        raise WorldError(
            f"this job needs {processes} processes in each pod (PET_NPROC_PER_NODE={processes}), but this process was "
            "started without a launcher: make `rankwise run train.py` the container's command, it starts all of them"
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
