"""Collectives with known answers, and their speed: what each rank of a probe does once its group exists."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, passed

__all__ = ["SIZES", "check_patterns", "judge_patterns", "sweep"]

SIZES = (4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20)  # bytes of one rank
_GPU_SIZES = (*SIZES, 128 << 20)  # links between GPUs are not full before
_ROUNDS = 5


def check_patterns(device: Any = "cpu") -> dict[str, str]:
    """Run each collective once on numbers whose result is known; return "" or what came instead, by name."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    own = torch.arange(4, dtype=torch.float64, device=device) + 10 * rank
    total = own.clone()
    dist.all_reduce(total)
    from_last = own.clone()
    dist.broadcast(from_last, src=size - 1)
    parts = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(parts, own)
    dist.barrier()
    first = torch.arange(4, dtype=torch.float64, device=device)
    gathered = (_difference(part, first + 10 * other, f" from rank {other}") for other, part in enumerate(parts))
    return {
        "all_reduce": _difference(total, size * first + 10 * sum(range(size))),
        "broadcast": _difference(from_last, first + 10 * (size - 1), f" from rank {size - 1}"),
        "all_gather": next(filter(None, gathered), ""),  # one is enough: there may be thousands
    }


def _difference(got: Any, right: Any, sender: str = "") -> str:
    return "" if bool((got == right).all()) else f"got {got.tolist()}{sender}, wanted {right.tolist()}"


def judge_patterns(found: Sequence[Mapping[str, str]], hosts: Sequence[str], right: str) -> Check:
    """Name the ranks that got wrong data, with their hosts.

    Args:
        found: what `check_patterns` returned, by rank.
        hosts: the host name of each rank.
        right: what to say when all of it is right.
    """
    bad = [
        f"rank {rank} on {hosts[rank]}: {name} {text}"
        for rank, said in enumerate(found)
        for name, text in said.items()
        if text
    ]
    if not bad:
        return passed("group", "collectives", right)
    mend = (
        "the transport changes data: exclude that machine; if its GPUs are right with NCCL_P2P_DISABLE=1, mend its "
        "PCIe settings (IOMMU, ACS)"
    )
    return failed("group", "collectives", "; ".join(bad), mend)


def sweep(device: Any = "cpu", sizes: Sequence[int] | None = None) -> list[dict[str, float]]:
    """Time all-reduces of growing size: algorithm bandwidth is bytes over time, bus bandwidth 2(W-1)/W of it.

    The formula is that of nccl-tests.

    Returns:
        For each size ``{"bytes", "seconds", "algorithm_gb_s", "bus_gb_s"}``; seconds are the median of 5 rounds.
    """
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    rows = []
    on_gpu = torch.device(device).type == "cuda"
    for size in sizes or (_GPU_SIZES if on_gpu else SIZES):
        data = torch.zeros(size // 4, device=device)
        seconds = statistics.median([_timed(lambda: dist.all_reduce(data), device) for _ in range(_ROUNDS)])  # noqa: B023
        rate = size / seconds / 1e9
        rows.append(
            {"bytes": size, "seconds": seconds, "algorithm_gb_s": rate, "bus_gb_s": rate * 2 * (world - 1) / world}
        )
    return rows


def _timed(call: Callable[[], object], device: Any) -> float:
    import torch
    import torch.distributed as dist

    dist.barrier()
    begun = time.perf_counter()
    call()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
