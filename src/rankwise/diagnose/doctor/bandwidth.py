"""The sweep as a table with a plot: time, algorithm and bus bandwidth for each size.

Bus bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md of NVIDIA/nccl-tests): for an all-reduce of W ranks it is
the algorithm bandwidth (bytes / time) times 2(W-1)/W, so that it is comparable to the bandwidth of one link for any W.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

__all__ = ["bandwidth_table", "describe_sweep"]

_WIDTH = 30  # width of the longest bar, in characters


def describe_sweep(rows: Sequence[Mapping[str, float]]) -> str:
    """Return sizes with their bus bandwidths in one line."""
    return ", ".join(
        f"{_size(int(row['bytes']))} {row['bus_gb_s']:.3g} GB/s ({row['seconds'] * 1e3:.3g} ms)" for row in rows
    )


def bandwidth_table(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the sweep as text; bars have a logarithmic scale, from a tenth of the slowest to the fastest."""
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    low = math.log10(min(row["bus_gb_s"] for row in rows) or 1e-9) - 1
    high = max(math.log10(row["bus_gb_s"] or 1e-9) for row in rows)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("size", "time", "algorithm", "bus"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bus, logarithmic", no_wrap=True, width=_WIDTH)
    for row in rows:
        share = (math.log10(row["bus_gb_s"] or 1e-9) - low) / ((high - low) or 1)
        rates = [f"{row[name]:.3g} GB/s" for name in ("algorithm_gb_s", "bus_gb_s")]
        table.add_row(_size(int(row["bytes"])), f"{row['seconds'] * 1e3:.3g} ms", *rates, Bar(1, 0, share))
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
