"""Memory of a rank under ddp, zero1 and fsdp: bytes of its tensors after a step, and growth of resident memory.

    python bench/memory.py [--ranks 2] [--layers 16] [--width 1024]

The model is a stack of square layers, the optimizer AdamW, everything float32. Counted are parameters, gradients and
optimizer state between two steps. The resident memory (RSS) also holds buckets, gathered layers and activations; it is
read after `malloc_trim` has returned freed memory. "estimate" is the number that `strategy="auto"` uses. Each strategy
runs in new processes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource

import rankwise

MIB = 2**20


def measure(strategy: str, layers: int, width: int) -> dict[str, float]:
    """Return MiB of this rank after three steps of a strategy."""
    import torch
    from torch import nn

    from rankwise.train import Window, prepare_optimizer
    from rankwise.train.models.sharding import local_part
    from rankwise.train.strategy import Evidence, decide

    def resident() -> float:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free and kept for later is not held
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize() / MIB

    with rankwise.bind(device="cpu", threads=1) as world:
        model: nn.Module = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        estimate = decide(model, world, Evidence(optimizer=optimizer)).bytes_per_rank[strategy]
        del model, optimizer
        before = resident()
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model = rankwise.prepare(model, world, strategy=strategy)
        optimizer = prepare_optimizer(optimizer, model)
        x = torch.randn(8, width)
        for _ in range(3):
            optimizer.zero_grad()
            window = Window(model, world, num_micro=1)
            with window.micro_batch():
                window.backward((model(x) ** 2).mean(1).sum(), 8)
            window.finish()
            optimizer.step()
        inner = getattr(optimizer, "optim", optimizer)
        for module in model.modules():
            if hasattr(module, "reshard"):  # the outermost stays gathered until the next forward
                module.reshard()
        held = {
            "parameters": list(model.parameters()),
            "gradients": [p.grad for p in model.parameters() if p.grad is not None],
            "state": [v for values in inner.state.values() for v in values.values() if isinstance(v, torch.Tensor)],
        }
        counted = {name: sum(local_part(t).nbytes for t in tensors) / MIB for name, tensors in held.items()}
        return {**counted, "sum": sum(counted.values()), "estimate": estimate / MIB, "RSS": resident() - before}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    args = parser.parse_args()
    machine, load = platform.processor() or platform.machine(), os.getloadavg()[0]
    print(f"{machine}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    print(f"{args.layers} layers of {args.width} x {args.width}, {args.ranks} ranks; MiB of the rank that holds most")
    for strategy in ("ddp", "zero1", "fsdp"):
        found = rankwise.run(measure, strategy, args.layers, args.width, num_ranks=args.ranks)
        most = {name: max(rank[name] for rank in found) for name in found[0]}
        print(f"{strategy:8}" + "".join(f"{name} {value:8.1f}   " for name, value in most.items()))


if __name__ == "__main__":
    main()
