"""Open MPI's variables: what `mpirun` tells each process."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from rankwise.world.place import Place
from rankwise.world.variables import check_ranges, first_set, int_of, mpi_address, port_of

__all__ = ["open_mpi_place"]

_EXAMPLE = "mpirun -x MASTER_ADDR=node01 ..."
_JOB_NAMES = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
_FIRST_PORT, _NUM_PORTS = 10_000, 20_000  # below Linux's ephemeral ports, which begin at 32768


def open_mpi_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place that mpirun's variables describe, None outside of mpirun.

    Raises:
        WorldError: they contradict each other, or the ranks are on several machines and MASTER_ADDR is not set.
    """
    rank, size = int_of(environ, "OMPI_COMM_WORLD_RANK"), int_of(environ, "OMPI_COMM_WORLD_SIZE")
    local = int_of(environ, "OMPI_COMM_WORLD_LOCAL_RANK")
    if rank is None or size is None or local is None:
        return None
    local_size, node = int_of(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"), int_of(environ, "OMPI_COMM_WORLD_NODE_RANK")
    check_ranges(
        {
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"): (rank, size),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"): (local, local_size),
        }
    )
    del node  # Open MPI's NODE_RANK counts processes on a node over all jobs, it is no number of the node
    one_machine = local_size == size
    return Place(
        family="open mpi",
        rank=rank,
        world_size=size,
        local_rank=local,
        local_world_size=local_size,
        node_rank=0 if one_machine else None,
        num_nodes=1 if one_machine else None,
        master_addr=mpi_address(environ, "mpirun", _EXAMPLE, one_machine=one_machine),
        master_port=port_of(environ, "MASTER_PORT") or _port(environ),
    )


def _port(environ: Mapping[str, str]) -> int:
    job = first_set(environ, *_JOB_NAMES)
    return _FIRST_PORT + zlib.crc32((environ[job] if job else "").encode()) % _NUM_PORTS
