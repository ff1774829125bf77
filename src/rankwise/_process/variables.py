"""Read a launcher's variables: a place, and integers with errors that name the variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankwise.errors import WorldError

# range of ports computed from a job's numbers: below Linux's ephemeral ports, which begin at 32768
FIRST_PORT, NUM_PORTS = 10_000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process's place according to the environment.

    Attributes:
        family: source of the variables: "torchrun", "open mpi", "mpich", "slurm", "kubeflow" or "none".
        rank: global rank.
        world_size: number of ranks.
        local_rank: rank on this machine.
        local_world_size: ranks on this machine, None if unknown.
        node_rank: number of this machine, None if unknown.
        num_nodes: number of machines, None if unknown.
        master_addr: host of rank 0, "" for a world of one.
        master_port: port of the store there, 0 for a world of one.
        agent_store: whether a launcher, and not rank 0, serves the store at that address.
        note: a message to show the user once, "" for none.
    """

    family: str = "none"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int | None = 1
    node_rank: int | None = 0
    num_nodes: int | None = 1
    master_addr: str = ""
    master_port: int = 0
    agent_store: bool = False
    note: str = ""


def first_set(environ: Mapping[str, str], *names: str) -> str | None:
    """Return the first of the names that is set and not empty."""
    return next((name for name in names if environ.get(name, "").strip()), None)


def int_of(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of the variables that is set, as an integer of at least 0; None if none is set.

    Raises:
        WorldError: it is not a number, or negative.
    """
    name = first_set(environ, *names)
    if name is None:
        return None
    text = environ[name].strip()
    try:
        value = int(text)
    except ValueError:
        raise WorldError(f"{name} must be an integer, it is {environ[name]!r}: unset it or fix the launcher") from None
    if value < 0:
        raise WorldError(f"{name} must be at least 0, it is {value}: unset it or fix the launcher")
    return value


def port_of(environ: Mapping[str, str], name: str) -> int | None:
    """Return a port number.

    Raises:
        WorldError: it is not a number between 1 and 65535.
    """
    port = int_of(environ, name)
    if port is not None and not 1 <= port <= 65535:
        raise WorldError(f"{name} must be a port between 1 and 65535, it is {port}: choose one, for example 20123")
    return port


def check_ranges(pairs: Mapping[tuple[str, str], tuple[int | None, int | None]]) -> None:
    """Check that each index is below its count.

    Args:
        pairs: (name of the index, name of the count) -> (index, count); a pair with None is not checked.

    Raises:
        WorldError: an index is not below its count; the message has both variables and values.
    """
    for (index_name, count_name), (index, count) in pairs.items():
        if index is not None and count is not None and index >= count:
            raise WorldError(
                f"{index_name}={index} contradicts {count_name}={count}: the first must be below the second; both must "
                "come from the same launcher: start all ranks with one launcher, or unset them to run as one rank"
            )
