"""Which cores each rank may use, and with how many threads: its seat."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rankwise.launch.hardware import Topology, num_usable_cores, read_topology
from rankwise.launch.job import Job

__all__ = ["Seat", "seat_ranks", "seated", "seats_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """The cores and threads of one rank.

    Attributes:
        cpus: hardware threads that it may run on; None: all that the launcher may use.
        num_threads: its share of them, at least 1: the hardware threads divided by the ranks that share them, and at
            most its share of a container's quota.
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
    """Assign cores to every rank of this machine.

    Args:
        binding: "none": all cores. "numa": those of its GPU's NUMA node; without a GPU the ranks are spread over the
            nodes (several nodes per rank if there are fewer ranks). "core": its own part of these, whole cores if there
            are enough. "auto": "numa" if there are several nodes and the node of every rank's GPU is known. Else
            "none", as two independent launches would bind to the same cores.
        num_ranks: ranks on this machine.
        topology: the cores and GPUs that the launcher may use.
        usable_cores: how many of these cores a quota allows.
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
    """Return for each rank the hardware threads of its node or nodes."""
    nodes, num_ranks, threads = sorted(topology.nodes), len(near), topology.threads
    home = {thread: node for node in nodes for thread in topology.nodes[node]}
    rooms = []
    for rank, node in enumerate(near):
        if node is not None:
            mine = [node]
        elif num_ranks < len(nodes):
            mine = nodes[rank * len(nodes) // num_ranks : (rank + 1) * len(nodes) // num_ranks]
        else:  # in proportion to the nodes' cores, whose number may differ under a CPU set
            mine = [home[threads[min(len(threads) - 1, (2 * rank + 1) * len(threads) // (2 * num_ranks))]]]
        rooms.append(tuple(thread for number in mine for thread in topology.nodes[number]))
    return rooms


def _cut(rooms: Sequence[tuple[int, ...]], topology: Topology) -> list[tuple[int, ...]]:
    """Split a room among its ranks: whole cores, else single threads, else threads shared in turn."""
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
    """Bind this thread to a rank's cores; a process started inside is bound before it allocates memory."""
    if seat.cpus is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, seat.cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
