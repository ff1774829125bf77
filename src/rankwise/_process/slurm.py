"""Slurm: read the variables of a task of an `srun` step, and compressed lists (``a[1-3,07],b``, ``2(x3),1``)."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping

from rankwise._process.variables import FIRST_PORT, NUM_PORTS, Place, check_ranges, first_set, int_of, port_of
from rankwise.errors import WorldError

_MAX_HOSTS = 1_000_000
# Step ids from here on are reserved for the batch script, interactive steps and the like.
_SPECIAL_STEPS = 0xFFFF_FFF0


def slurm_port(*numbers: int) -> int:
    """Return the port of rank 0's store: between 10000 and 29999, the same for all tasks of a step.

    Args:
        *numbers: numbers of the job, the step and its srun. Consecutive jobs and steps get different ports, and so does
            a requeued job or a second srun, because the kernel chooses the port on which an srun listens.
    """
    text = " ".join(map(str, numbers)).encode()
    return FIRST_PORT + int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % NUM_PORTS


def slurm_place(environ: Mapping[str, str]) -> Place | None:
    """Return the place of a task of an srun step; in an allocation without step, a world of one with a note.

    Raises:
        WorldError: the variables contradict each other.
    """
    if first_set(environ, "SLURM_JOB_ID", "SLURM_JOBID") is None:
        return None
    if not in_step(environ):
        tasks = first_set(environ, "SLURM_NTASKS")
        asked = f" of {environ[tasks]} tasks" if tasks else ""
        return Place(
            note=f"this process is inside a Slurm allocation{asked} but was not started by srun as one of its tasks: "
            "it runs as one rank. To run all ranks, start it with `srun python ...` or `rankwise run`."
        )
    rank, size = int_of(environ, "SLURM_PROCID"), int_of(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    local, node = int_of(environ, "SLURM_LOCALID"), int_of(environ, "SLURM_NODEID")
    if rank is None or size is None or local is None:
        return None
    num_nodes = int_of(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    local_size = _tasks_here(environ, node)
    check_ranges(
        {
            ("SLURM_PROCID", first_set(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or ""): (rank, size),
            ("SLURM_LOCALID", "the tasks of this node in SLURM_STEP_TASKS_PER_NODE"): (local, local_size),
            ("SLURM_NODEID", "SLURM_STEP_NUM_NODES"): (node, num_nodes),
        }
    )
    return Place(
        family="slurm",
        rank=rank,
        world_size=size,
        local_rank=local,
        local_world_size=local_size,
        node_rank=node,
        num_nodes=num_nodes,
        master_addr=_address(environ, size),
        master_port=port_of(environ, "MASTER_PORT") or _port(environ),
    )


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process as a task: it has a numeric step id, and is no terminal (`srun --pty bash`)."""
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", "")).strip()
    return step.isdecimal() and int(step) < _SPECIAL_STEPS and first_set(environ, "SLURM_PTY_PORT") is None


def _tasks_here(environ: Mapping[str, str], node: int | None) -> int | None:
    name = first_set(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    if name is None or node is None:
        return None
    counts = expand_counts(environ[name])
    if node >= len(counts):
        raise WorldError(f"SLURM_NODEID={node} contradicts {name}={environ[name]}, which has {len(counts)} nodes")
    return counts[node]


def _address(environ: Mapping[str, str], size: int) -> str:
    if first_set(environ, "MASTER_ADDR"):
        return environ["MASTER_ADDR"].strip()
    name = first_set(environ, "SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    if name is not None:
        return expand_hosts(environ[name])[0]
    if size == 1:
        return ""
    raise WorldError("SLURM_STEP_NODELIST is missing, so the machine of rank 0 is unknown: set MASTER_ADDR")


def _port(environ: Mapping[str, str]) -> int:
    """Return a port that Slurm has reserved for the step (MpiParams=ports=...), else one computed from the srun."""
    reserved = re.match(r"\d+", environ.get("SLURM_STEP_RESV_PORTS", ""))
    if reserved:
        return int(reserved[0])
    names = (("SLURM_JOB_ID", "SLURM_JOBID"), ("SLURM_STEP_ID", "SLURM_STEPID"))
    started = ("SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT")
    return slurm_port(*(int_of(environ, *found) or 0 for found in (*names, started, ("SLURM_RESTART_COUNT",))))


def expand_hosts(text: str) -> list[str]:
    """Return the host names of a Slurm node list, in order.

    Brackets hold comma-separated numbers and ranges, with leading zeros; a name may have several brackets.

    Raises:
        WorldError: the list is malformed, or has more than a million hosts.
    """
    hosts: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):  # at the commas outside brackets
        pieces = re.split(r"\[([^\[\]]*)\]", item.strip())  # parts of a name, and between them what is in brackets
        if pieces == [""]:
            raise WorldError(f"the Slurm node list {text!r} has an empty entry")
        if any(bracket in piece for piece in pieces[::2] for bracket in "[]"):
            raise WorldError(f"the brackets of the Slurm node list {text!r} do not match")
        choices = [[piece] if i % 2 == 0 else _numbers(piece, text) for i, piece in enumerate(pieces)]
        for host in map("".join, itertools.product(*choices)):
            hosts.append(host)
            if len(hosts) > _MAX_HOSTS:
                raise WorldError(f"the Slurm node list {text!r} names more than {_MAX_HOSTS} hosts")
    return hosts


def _numbers(inside: str, text: str) -> list[str]:
    parts = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in inside.split(",")]
    found: list[str] = []
    for part in parts:
        if part is None:
            raise WorldError(
                f"the Slurm node list {text!r} has {inside!r} in brackets; numbers and ranges were expected"
            )
        first, last = part[1], part[2] or part[1]
        if int(last) < int(first) or int(last) - int(first) >= _MAX_HOSTS:
            raise WorldError(f"the Slurm node list {text!r} has the range {part[0]!r}, which is empty or too long")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def expand_counts(text: str) -> list[int]:
    """Return the numbers of a Slurm task count list such as ``2(x3),1``, one per node.

    Raises:
        WorldError: the list is malformed.
    """
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", item)
        if match is None:
            raise WorldError(f"the Slurm task counts {text!r} are not of the form 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
