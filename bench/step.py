"""What an exact step costs over a raw DistributedDataParallel step, in one process group, blocks of both interleaved.

    python bench/step.py [--ranks 1 2] [--rounds 40] [--steps 25]

The model is a small MLP (8,970 parameters, batch 32 a rank), so that what is measured is the overhead and not the
arithmetic. The raw step takes the mean over the rank's own samples, which is exact only because the shares are equal.
Printed: median and 10th to 90th percentile of ms per step, and the median of the paired differences to the raw step.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time

import rankwise


def measure(rounds: int, steps: int) -> dict[str, list[float]]:
    """Return ms per step of each kind, one value a round, measured by rank 0."""
    import numpy as np
    import torch
    from torch import nn

    from rankwise.data.samples import ArraySource, SampleLoader
    from rankwise.train import ExactStep

    with rankwise.bind(device="cpu", threads=1) as world:
        rng = np.random.default_rng(0)
        size = 32 * world.world_size
        source = ArraySource(
            {"x": rng.normal(size=(size * 4, 64)).astype(np.float32), "y": rng.integers(0, 10, size * 4)}
        )
        order = rankwise.Order(source, batch_size=size)
        batches = [tuple(b.detach() for b in step) for step in SampleLoader(source, order=order)]
        model = rankwise.prepare(
            nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def losses(model, batch):
            return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

        def raw(step):
            optimizer.zero_grad(set_to_none=True)
            losses(model, step[0]).mean().backward()
            optimizer.step()

        kinds = {
            "raw DDP step": raw,
            "ExactStep, per-sample losses": ExactStep(model, optimizer, losses, world=world),
            "ExactStep, (sum, weight)": ExactStep(
                model, optimizer, lambda m, b: (losses(m, b).sum(), len(b.ids)), world=world
            ),
        }
        for take in kinds.values():
            take(batches[0])
        times: dict[str, list[float]] = {name: [] for name in kinds}
        shuffle = random.Random(0)  # the same order of blocks on all ranks
        for _ in range(rounds):
            for name in shuffle.sample(list(kinds), len(kinds)):
                world.barrier()
                begin = time.perf_counter()
                for index in range(steps):
                    kinds[name](batches[index % len(batches)])
                times[name].append((time.perf_counter() - begin) / steps * 1e3)
        return times


def report(times: dict[str, list[float]], ranks: int) -> None:
    """Print one table."""
    raw = times["raw DDP step"]
    print(f"\n{ranks} rank{'s' if ranks > 1 else ''}, {len(raw)} rounds")
    print(f"{'':32}{'median ms':>10}{'p10':>8}{'p90':>8}{'paired difference':>20}")
    for name, values in times.items():
        tenths = statistics.quantiles(values, n=10)
        extra = statistics.median(a - b for a, b in zip(values, raw, strict=True))
        print(f"{name:32}{statistics.median(values):10.3f}{tenths[0]:8.3f}{tenths[-1]:8.3f}{extra:+20.3f}")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    machine, load = platform.processor() or platform.machine(), os.getloadavg()[0]
    print(f"{machine}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    for ranks in args.ranks:
        report(rankwise.run(measure, args.rounds, args.steps, num_ranks=ranks)[0], ranks)


if __name__ == "__main__":
    main()
