"""Bytes per second into a GPU: our loader against PCI Express itself and against torch's DataLoader with pinned memory.

    python bench/gpu.py [--samples 4096] [--side 128] [--batch 256] [--rounds 7] [--workers 0 4 8] [--step-ms 20]
                        [--device cuda] [--json FILE] [--quick]

Needs PyTorch, NumPy and numba; the images lie in memory (uint16, [samples, 3, side, side]), so that neither disk nor
codec is measured. Compared are, in interleaved rounds of one shuffled epoch each:

- the limit: one page-locked buffer of a batch's size copied to the device again and again;
- `SampleLoader` over an `ArraySource`: rows gathered into page-locked memory, copied on a stream of its own, cast on
  the device;
- the same with float32 made on the CPU (`transform=`), which sends twice the bytes;
- torch's `DataLoader(pin_memory=True)` with 0 and more workers, sample by sample as most programs have it, and with
  `__getitems__`, which gathers a batch at once; `.to(device, non_blocking=True)` and the cast on the device.

Each is read twice: by a loop that does nothing else, and with a step of `--step-ms` on the device, where the time
that the device waits is what counts. Printed are GB/s of uint16 pixels that arrived (medians and quartiles), the share
of the limit, and how many times longer than the steps alone an epoch takes. Copies are waited for by
`torch.cuda.synchronize`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common.header import print_machine
from _common.spreads import Spread, spread
from torch.utils.data import DataLoader, Dataset

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader

SCALE = 1 / 65_535


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all readers share."""

    images: np.ndarray
    batch: int
    device: torch.device

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch as stored."""
        return self.batch * self.images[0].nbytes

    @property
    def num_batches(self) -> int:
        """Whole batches of an epoch."""
        return len(self.images) // self.batch


class Images(Dataset):
    """One image at a time."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.images[index])


class Batches(Images):
    """All images of a batch at once, as torch's fetcher asks for them where it can."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.images[indices])


def limit(setting: Setting) -> Iterator[torch.Tensor]:
    """Copies of one page-locked batch: what the bus gives."""
    host = torch.empty(setting.batch_bytes, dtype=torch.uint8, pin_memory=setting.device.type == "cuda")
    for _ in range(setting.num_batches):
        yield host.to(setting.device, non_blocking=True)


def on_device(fields: dict[str, Any], _keys: Any) -> dict[str, Any]:
    """The cast, on the device."""
    return {"x": fields["x"].to(torch.float32) * SCALE}


def on_host(sample: dict[str, Any], _key: Any) -> dict[str, Any]:
    """The cast, on the CPU."""
    return {"x": sample["x"].astype(np.float32) * np.float32(SCALE)}


class Ours:
    """`SampleLoader`, one object over all rounds as in a job."""

    def __init__(self, setting: Setting, **options: Any) -> None:
        source = ArraySource({"x": setting.images})
        order = Order(source, batch_size=setting.batch)
        self._loader, self._epoch = SampleLoader(source, order=order, device=setting.device, **options), 0

    def __call__(self, _setting: Setting) -> Iterator[torch.Tensor]:
        """Yield the batches of the next epoch."""
        self._loader.set_epoch(self._epoch)
        self._epoch += 1
        for (batch,) in self._loader:
            yield batch["x"]
            self._loader.mark_done(batch.resume)


class Torch:
    """torch's `DataLoader`; workers stay up."""

    def __init__(self, setting: Setting, num_workers: int, data: type[Images]) -> None:
        self._loader = DataLoader(
            data(setting.images),
            batch_size=setting.batch,
            shuffle=True,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=setting.device.type == "cuda",
            collate_fn=None if data is Images else lambda batch: batch,
            multiprocessing_context="fork" if num_workers else None,
        )

    def __call__(self, setting: Setting) -> Iterator[torch.Tensor]:
        """Yield the batches of an epoch."""
        for batch in self._loader:
            yield batch.to(setting.device, non_blocking=True).to(torch.float32) * SCALE


def synchronize(device: torch.device) -> None:
    """Wait for everything that was asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_step(device: torch.device, milliseconds: float) -> Callable[[], None]:
    """Return a step of about so long on the device, which the host does not wait for."""
    a = torch.randn(2048 if device.type == "cuda" else 256, device=device).outer(
        torch.randn(2048 if device.type == "cuda" else 256, device=device)
    )
    for _ in range(3):
        a @ a
    synchronize(device)
    began, count = time.perf_counter(), 20
    for _ in range(count):
        a @ a
    synchronize(device)
    times = max(1, round(milliseconds / 1e3 / ((time.perf_counter() - began) / count)))

    def step() -> None:
        for _ in range(times):
            a @ a

    return step


def epoch_s(setting: Setting, reader: Callable[[Setting], Iterator[torch.Tensor]], step: Callable[[], None]) -> float:
    """Seconds of an epoch, until the device has done all of it."""
    synchronize(setting.device)
    began, total = time.perf_counter(), torch.zeros((), device=setting.device)
    for x in reader(setting):
        total += x.view(-1)[0].to(torch.float32)  # the batch is used
        step()
    synchronize(setting.device)
    return time.perf_counter() - began


def steps_s(setting: Setting, step: Callable[[], None]) -> float:
    """Seconds of an epoch's steps alone."""
    synchronize(setting.device)
    began = time.perf_counter()
    for _ in range(setting.num_batches):
        step()
    synchronize(setting.device)
    return time.perf_counter() - began


def check(setting: Setting, readers: dict[str, Any]) -> None:
    """Every reader gives every image of an epoch once, with the same values."""
    whole = float(setting.images.sum(dtype=np.float64)) * SCALE
    for name, reader in readers.items():
        if name == "limit":
            continue
        found = sum(float(x.double().sum()) for x in reader(setting))
        if abs(found - whole) > 1e-4 * abs(whole):
            raise SystemExit(f"{name} gave other values: their sum is {found}, not {whole}")


def measure(setting: Setting, readers: dict[str, Any], step: Callable[[], None], rounds: int) -> dict[str, Any]:
    """Seconds of every reader and round, alone and with the step."""
    times: dict[str, dict[str, list[float]]] = {name: {"alone": [], "with_step": []} for name in readers}
    steps: list[float] = []
    for _ in range(rounds):
        steps.append(steps_s(setting, step))
        for name in random.sample(list(readers), len(readers)):
            times[name]["alone"].append(epoch_s(setting, readers[name], lambda: None))
            times[name]["with_step"].append(epoch_s(setting, readers[name], step))
    return {"times": times, "steps": steps}


def report(setting: Setting, found: dict[str, Any]) -> dict[str, dict[str, Spread]]:
    """Print a line a reader; return the numbers."""
    num_bytes = setting.num_batches * setting.batch_bytes
    limits, steps, rows = found["times"]["limit"]["alone"], found["steps"], {}
    print(f"\n{'':34}{'GB/s of stored bytes':>28}{'share of the limit':>26}{'epoch / steps alone':>28}")
    for name, times in found["times"].items():
        rows[name] = {
            "gb_s": spread([num_bytes / s / 1e9 for s in times["alone"]]),
            "share": spread([best / s for best, s in zip(limits, times["alone"], strict=True)]),
            "with_step": spread([s / alone for s, alone in zip(times["with_step"], steps, strict=True)]),
        }
        print(f"{name:34}{rows[name]['gb_s']!s:>28}{rows[name]['share']!s:>26}{rows[name]['with_step']!s:>28}")
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--side", type=int, default=128, help="pixels of an image's edge")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 4, 8])
    parser.add_argument("--step-ms", type=float, default=20.0, help="length of the step")
    parser.add_argument("--device", default="cuda", help="cpu rehearses the program; its numbers say nothing of a GPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="few small images, two rounds: does it run?")
    options = parser.parse_args()
    if options.quick:
        options.samples, options.side, options.batch, options.rounds, options.workers = 256, 16, 32, 2, [0, 1]
    options.samples -= options.samples % options.batch  # whole batches: all readers give the same
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} sees no CUDA device; --device cpu rehearses the program")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 65_535, (options.samples, 3, options.side, options.side), dtype=np.uint16)
    setting = Setting(images=images, batch=options.batch, device=device)
    # workers are forked before the device is touched: a CUDA context does not survive a fork
    torchs: dict[str, Any] = {}
    for count in options.workers:
        torchs[f"DataLoader, {count} workers"] = Torch(setting, count, Images)
        torchs[f"DataLoader, {count} workers, batched"] = Torch(setting, count, Batches)
    for reader in torchs.values():
        iter(reader._loader)  # noqa: SLF001
    readers = {
        "limit": limit,
        "SampleLoader, cast on the device": Ours(setting, batch_transform=on_device),
        "SampleLoader, cast on the CPU": Ours(setting, transform=on_host),
        **torchs,
    }
    print_machine()
    print(torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU: a rehearsal on the CPU")
    print(f"{options.samples} images of 3 x {options.side}^2 uint16, batches of {setting.batch_bytes / 1e6:.1f} MB")
    check(setting, readers)
    found = measure(setting, readers, make_step(device, options.step_ms), options.rounds)
    rows = report(setting, found)
    if options.json:
        numbers = {name: {k: vars_of(v) for k, v in row.items()} for name, row in rows.items()}
        options.json.write_text(json.dumps({"device": str(device), "rows": numbers}, indent=1))


def vars_of(found: Spread) -> dict[str, float]:
    """A spread as JSON."""
    return {"low": found.low, "median": found.median, "high": found.high}


if __name__ == "__main__":
    main()
