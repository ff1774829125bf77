"""Run collectives with known results and measure their speed, on each rank of a probe."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.diagnose.doctor.check import Check, failed, passed

SIZES = (4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20)  # bytes per rank
_GPU_SIZES = (*SIZES, 128 << 20)  # links between GPUs need larger messages
_ROUNDS = 5


def check_patterns(device: Any = "cpu") -> dict[str, str]:
    """Run each collective once on numbers with a known result; return "" or the wrong result, by name."""
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
        "all_gather": next(filter(None, gathered), ""),  # one of thousands is enough
    }


def _difference(got: Any, right: Any, sender: str = "") -> str:
    return "" if bool((got == right).all()) else f"got {got.tolist()}{sender}, expected {right.tolist()}"


def compare_patterns(found: Sequence[Mapping[str, str]], hosts: Sequence[str], right: str) -> Check:
    """Return a check that names the ranks with wrong data, and their hosts.

    Args:
        found: results of `check_patterns`, by rank.
        hosts: the host name of each rank.
        right: the evidence text if all results are right.
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
        "the transport changes data: exclude that machine; if its GPUs give correct results with NCCL_P2P_DISABLE=1, "
        "fix its PCIe settings (IOMMU, ACS)"
    )
    return failed("group", "collectives", "; ".join(bad), mend)


def sweep(device: Any = "cpu") -> list[dict[str, float]]:
    """Time all-reduces of growing size: algorithm bandwidth is bytes / time, bus bandwidth that times 2(W-1)/W.

    The formula is that of nccl-tests.

    Returns:
        For each size ``{"bytes", "seconds", "algorithm_gb_s", "bus_gb_s"}``; seconds are the median of 5 rounds.
    """
    import torch
    import torch.distributed as dist

    world = dist.get_world_size()
    rows = []
    for size in _GPU_SIZES if torch.device(device).type == "cuda" else SIZES:
        data = torch.zeros(size // 4, device=device)
        seconds = statistics.median([_time_all_reduce(data) for _ in range(_ROUNDS)])
        rate = size / seconds / 1e9
        rows.append(
            {"bytes": size, "seconds": seconds, "algorithm_gb_s": rate, "bus_gb_s": rate * 2 * (world - 1) / world}
        )
    return rows


def _time_all_reduce(data: Any) -> float:
    import torch
    import torch.distributed as dist

    dist.barrier()
    begun = time.perf_counter()
    dist.all_reduce(data)
    if data.is_cuda:
        torch.cuda.synchronize(data.device)
    return time.perf_counter() - begun
