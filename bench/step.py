"""The cost of an exact step over a raw DistributedDataParallel step: all kinds in one process group, shuffled blocks.

    python bench/step.py [--ranks 1 2] [--rounds 25] [--steps 400]

The model is a small MLP (8,970 parameters, batch 32 per rank), so overhead dominates arithmetic. The raw step takes
the mean over the rank's own samples, which is exact only for equal shares; on one rank it steps the plain module, as
we, Accelerate and Fabric do. Those two are measured where they are installed. The Trainer writes metrics.jsonl every
ten steps. It does some work ten times a second, so blocks are long enough to contain it. Printed: median and 10th to
90th percentile of ms per step, and medians of the paired differences to the raw step, in wall time and in CPU time of
the training thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import rankwise

RAW = "raw step"


def make_model() -> Any:
    """Return the MLP, the same at every call, and its optimizer."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def losses(model: Any, batch: Any) -> Any:
    """Return the losses of the samples."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def sgd(model: Any) -> Any:
    """Return the optimizer."""
    import torch

    return torch.optim.SGD(model.parameters(), lr=1e-3)


def loop_of(model: Any, optimizer: Any, backward: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return the loop that everybody writes, as a function of one step."""

    def take(step: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        backward(losses(model, step[0]).mean())
        optimizer.step()

    return take


def peers(world: rankwise.World, folder: Path) -> dict[str, Callable[[Any], None]]:
    """Return the steps of the others that are installed; what they log lies in `folder`."""
    kinds = {}
    os.environ["OMP_NUM_THREADS"] = "1"  # Accelerate warns, and takes all cores, where it is not set
    if importlib.util.find_spec("accelerate"):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        plain = make_model()
        model, optimizer = accelerator.prepare(plain, sgd(plain))
        kinds["HF Accelerate"] = loop_of(model, optimizer, accelerator.backward)
    if importlib.util.find_spec("lightning"):
        from lightning.fabric import Fabric
        from lightning.fabric.loggers import CSVLogger
        from lightning.fabric.plugins.environments import TorchElasticEnvironment
        from lightning.fabric.strategies import DDPStrategy, SingleDeviceStrategy

        many = world.world_size > 1
        there = DDPStrategy(cluster_environment=TorchElasticEnvironment()) if many else SingleDeviceStrategy("cpu")
        logger = CSVLogger(folder / "fabric", flush_logs_every_n_steps=100)
        fabric = Fabric(accelerator="cpu", devices=world.world_size, strategy=there, loggers=logger)
        fabric.launch()
        for name, make in (("Fabric", loop_of), ("Fabric, tracking", partial(tracked_loop_of, fabric, world))):
            plain = make_model()
            model, optimizer = fabric.setup(plain, sgd(plain))
            kinds[f"Lightning {name}"] = make(model, optimizer, fabric.backward)
    return kinds


def tracked_loop_of(fabric: Any, world: Any, model: Any, optimizer: Any, backward: Any) -> Callable[[Any], None]:
    """Return `loop_of` with what a line of the Trainer holds, by Fabric's own means: the same numbers as often."""
    import torch

    kept: list[Any] = []
    num_steps, since_s = 0, time.perf_counter()

    def take(step: Any) -> None:
        nonlocal num_steps, since_s
        optimizer.zero_grad(set_to_none=True)
        loss = losses(model, step[0]).mean()
        backward(loss)
        optimizer.step()
        kept.append(loss.detach())
        num_steps += 1
        if num_steps % 10 == 0:
            mean = torch.stack(kept).mean()
            mean = fabric.all_reduce(mean, reduce_op="mean") if world.world_size > 1 else mean
            kept.clear()
            if not torch.isfinite(mean):
                raise FloatingPointError(f"the loss is {float(mean)} at step {num_steps}")
            now_s = time.perf_counter()
            pace = 10 * len(step[0].ids) * world.world_size / (now_s - since_s)
            since_s = now_s
            line = {"loss": mean.item(), "lr": optimizer.param_groups[0]["lr"], "samples_per_s": pace}
            fabric.log_dict(line, step=num_steps)

    return take


class Interleaved:
    """Training data of the Trainer that run the other kinds between its blocks, and time all of them."""

    def __init__(self, world: rankwise.World, batches: Any, kinds: dict[str, Any], rounds: int, steps: int) -> None:
        self.times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*kinds, "Trainer, tracking")}
        self._world, self._batches, self._kinds = world, batches, kinds
        self._rounds, self._steps = rounds, steps

    def __len__(self) -> int:
        """Return the steps of the epoch, a first block included that is not timed."""
        return (self._rounds + 1) * self._steps

    def set_epoch(self, epoch: int) -> None:
        """There is one."""

    def mark_done(self, state: Any) -> None:
        """Nothing resumes."""

    def state_dict(self) -> dict[str, Any]:
        """Return a position."""
        return {"version": 1, "seed": 0, "epoch": 0, "position": 0, "recipe": "bench"}

    def load_state_dict(self, state: Any) -> None:
        """Nothing resumes."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the steps of the Trainer."""
        shuffle = random.Random(0)  # the same order of blocks on all ranks
        for number in range(self._rounds + 1):
            for name in shuffle.sample(list(self.times), len(self.times)):
                self._world.barrier()
                begin = time.perf_counter(), time.thread_time()
                for index in range(self._steps):
                    step = self._batches[index % len(self._batches)]
                    if name in self._kinds:
                        self._kinds[name](step)
                    else:
                        yield step
                spent = time.perf_counter() - begin[0], time.thread_time() - begin[1]
                if number:
                    self.times[name].append((spent[0] / self._steps * 1e3, spent[1] / self._steps * 1e6))


def measure(rounds: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall ms and CPU microseconds per step of each kind, one pair a round, measured by rank 0."""
    import numpy as np
    import torch

    from rankwise.data.samples import ArraySource, SampleLoader
    from rankwise.train import ExactStep

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = stack.enter_context(rankwise.bind(device="cpu", threads=1))
        rng = np.random.default_rng(0)
        size = 32 * world.world_size
        source = ArraySource(
            {"x": rng.normal(size=(size * 5, 64)).astype(np.float32), "y": rng.integers(0, 10, size * 5)}
        )
        order = rankwise.Order(source, batch_size=size)
        made = [tuple(b.detach() for b in step) for step in SampleLoader(source, order=order)]
        kinds: dict[str, Callable[[Any], Any]] = {}
        raw = rankwise.prepare(make_model())
        kinds[RAW] = loop_of(raw, sgd(raw), lambda loss: loss.backward())
        forms = {"losses": losses, "(sum, weight)": lambda m, b: (losses(m, b).sum(), len(b.ids))}
        for form, step_fn in forms.items():
            model = rankwise.prepare(make_model())
            kinds[f"ExactStep, {form}"] = ExactStep(model, sgd(model), step_fn, world=world)
        kinds |= peers(world, folder)
        torch.set_num_threads(1)  # one of them sets its own number
        data = Interleaved(world, made[:4], kinds, rounds, steps)  # the last step of an epoch is not repeated
        model = make_model()
        run = world.broadcast_object(folder / "run")
        rankwise.Trainer(model, sgd(model), losses, run=run, progress=False).fit(data)
        world.barrier()
        return data.times


def report(times: dict[str, list[tuple[float, float]]], ranks: int) -> None:
    """Print one table."""
    raw = times[RAW]
    print(f"\n{ranks} rank{'s' if ranks > 1 else ''}, {len(raw)} rounds")
    print(f"{'':26}{'median ms':>10}{'p10':>8}{'p90':>8}{'paired ms':>12}{'paired CPU us':>15}")
    for name, values in times.items():
        wall = [ms for ms, _ in values]
        tenths = statistics.quantiles(wall, n=10)
        extra, cpu = (statistics.median(a[i] - b[i] for a, b in zip(values, raw, strict=True)) for i in (0, 1))
        print(
            f"{name:26}{statistics.median(wall):10.3f}{tenths[0]:8.3f}{tenths[-1]:8.3f}{extra:+12.3f}{cpu:+15.1f}",
        )


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    machine, load = platform.processor() or platform.machine(), os.getloadavg()[0]
    print(f"{machine}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}")
    for ranks in args.ranks:
        report(rankwise.run(measure, args.rounds, args.steps, num_ranks=ranks)[0], ranks)


if __name__ == "__main__":
    main()
