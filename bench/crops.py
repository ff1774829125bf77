"""Crops out of sharded Zarr: `rankwise.data.store` against the other readers, on the same crops in one run.

    python bench/crops.py [--scale tiny|scaled|full] [--codecs ...] [--readers ...] [--rounds 9] [--json FILE] [--quick]

Data sets are made in `--folder` when they are not there yet, and kept. Each reader runs in a process of its own; the
rounds of all readers are interleaved in random order, over the same batches, after a check that all of them return
the same bytes. CPU time counts all threads and worker processes of a reader. Ratios are taken round by round; every
number is a median with its quartiles. Parts: "compare" the readers; "sharing" crops of one neighbourhood against
independent ones; "fresh" the first batch of a new process; "steady" what memory does over many batches; "wait" how
long a consumer waits that takes as long as a batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common.header import print_machine
from _common.machine import cores, describe, load
from _common.spreads import ratios
from _common.verdicts import Verdict, at_most
from _crops import datasets, targets
from _crops.comparison import compare
from _crops.consumer_wait import waits
from _crops.fresh import first_batches
from _crops.process import ReaderProcess
from _crops.readers import TITLES, missing
from _crops.steady import growth
from _crops.tables import print_comparison
from _crops.task import Task

PARTS = ("compare", "sharing", "fresh", "steady", "wait")
_MIB = 2**20


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rankwise-bench")
    parser.add_argument("--scale", choices=datasets.SCALES, default="scaled")
    parser.add_argument("--values", nargs="+", choices=("noise", "blobs"), default=["noise"])
    parser.add_argument("--codecs", nargs="+", choices=(*datasets.CODECS, "mixed"), default=list(datasets.CODECS))
    parser.add_argument(
        "--crops", nargs="+", type=_shape, default=None, help="such as 128,128,128; default: the scale's"
    )
    parser.add_argument("--where", nargs="+", choices=("anywhere", "aligned", "neighbourhood"), default=["anywhere"])
    parser.add_argument("--readers", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--dtype", default="float32", help="dtype of the batch")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--batch", type=int, default=None, help="crops per batch; default: equal voxels for all crops")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=3, help="batches per round")
    parser.add_argument("--quick", action="store_true", help="tiny data, two rounds of one batch: does it run?")
    parser.add_argument("--json", type=Path, help="write everything that was measured")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.scale, chosen.rounds, chosen.batches = "tiny", 2, 1
    chosen.crops = chosen.crops or datasets.SCALES[chosen.scale].crops
    return chosen


def main() -> None:
    chosen = options()
    print_machine()
    names = [name for name in TITLES if name in chosen.readers]
    for name in [name for name in names if missing(name)]:
        print(f"{TITLES[name]} is left out: {missing(name)} is not installed")
        names.remove(name)
    found: dict[str, Any] = {"machine": describe(), "scale": chosen.scale, "verdicts": []}
    if "compare" in chosen.parts:
        found["compare"] = compare_all(chosen, names, found["verdicts"])
    task = make_task(chosen, chosen.values[0], chosen.codecs[0], chosen.crops[0], "anywhere")
    for part, run in (("sharing", sharing), ("fresh", fresh), ("steady", steady), ("wait", wait)):
        if part in chosen.parts:
            found[part] = run(chosen, task, found["verdicts"])
    print("\nGoals:", *found["verdicts"], f"load at the end: {load():.1f}", sep="\n")
    if chosen.json:
        found["verdicts"] = [verdict.facts() for verdict in found["verdicts"]]
        chosen.json.write_text(json.dumps(found, indent=1))


def compare_all(chosen: argparse.Namespace, names: list[str], verdicts: list[Verdict]) -> list[object]:
    done = []
    for values, codec, crop, where in itertools.product(chosen.values, chosen.codecs, chosen.crops, chosen.where):
        task = make_task(chosen, values, codec, crop, where)
        ratio = datasets.raw_bytes(chosen.scale) / datasets.stored_bytes(list(task.arrays))
        title = f"{values} {codec} ({ratio:.2f}x), {task.size} crops of {'x'.join(map(str, crop))} {where}"
        comparison = compare(title, task, names, rounds=chosen.rounds, batches=chosen.batches)
        print_comparison(comparison)
        done.append(comparison.facts())
        if where == "anywhere":
            verdicts += targets.of_comparison(comparison, codec)
    return done


def make_task(chosen: argparse.Namespace, values: str, codec: str, crop: tuple[int, ...], where: str) -> Task:
    scale = datasets.SCALES[chosen.scale]
    if codec == "mixed":
        both = [datasets.arrays_of(chosen.folder, chosen.scale, values, kind) for kind in ("zstd-3", "blosc-zstd")]
        arrays = [both[index % 2][index] for index in range(scale.num_arrays)]
    else:
        arrays = datasets.arrays_of(chosen.folder, chosen.scale, values, codec)
    return Task(
        arrays=tuple(arrays),
        shape=scale.shape,
        chunk=scale.chunk,
        crop=crop,
        # as many voxels per batch as with the scale's first crop
        size=chosen.batch or max(1, round(scale.batch * math.prod(scale.crops[0]) / math.prod(crop))),
        dtype=chosen.dtype,
        where=where,
        threads=chosen.threads,
    )


def sharing(chosen: argparse.Namespace, task: Task, verdicts: list[Verdict]) -> dict[str, object]:
    """Our reader on crops of one neighbourhood, on crops from anywhere and on aligned ones, round by round."""
    spent: dict[str, list[float]] = {"anywhere": [], "neighbourhood": [], "aligned": []}
    with ExitStack() as stack:
        processes = {where: stack.enter_context(ReaderProcess("ours", replace(task, where=where))) for where in spent}
        for number in range(chosen.rounds + 1):
            for where, process in processes.items():
                cost = process.round(number * chosen.batches, chosen.batches)["cpu_s"]
                if number:  # the first round warms up
                    spent[where].append(cost)
    near = ratios(spent["anywhere"], spent["neighbourhood"])
    verdicts.append(targets.sharing(near))
    print(f"\nindependent crops cost {near} times the CPU of crops of one neighbourhood,")
    print(f"and {ratios(spent['anywhere'], spent['aligned'])} times that of crops on the grid of chunks")
    return {"cpu_s": spent, "batches_per_round": chosen.batches}


def fresh(chosen: argparse.Namespace, task: Task, verdicts: list[Verdict]) -> dict[str, object]:
    found = first_batches(task, repeats=1 if chosen.quick else 3)
    print("\nfirst batch of a fresh process, beyond imports (wall s / CPU s; the batch after it, wall s):")
    for kind, bound in (("cold", 1.5), ("warm", 0.3)):
        walls, cpus, after = (
            statistics.median(run[key] for run in found[kind]) for key in ("wall_s", "cpu_s", "next_wall_s")
        )
        print(f"  {kind} cache of compiled code: {walls:.2f} / {cpus:.2f}; {after:.3f}")
        verdicts.append(at_most(f"first batch, {kind} cache", walls, bound, lambda s: f"{s:.2g} s"))
    return found


def steady(chosen: argparse.Namespace, task: Task, verdicts: list[Verdict]) -> dict[str, float]:
    found = growth(task, batches=2 if chosen.quick else 20)
    resident, python = found["resident_bytes_per_batch"], found["python_bytes_per_batch"]
    print(f"\nover {found['batches']} batches memory grows by {resident / 1e3:.1f} kB per batch (resident), ", end="")
    print(f"{python:.0f} bytes per batch (Python); Python's peak is {found['python_peak_bytes'] / _MIB:.2f} MiB")
    verdicts.append(at_most("Python memory kept per batch", python, 512, lambda b: f"{b:.0f} bytes"))
    return found


def wait(chosen: argparse.Namespace, task: Task, verdicts: list[Verdict]) -> dict[str, float]:
    found = waits(task, batches=5 if chosen.quick else 30)
    share = found["wait_share"]
    print(f"\na consumer that takes as long as a batch ({found['batch_s'] * 1e3:.0f} ms) waits {share:.1%} of the time")
    verdicts.append(at_most("data wait of such a consumer", share, 0.05, lambda part: f"{part:.1%}"))
    return found


def _shape(word: str) -> tuple[int, ...]:
    return tuple(int(part) for part in word.split(","))


if __name__ == "__main__":
    main()
