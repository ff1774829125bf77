"""The cost of a guard with default settings in a plain DDP loop: one process group, interleaved blocks of 500 steps.

    python bench/guard.py [--ranks 1 2] [--rounds 10]

Two models: a small MLP (8,970 parameters, batch 32 per rank) and a wider one (400,000). The first block of the guarded
loop has its first steps, which are checked often; each later block has one check, as in a long run. Printed: wall and
CPU time per step, the first block's ratio, the paired ratios of the later blocks, and the cost of one check.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import rankwise

STEPS = 500
WIDTHS = {"8,970 parameters": 64, "400,000 parameters": 440}


def measure(rounds: int, width: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall and CPU ms per step of each kind, one pair a round; of rank 0."""
    import torch
    from torch import nn

    with rankwise.bind(device="cpu", threads=1) as world:

        def make():
            torch.manual_seed(0)
            layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
            model = rankwise.prepare(nn.Sequential(*layers))
            return model, torch.optim.SGD(model.parameters(), lr=1e-3)

        generator = torch.Generator().manual_seed(world.rank)
        batches = [torch.randn(32, 64, generator=generator) for _ in range(8)]
        loops = {"raw": make(), "guarded": make(), "every step": make()}
        guards = [
            rankwise.guarded(loops["guarded"][0], optimizer=loops["guarded"][1]),
            rankwise.guarded(loops["every step"][0], optimizer=loops["every step"][1], checks="all"),
        ]

        def block(kind: str, steps: int) -> tuple[float, float]:
            model, optimizer = loops[kind]
            world.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for step in range(steps):
                optimizer.zero_grad()
                model(batches[step % 8]).square().mean().backward()
                optimizer.step()
            return (time.perf_counter() - wall) / steps * 1e3, (time.process_time() - cpu) / steps * 1e3

        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in loops}
        block("raw", 50)
        shuffle = random.Random(0)  # the same order of blocks on all ranks
        for _ in range(rounds + 1):
            for kind in shuffle.sample(list(loops), len(loops)):
                times[kind].append(block(kind, STEPS if kind != "every step" else 25))
        for guard in guards:
            assert not guard.findings
            guard.close()
        return times


def report(times: dict[str, list[tuple[float, float]]], ranks: int, size: str) -> None:
    """Print one table."""
    print(f"\n{ranks} rank{'s' * (ranks > 1)}, {size}, {len(times['raw']) - 1} rounds of {STEPS} steps")
    for index, clock in enumerate(("wall", "CPU")):
        raw, guarded, looked = ([pair[index] for pair in times[kind]] for kind in ("raw", "guarded", "every step"))
        ratios = [g / r for g, r in zip(guarded[1:], raw[1:], strict=True)]
        tenths = statistics.quantiles(ratios, n=10)
        look = statistics.median(looked[1:]) - statistics.median(raw[1:])
        print(
            f"  {clock:4}: raw {statistics.median(raw[1:]):.3f} ms a step; guarded / raw: median "
            f"{statistics.median(ratios):.4f} (p10 {tenths[0]:.3f}, p90 {tenths[-1]:.3f}), first {STEPS} steps "
            f"{guarded[0] / raw[0]:.3f}; one look {look:.2f} ms, its share of {STEPS} steps {look / STEPS / raw[1]:.4f}"
        )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    import os
    import platform

    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    for ranks in args.ranks:
        for size, width in WIDTHS.items():
            report(rankwise.run(measure, args.rounds, width, num_ranks=ranks)[0], ranks, size)


if __name__ == "__main__":
    main()
