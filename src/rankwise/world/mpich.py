"""Hydra's variables: what the `mpiexec` of MPICH, and of those built on it (Intel MPI), tells each process."""

from __future__ import annotations

from collections.abc import Mapping

from rankwise.errors import WorldError
from rankwise.world.place import Place
from rankwise.world.variables import check_ranges, int_of, mpi_address, port_of

__all__ = ["mpich_place"]

_EXAMPLE = "mpiexec -genv MASTER_ADDR node01 -genv MASTER_PORT 20123 ..."


def mpich_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place that Hydra's variables describe, None outside of it.

    `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE too, but no MPI_LOCALRANKID: those tasks are Slurm's.

    Raises:
        WorldError: they contradict each other, or they do not tell where the ranks meet.
    """
    rank, size = int_of(environ, "PMI_RANK"), int_of(environ, "PMI_SIZE")
    local, local_size = int_of(environ, "MPI_LOCALRANKID"), int_of(environ, "MPI_LOCALNRANKS")
    if rank is None or size is None or local is None:
        return None
    check_ranges(
        {
            ("PMI_RANK", "PMI_SIZE"): (rank, size),
            ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"): (local, local_size),
        }
    )
    one_machine = local_size == size
    if size == 1:
        return Place(family="mpich")
    return Place(
        family="mpich",
        rank=rank,
        world_size=size,
        local_rank=local,
        local_world_size=local_size,
        node_rank=0 if one_machine else None,
        num_nodes=1 if one_machine else None,
        master_addr=mpi_address(environ, "mpiexec", _EXAMPLE, one_machine=one_machine),
        master_port=_port(environ),
    )


def _port(environ: Mapping[str, str]) -> int:
    """Nothing that Hydra sets is the same for all ranks of one job and for no other job."""
    port = port_of(environ, "MASTER_PORT")
    if port is None:
        raise WorldError(
            "mpiexec does not say at which port the ranks can meet: pass one that is free on rank 0's machine, for "
            "example `mpiexec -genv MASTER_PORT 20123 ...`"
        )
    return port
