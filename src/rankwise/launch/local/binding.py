"""Which cores each rank may use, and how many threads: its seat on the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankwise.launch.cores import num_usable_cores
from rankwise.launch.job import Job
from rankwise.launch.topology import Topology, read_topology

__all__ = ["Seat", "seat_ranks", "seated", "seats_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """What a rank has of this machine.

    Attributes:
        cpus: hardware threads that it may run on; None: all that the launcher may use.
        num_threads: its part of them, at least 1: hardware threads by the ranks that share them, and no more than its
            part of a container's quota.
    """

    cpus: frozenset[int] | None
    num_threads: int


def seats_of(job: Job) -> list[Seat]:
    """Return the seat of each rank of a launch on this machine."""
    return seat_ranks(
        job.binding,
        job.num_ranks,
        topology=read_topology(visible=job.env.get("CUDA_VISIBLE_DEVICES")),
        usable_cores=num_usable_cores(),
        ranks_per_gpu=job.ranks_per_gpu or 1,
    )


def seat_ranks(
    binding: str, num_ranks: int, *, topology: Topology, usable_cores: int, ranks_per_gpu: int = 1
) -> list[Seat]:
    """Give every rank of this machine its cores.

    Args:
        binding: "none": all of them; "numa": those of the NUMA node of its GPU, else of its turn among the nodes (of
            several nodes if there are fewer ranks than nodes); "core": its own part of these, whole cores as long as
            there are enough; "auto": "numa" if the node of every rank's GPU is known and there are several nodes, else
            "none": two launches that know nothing of each other would sit on the same cores, while others are idle.
        num_ranks: ranks on this machine.
        topology: what the launcher may use.
        usable_cores: as many of these as a quota leaves.
        ranks_per_gpu: how many ranks compute on one GPU.
    """
    gpus = [topology.gpus[rank // ranks_per_gpu : rank // ranks_per_gpu + 1] for rank in range(num_ranks)]
    near = [gpu[0] if gpu and gpu[0] in topology.nodes else None for gpu in gpus]
    if binding == "auto":
        binding = "numa" if len(topology.nodes) > 1 and None not in near else "none"
    part = max(1, usable_cores // num_ranks)
    if binding == "none":
        return [Seat(cpus=None, num_threads=part)] * num_ranks
    rooms = _rooms(near, topology)
    if binding == "core":
        rooms = _cut(rooms, topology)
    sharers = [rooms.count(room) for room in rooms]
    return [
        Seat(cpus=frozenset(room), num_threads=max(1, min(part, len(room) // number)))
        for room, number in zip(rooms, sharers, strict=True)
    ]


def _rooms(near: Sequence[int | None], topology: Topology) -> list[tuple[int, ...]]:
    """Return for each rank the hardware threads of its node, or of its nodes."""
    nodes, num_ranks, threads = sorted(topology.nodes), len(near), topology.threads
    home = {thread: node for node in nodes for thread in topology.nodes[node]}
    rooms = []
    for rank, node in enumerate(near):
        if node is not None:
            mine = [node]
        elif num_ranks < len(nodes):
            mine = nodes[rank * len(nodes) // num_ranks : (rank + 1) * len(nodes) // num_ranks]
        else:  # in proportion to the nodes' cores, which a CPU set may have cut unequally
            mine = [home[threads[min(len(threads) - 1, (2 * rank + 1) * len(threads) // (2 * num_ranks))]]]
        rooms.append(tuple(thread for number in mine for thread in topology.nodes[number]))
    return rooms


def _cut(rooms: Sequence[tuple[int, ...]], topology: Topology) -> list[tuple[int, ...]]:
    """Give each rank of a room its own part of it: whole cores, else single threads, else one in turn with others."""
    cut = []
    for rank, room in enumerate(rooms):
        mine, sharers = rooms[:rank].count(room), rooms.count(room)
        cores = list(dict.fromkeys(topology.siblings[thread] for thread in room))
        units = cores if len(cores) >= sharers else [(thread,) for thread in room]
        first, last = mine * len(units) // sharers, (mine + 1) * len(units) // sharers
        chosen = units[first:last] or [units[mine % len(units)]]
        cut.append(tuple(thread for unit in chosen for thread in unit))
    return cut


@contextlib.contextmanager
def seated(seat: Seat) -> Iterator[None]:
    """Let what this thread starts inside begin on a rank's cores: before its first page of memory is placed."""
    if seat.cpus is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, seat.cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
