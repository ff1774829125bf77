"""The goals, and whether a run met them."""

from __future__ import annotations

from _common.spreads import Spread
from _common.verdicts import Verdict, at_least

from _crops.comparison import Comparison


def of_comparison(found: Comparison, codec: str) -> list[Verdict]:
    """Goals for independent crops of one codec; "mixed" and "none" have none."""
    kind = {"zstd-1": "zstd", "zstd-3": "zstd", "blosc-zstd": "zstd", "blosc-lz4": "lz4"}.get(codec)
    if kind is None:
        return []
    zstd = kind == "zstd"
    share = _inverse(found.cpu_ratio("ours", "floor"))
    wall_note = "" if _idle(found) else "the machine was busy: wall time says little"
    rows: list[tuple[str, Spread | None, float, str]] = [
        ("share of the floor, CPU", share, 0.85 if zstd else 0.75, ""),
        ("less CPU than zarrs", found.cpu_ratio("zarrs", "ours"), 1.35 if zstd else 1.8, ""),
        ("less CPU than tensorstore", found.cpu_ratio("tensorstore", "ours"), 1.1, ""),
        ("less CPU than zarr-python", found.cpu_ratio("zarr", "ours"), 2.0 if zstd else 3.0, ""),
        ("faster than zarrs, wall", found.wall_ratio("zarrs", "ours"), 1.6, wall_note),
        ("faster than tensorstore, wall", found.wall_ratio("tensorstore", "ours"), 1.2, wall_note),
    ]
    return [at_least(f"{found.title}: {goal}", seen, bound, note) for goal, seen, bound, note in rows if seen]


def sharing(anywhere: Spread) -> Verdict:
    """Return the verdict on crops of one neighbourhood."""
    return at_least("crops of one neighbourhood against independent ones, CPU", anywhere, 2.0)


def _inverse(spread: Spread | None) -> Spread | None:
    return spread and Spread(low=1 / spread.high, median=1 / spread.median, high=1 / spread.low)


def _idle(found: Comparison) -> bool:
    # the readers themselves keep the cores busy; more than that is somebody else
    return max(found.loads) <= found.task.threads + 1.0
