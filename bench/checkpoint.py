"""How long a save blocks training: synchronous, asynchronous, and torch's `async_save`, in shuffled blocks.

    python bench/checkpoint.py [--ranks 1 2] [--megabytes 120] [--rounds 12] [--folder DIR]

The state is a model and its AdamW optimizer: whole on one rank, sharded by `fully_shard` on several. Every kind flushes
its files to the disk. Blocked time is what the training thread spends in the calls of a save: for an asynchronous save
`save` and every `poll` until it is published; for torch's `async_save` the call itself. The first save of each kind
allocates its memory and is left out. Printed: medians, 10th and 90th percentiles, and the limit for the blocked time:
the larger of twice a copy of the state and 0.15 of a synchronous save.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rankwise
from rankwise.checkpoint import Checkpointer, ModelState, OptimizerState


def make_state(megabytes: int, *, sharded: bool) -> tuple[Any, Any]:
    """Return a model and an optimizer that has stepped; together about so large."""
    import torch
    from torch import nn

    width = 1024
    model: Any = nn.Sequential(*(nn.Linear(width, width) for _ in range(max(1, megabytes * 10**6 // (12 * width**2)))))
    if sharded:
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def tensors_of(model: Any, optimizer: Any) -> list[Any]:
    """Return the tensors of the state that lie on this rank."""
    state = [*model.state_dict().values(), *(v for values in optimizer.state.values() for v in values.values())]
    return [value.to_local() if hasattr(value, "to_local") else value for value in state]


def timed(act: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def saves(world: rankwise.World, folder: Path, model: Any, optimizer: Any) -> dict[str, Callable[[], dict[str, float]]]:
    """Return one save of each kind: seconds by what was measured."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    parts = {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model)}
    steps = iter(range(1, 10**6))
    plain = Checkpointer(folder / "plain", world=world, keep=1)
    aside = Checkpointer(folder / "aside", world=world, keep=1, asynchronous=True)
    tensors = tensors_of(model, optimizer)
    copies = [torch.empty_like(tensor) for tensor in tensors]
    work = torch.ones(256, 256)

    def copy() -> dict[str, float]:
        return {"copy of the state": timed(lambda: [c.copy_(t) for c, t in zip(copies, tensors, strict=True)])}

    def at_once() -> dict[str, float]:
        return {"save": timed(lambda: plain.save(next(steps), parts))}

    def by_a_thread() -> dict[str, float]:
        begin = time.perf_counter()
        call = blocked = timed(lambda: aside.save(next(steps), parts))
        published: list[Any] = [None]
        while published[0] is None:
            work @ work  # a step, in which the ranks meet, while the thread writes
            world.barrier()
            blocked += timed(lambda: published.append(aside.poll()) or published.pop(0))  # type: ignore[func-returns-value]
        return {"asynchronous: save": call, "asynchronous: blocked": blocked, "published": time.perf_counter() - begin}

    def state() -> dict[str, Any]:
        models, optimizers = get_state_dict(model, optimizer)
        return {"model": models, "optimizer": optimizers}

    def torchs() -> dict[str, float]:
        place = folder / "dcp" / str(next(steps))
        seconds = timed(lambda: dcp.save(state(), checkpoint_id=place))
        world.barrier()
        shutil.rmtree(place, ignore_errors=True)
        return {"torch DCP save": seconds}

    def torchs_aside() -> dict[str, float]:
        place, futures = folder / "dcp" / str(next(steps)), []
        seconds = timed(lambda: futures.append(dcp.async_save(state(), checkpoint_id=place)))
        futures[0].result()
        world.barrier()
        shutil.rmtree(place, ignore_errors=True)
        return {"torch DCP async_save: blocked": seconds}

    return {fn.__name__: fn for fn in (copy, at_once, by_a_thread, torchs, torchs_aside)}


def measure(megabytes: int, rounds: int, folder: str) -> tuple[float, dict[str, list[float]]]:
    """Return the megabytes on this rank, and the seconds of each kind by round."""
    import torch

    warnings.simplefilter("ignore")  # torch's, about its own calls
    torch.set_num_threads(1)
    with rankwise.bind() as world:
        model, optimizer = make_state(megabytes, sharded=world.world_size > 1)
        num_bytes = sum(t.numel() * t.element_size() for t in tensors_of(model, optimizer))
        kinds = saves(world, Path(folder), model, optimizer)
        found: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            names = random.Random(number).sample(sorted(kinds), len(kinds))
            for name in names:
                world.barrier()
                seconds = kinds[name]()
                for what, value in seconds.items() if number else ():
                    found.setdefault(what, []).append(value)
        return num_bytes / 1e6, found


def report(megabytes: float, found: dict[str, list[float]], ranks: int) -> None:
    """Print medians, and the limit."""
    print(f"\n{ranks} rank{'s' * (ranks > 1)}, {megabytes:.0f} MB on each, milliseconds: median [p10, p90]")
    median = {name: statistics.median(values) for name, values in found.items()}
    for name, values in sorted(found.items()):
        deciles = statistics.quantiles(values, n=10, method="inclusive")
        low, high = deciles[0], deciles[-1]
        print(f"  {name:32} {1e3 * median[name]:8.1f} [{1e3 * low:.1f}, {1e3 * high:.1f}]")
    limit = max(2 * median["copy of the state"], 0.15 * median["save"])
    share = median["asynchronous: blocked"] / median["save"]
    kept = "kept" if median["asynchronous: blocked"] <= limit else "NOT KEPT"
    print(f"  limit max(2 x copy, 0.15 x save)  {1e3 * limit:8.1f}  {kept}; blocked is {share:.2f} of a save at once")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--megabytes", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--folder", default=None, help="on the file system that is to be measured")
    args = parser.parse_args()
    machine, load = platform.processor() or platform.machine(), os.getloadavg()[0]
    print(f"{machine}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            report(*rankwise.run(measure, args.megabytes, args.rounds, folder, num_ranks=ranks)[0], ranks)


if __name__ == "__main__":
    main()
