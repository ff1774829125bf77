"""Tables on standard output."""

from __future__ import annotations

from _crops.comparing import Comparison
from _crops.machine import describe
from _crops.readers import TITLES


def print_machine() -> None:
    """Print hardware, load and versions."""
    facts = describe()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    print(f"{facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f}, Linux {facts['kernel']}")
    print(versions, flush=True)


def print_comparison(found: Comparison) -> None:
    """Print one row for each reader: medians with quartiles, ratios round by round."""
    rounds = len(found.loads)
    print(f"\n{found.title}; {rounds} rounds of {found.batches} batches; load {_range(found.loads)}")
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


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
