"""Samples out of Zarr: `ArraySource` and `SampleLoader` against one row at a time, over the same shuffled epoch.

    python bench/samples.py [--rounds 7] [--samples 192] [--threads N] [--readers ours rows] [--json FILE] [--quick]

Images [N, 64, 64] of uint8 in chunks of 16 and of 64 rows, zstd and Blosc-LZ4, and labels [N] in chunks of 256.
Compared are our loader; `array[i]` of zarr-python in a torch `DataLoader` with two workers; and `array[i]` in a plain
loop. All give torch tensors in batches of equal size. Ours reads a whole epoch in each round, from an empty cache, so
that every chunk is decoded; the others, which cost the same for each sample, the first `--samples` of it. Rounds of all
readers are interleaved in random order; ratios are taken round by round; numbers are medians with their quartiles. CPU
time counts all threads and worker processes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from _common.header import print_machine
from _common.machine import cores, cpu_s, describe, load
from _common.spreads import ratios, spread
from torch.utils.data import DataLoader, Dataset
from zarr.codecs import BloscCodec, ZstdCodec

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader

NUM_WORKERS = 2
TITLES = {
    "ours": "ArraySource + SampleLoader",
    "workers": f"DataLoader, {NUM_WORKERS} workers, array[i]",
    "rows": "array[i] in a loop",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One array and how it is read."""

    name: str
    path: str
    num_samples: int
    batch: int

    def order(self) -> Order:
        """The order of all readers."""
        return Order(ArraySource({"x": self.path}), batch_size=self.batch)

    def ids(self, epoch: int, count: int) -> list[int]:
        """The first samples of an epoch."""
        order = self.order()
        state, ids = order.start(epoch), []
        while len(ids) < count:
            step = order.step(state)
            ids, state = ids + step.ids.tolist(), step.resume
        return ids[:count]


class Rows(Dataset):
    """Map-style samples of an array that is opened where it is read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._array: Any = None

    def __len__(self) -> int:
        return zarr.open_array(self.path, mode="r").shape[0]

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._array is None:
            self._array = zarr.open_array(self.path, mode="r")
        return torch.from_numpy(np.asarray(self._array[index]))


class Ours:
    """Our loader; every round begins with an empty cache."""

    def __init__(self, case: Case, threads: int) -> None:
        self._case, self._threads = case, threads
        self.children: tuple[int, ...] = ()

    def batches(self, epoch: int, count: int | None) -> Iterator[torch.Tensor]:
        """Yield the batches of an epoch, the first `count` samples of it."""
        with ArraySource({"x": self._case.path}, threads=self._threads) as source:
            order = Order(source, batch_size=self._case.batch)
            loader = SampleLoader(source, order=order, device="cpu", across_epochs=False)  # one epoch is timed
            loader.set_epoch(epoch)
            taken = 0
            for (batch,) in loader:
                yield batch["x"]
                taken += batch.count
                if count is not None and taken >= count:
                    return

    def close(self) -> None:
        """Nothing is held."""


class Workers:
    """torch's DataLoader with workers, which stay up."""

    def __init__(self, case: Case, _threads: int) -> None:
        self._case, self._ids = case, Ids()
        # spawned: a fork would copy the locks of the threads that run here
        self._loader = DataLoader(
            Rows(case.path), batch_size=case.batch, sampler=self._ids, num_workers=NUM_WORKERS,
            persistent_workers=True, multiprocessing_context="spawn",
        )  # fmt: skip
        self.children: tuple[int, ...] = ()

    def batches(self, epoch: int, count: int | None) -> Iterator[torch.Tensor]:
        """Yield the first batches of an epoch."""
        self._ids.ids = self._case.ids(epoch, count or self._case.num_samples)
        iterator = iter(self._loader)
        self.children = tuple(worker.pid for worker in iterator._workers)  # noqa: SLF001
        yield from iterator

    def close(self) -> None:
        """Stop the workers."""
        if self._loader._iterator is not None:  # noqa: SLF001
            self._loader._iterator._shutdown_workers()  # noqa: SLF001


class Ids:
    """A sampler whose ids are set before each round."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class Loop:
    """Row after row in this process."""

    def __init__(self, case: Case, _threads: int) -> None:
        self._case, self._rows = case, Rows(case.path)
        self.children: tuple[int, ...] = ()

    def batches(self, epoch: int, count: int | None) -> Iterator[torch.Tensor]:
        """Yield the first batches of an epoch."""
        ids = self._case.ids(epoch, count or self._case.num_samples)
        for first in range(0, len(ids), self._case.batch):
            yield torch.stack([self._rows[index] for index in ids[first : first + self._case.batch]])

    def close(self) -> None:
        """Nothing is held."""


READERS = {"ours": Ours, "workers": Workers, "rows": Loop}


def make_cases(folder: Path, *, quick: bool) -> list[Case]:
    """Write what is not there yet."""
    rng = np.random.default_rng(0)
    num_images, num_labels = (512, 4096) if quick else (8192, 65536)
    cases = []
    for rows in (16, 64):
        for name, codec in (("zstd", ZstdCodec(level=1)), ("blosc-lz4", BloscCodec(cname="lz4", shuffle="shuffle"))):
            path = folder / f"images-{num_images}-{rows}-{name}.zarr"
            if not (path / "done").exists():
                images = rng.integers(0, 40, (num_images, 64, 64)).astype(np.uint8)
                write(path, images, chunks=(rows, 64, 64), shards=(512, 64, 64), compressors=[codec])
            title = f"images 64x64, chunks of {rows} rows, {name}"
            cases.append(Case(name=title, path=str(path), num_samples=num_images, batch=64))
    path = folder / f"labels-{num_labels}.zarr"
    if not (path / "done").exists():
        labels = rng.integers(0, 1000, num_labels)
        write(path, labels, chunks=(256,), shards=(4096,), compressors=[ZstdCodec(level=1)])
    cases.append(
        Case(name="labels, chunks of 256, zstd", path=str(path), num_samples=num_labels, batch=256 if quick else 4096)
    )
    return cases


def write(path: Path, data: np.ndarray, **options: Any) -> None:
    """Write an array, marked as whole at the end."""
    zarr.create_array(str(path), data=data, overwrite=True, **options)
    (path / "done").touch()


def check(case: Case, readers: dict[str, Any]) -> None:
    """Make sure that all readers return the same samples, which also warms them up."""
    array = zarr.open_array(case.path, mode="r")
    for name, reader in readers.items():
        ids = case.ids(0, case.batch)
        for batch in reader.batches(0, case.batch):  # one; its memory is the loader's
            # as sets: ours puts the samples of a batch in another order
            if sorted(row.tobytes() for row in batch.numpy()) != sorted(row.tobytes() for row in array[:][ids]):
                raise SystemExit(f"{TITLES[name]} returns other samples of {case.path}")


def measure(case: Case, chosen: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return CPU and wall microseconds per sample for each reader, one value a round."""
    readers = {name: make(case, chosen.threads) for name, make in READERS.items() if name in chosen.readers}
    found: dict[str, dict[str, list[float]]] = {name: {"cpu_us": [], "wall_us": []} for name in readers}
    try:
        check(case, readers)
        shuffle = random.Random(0)
        for epoch in range(1, chosen.rounds + 1):
            for name in shuffle.sample(list(readers), len(readers)):
                reader = readers[name]
                count = None if name == "ours" else min(chosen.samples, case.num_samples)
                cpu, wall = cpu_s(reader.children), time.perf_counter()
                taken = sum(len(batch) for batch in reader.batches(epoch, count))
                found[name]["cpu_us"].append((cpu_s(reader.children) - cpu) / taken * 1e6)
                found[name]["wall_us"].append((time.perf_counter() - wall) / taken * 1e6)
    finally:
        for reader in readers.values():
            reader.close()
    return found


def report(case: Case, found: dict[str, dict[str, list[float]]]) -> None:
    """Print one table."""
    print(f"\n{case.name}; batches of {case.batch}; {len(found['ours']['cpu_us'])} rounds; load {load():.1f}")
    print("| reader | CPU us per sample | wall us per sample | CPU / ours | wall / ours |")
    print("|---|---|---|---|---|")
    for name, times in found.items():
        over = [str(ratios(times[key], found["ours"][key])) if name != "ours" else "-" for key in times]
        print(f"| {TITLES[name]} | {spread(times['cpu_us'])} | {spread(times['wall_us'])} | {over[0]} | {over[1]} |")
    print(end="", flush=True)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rankwise-bench")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=192, help="samples per round of the slower readers")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--quick", action="store_true", help="tiny data, two rounds: does it run?")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    chosen = parser.parse_args()
    if "ours" not in chosen.readers:
        parser.error("--readers wants ours among them: the others are compared with it")
    if chosen.quick:
        chosen.rounds, chosen.samples = 2, 32
    chosen.folder.mkdir(parents=True, exist_ok=True)
    print_machine()
    found: dict[str, Any] = {"machine": describe(), "threads": chosen.threads, "cases": {}}
    for case in make_cases(chosen.folder, quick=chosen.quick):
        found["cases"][case.name] = times = measure(case, chosen)
        report(case, times)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
