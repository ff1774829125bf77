"""The place that a launcher gave to this process, as a pure function of the environment variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from rankwise._process.launchers import WANTED, kubeflow_place, mpich_place, open_mpi_place, torchrun_place
from rankwise._process.slurm import slurm_place
from rankwise._process.variables import Place, check_ranges, first_set, int_of, port_of
from rankwise.errors import ConfigError, WorldError

__all__ = [
    "Place",
    "announced_place",
    "find_place",
    "given_place",
    "loopback_address",
    "num_local_ranks",
    "speaking_rank",
]


def find_place(environ: Mapping[str, str]) -> Place:
    """Return this process's place, from the first complete family of variables.

    The families, in this order: rankwise and torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open
    MPI (OMPI_COMM_WORLD_*), MPICH (PMI_* and MPI_LOCAL*), Slurm (inside a job step only), Kubeflow (pods of one rank),
    none (a world of one). MPI launchers come before Slurm, because in an allocation they start their own daemons with
    srun, one on each machine.

    Raises:
        WorldError: the variables of the family contradict each other, or RANK, WORLD_SIZE or LOCAL_RANK are set and no
            family is complete.
    """
    families: tuple[Callable[[Mapping[str, str]], Place | None], ...] = (
        torchrun_place,
        open_mpi_place,
        mpich_place,
        slurm_place,
        kubeflow_place,
    )
    found = next((place for family in families if (place := family(environ)) is not None), None)
    if found is not None and found.family != "none":
        return found
    # a rank or a size means a launcher; MASTER_* alone does not
    if first_set(environ, "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        there = [f"{name}={environ[name]}" for name in WANTED if first_set(environ, name)]
        missing = [name for name in WANTED if first_set(environ, name) is None]
        raise WorldError(
            f"{', '.join(there)} is set but {', '.join(missing)} is not, so the rank of this process is unknown: start "
            "it with `rankwise run` or torchrun, which set all of them, pass bind(rank=, world_size=, local_rank=), "
            "or unset what is left over to run as one rank"
        )
    return found or Place()


def given_place(environ: Mapping[str, str], *, rank: int, world_size: int, local_rank: int | None = None) -> Place:
    """Return the place of a process that passes its own rank, such as a function of ``mp.spawn``.

    If a launcher's variables agree with it, they provide the rest. Else rank 0 is at MASTER_ADDR (unset: this machine)
    and MASTER_PORT, and a local rank is required unless that address means that all ranks are on this machine.

    Raises:
        ConfigError: the rank is not in the world, or the local rank is missing.
        WorldError: MASTER_PORT is missing or invalid.
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"bind needs 0 <= rank < world_size, got rank={rank}, world_size={world_size}")
    with contextlib.suppress(WorldError):
        place = find_place(environ)
        if (place.rank, place.world_size, local_rank) in {
            (rank, world_size, None),
            (rank, world_size, place.local_rank),
        }:
            return place
    if world_size == 1:
        return Place(local_rank=local_rank or 0)
    address, port = environ.get("MASTER_ADDR", "").strip() or "127.0.0.1", port_of(environ, "MASTER_PORT")
    if port is None:
        raise WorldError(
            f"rank {rank} of {world_size} does not know where the ranks meet: set MASTER_PORT to the same free port "
            "for all of them before they start, for example os.environ['MASTER_PORT'] = '20123'"
        )
    here = bool(loopback_address(address))
    if local_rank is None and not here:
        raise ConfigError(
            f"bind(rank={rank}, world_size={world_size}) at MASTER_ADDR={address} does not determine the local rank: "
            "pass local_rank= as well, or set MASTER_ADDR=127.0.0.1 if all ranks are on this machine"
        )
    return Place(
        family="given",
        rank=rank,
        world_size=world_size,
        local_rank=rank if local_rank is None else local_rank,
        local_world_size=world_size if here else None,
        node_rank=0 if here else None,
        num_nodes=1 if here else None,
        master_addr=address,
        master_port=port,
    )


# Launchers' names of rank and size; these two are enough to divide the work, even if the rest is missing.
_PAIRS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMI_RANK", "PMI_SIZE"),
)


def announced_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place among several ranks that a launcher's variables announce, None if there is none.

    Rank and size of any family are enough. Variables with only one of them (a leftover WORLD_SIZE, or those of
    Lightning's own launcher before it creates the group) are ignored.

    Raises:
        WorldError: rank and size contradict each other.
    """
    try:
        place = find_place(environ)
    except WorldError:
        pair = next((pair for pair in _PAIRS if all(first_set(environ, name) for name in pair)), None)
        if pair is None:
            return None
        rank, size = (int_of(environ, name) or 0 for name in pair)
        check_ranges({pair: (rank, size)})
        place = Place(
            family="/".join(pair), rank=rank, world_size=size, local_world_size=None, node_rank=None, num_nodes=None
        )
    return place if place.world_size > 1 else None


def speaking_rank(environ: Mapping[str, str]) -> int:
    """Return the rank by which to choose who says something for all: 0 where the variables tell none."""
    try:
        return find_place(environ).rank
    except WorldError:  # half a launcher's variables: whoever needs the place says so
        return 0


def num_local_ranks(environ: Mapping[str, str]) -> int:
    """Return how many ranks share this machine according to the variables; never raises.

    For a local rank without a local size (Lightning's own launcher) it assumes that all ranks are on this machine.
    """
    with contextlib.suppress(WorldError):
        place = find_place(environ)
        if place.local_world_size is not None:
            return max(1, place.local_world_size)
    with contextlib.suppress(WorldError):
        sizes = ("LOCAL_WORLD_SIZE", *(["WORLD_SIZE"] if first_set(environ, "LOCAL_RANK") else []))
        return max(1, int_of(environ, *sizes) or 1)
    return 1


def loopback_address(host: str) -> str:
    """Return the address to listen on if a host is a loopback address or localhost, "" if others can reach it."""
    if host == "::1" or host.startswith("127."):
        return host
    return "127.0.0.1" if host == "localhost" else ""
