"""Prints the tables."""

from __future__ import annotations

from _common.header import span_of

from _crops.comparison import Comparison
from _crops.readers import TITLES


def print_comparison(found: Comparison) -> None:
    """Print one row for each reader: medians with quartiles, ratios round by round."""
    rounds = len(found.loads)
    print(f"\n{found.title}; {rounds} rounds of {found.batches} batches; load {span_of(found.loads)}")
    print("| reader | CPU ms per batch | wall ms per batch | crops/s | Mvoxel/s | CPU / ours | wall / ours |")
    print("|---|---|---|---|---|---|---|")
    for name in sorted(found.cpu_s, key=list(TITLES).index):
        voxels = found.crops_per_s(name).median * found.voxels_per_crop() / 1e6
        print(
            f"| {TITLES[name]} | {found.cpu_ms(name)} | {found.wall_ms(name)} | {found.crops_per_s(name)} "
            f"| {voxels:.1f} | {found.cpu_ratio(name, 'ours') or '-'} | {found.wall_ratio(name, 'ours') or '-'} |"
        )
    for name, why in found.failed.items():
        print(f"{TITLES[name]} did not run: {why}")
    print(end="", flush=True)
