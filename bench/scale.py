"""The cost of each part of a job at 8, 1,024 and 16,384 ranks, as far as one machine can measure it.

    python bench/scale.py [--ranks 2 4 8 16 32 64] [--sizes 8 1024 16384] [--quick]

There are three kinds of numbers, marked in each line:

- *real code at that size*: the work of rank 0 for N ranks: the rendezvous against a store in memory that plays the
  other ranks, the agreement of a step on N messages, a manifest of N files. CPU time of one core.
- *measured*: 2 to 64 real processes without torch that meet over TCP; 2 to 32 gloo contexts, a thread each, over TCP.
- *model*: a line fitted to the measured CPU time and message counts, evaluated at that size. Processes that share few
  cores say nothing about the wall time of a cluster, so only CPU time, messages and bytes are fitted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from rankwise._process.place import Place
from rankwise.checkpoint.format.manifest import CheckpointInfo, FileRecord, PartRecord, encode_manifest, read_manifest
from rankwise.world.collectives.handshake import FRAME_BYTES, Call, decode_frame, encode_frame
from rankwise.world.rendezvous.protocol import RankInfo, SignedStore, rendezvous
from rankwise.world.rendezvous.small_store import open_small_store

RANKS_PER_NODE = 8
LOOK_S = {"file system": 0.0005, "object store": 0.01}  # one question of rank 0, taken to be
READ_BYTES_S = 1e9  # of one reader
STATE_BYTES = 100e9  # parameters and optimizer of a model of 7e9 parameters, in pieces over all ranks


class PlayedStore:
    """A store in which all ranks but rank 0 have done their part already; it counts what rank 0 asks and writes."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks, self.asked, self.bytes = num_ranks, 0, 0
        self.signed = SignedStore(self, "secret")
        self.prefix = ""
        self.longest_verdict = 0

    def add(self, key: str, amount: int) -> int:
        """Every rank has sent its hello and its info, and has acknowledged."""
        del key
        self.asked += 1
        return self.num_ranks - 1 if amount == 0 else amount

    def check(self, keys: list[str]) -> bool:
        """Everything is there."""
        self.asked += 1
        return bool(keys)

    def wait(self, keys: list[str], patience: timedelta) -> None:
        """Everything is there."""
        del keys, patience
        self.asked += 1

    def get(self, key: str) -> bytes:
        """Return a hello or an info, signed as its rank does."""
        self.asked += 1
        number = int(key.rpartition("/")[2])
        text = f"{number:016x}" if "/hello/" in key else json.dumps(asdict(rank_info(number, self.num_ranks)))
        found = f"{self.signed.sign(key, text)} {text}".encode()
        self.bytes += len(found)
        return found

    def set(self, key: str, value: str) -> None:
        """Take an answer, a layout or the verdict."""
        self.asked += 1
        self.bytes += len(value)
        if key.endswith("/verdict") or "/layout/" in key:
            self.longest_verdict = max(self.longest_verdict, len(value))


def rank_info(rank: int, num_ranks: int) -> RankInfo:
    node = rank // RANKS_PER_NODE
    same = {"seed": "1889", "torch": "2.13.0", "rankwise": "0.1.0"}
    place = f"host node{node:05}, process {10_000 + rank}"
    return RankInfo(rank=rank, world_size=num_ranks, host=f"node{node:05}/id", mask="0,1,2,3", place=place, same=same)


def cpu_of(act: Callable[[], object]) -> float:
    before = time.process_time()
    act()
    return time.process_time() - before


def meeting(num_ranks: int) -> dict[str, float]:
    """Rank 0's part of the meeting, the real code. What the played ranks' seals cost is taken off."""
    store = PlayedStore(num_ranks)
    playing = cpu_of(lambda: [PlayedStore.get(PlayedStore(num_ranks), f"/info/{rank}") for rank in range(1, num_ranks)])
    spent = cpu_of(lambda: rendezvous(store, rank_info(0, num_ranks), timeout=timedelta(seconds=600), secret="secret"))
    return {
        "rank 0 CPU s": max(0.0, spent - playing),
        "rank 0 asks": store.asked,
        "store serves": store.asked + 10 * (num_ranks - 1),
        "kB through rank 0": store.bytes / 1e3,
        "B a rank reads": store.longest_verdict * 2,
    }


JOINING = """
import json, os, sys, time
from datetime import timedelta
sys.path.insert(0, sys.argv[3])
from scale import rank_info, join_small
rank, size = int(sys.argv[1]), int(sys.argv[2])
print(json.dumps(join_small(rank, size, int(sys.argv[4]))))
"""


def join_small(rank: int, size: int, port: int) -> list[float]:
    """One real process of the meeting; return its CPU and wall seconds for it."""
    place = Place(rank=rank, world_size=size, master_addr="127.0.0.1", master_port=port)
    cpu, wall = time.process_time(), time.perf_counter()
    store = open_small_store(place, timedelta(seconds=300))
    rendezvous(store, rank_info(rank, size), timeout=timedelta(seconds=300), secret="secret")
    spent = [time.process_time() - cpu, time.perf_counter() - wall]
    if rank == 0:
        while store.add("left", 0) < size - 1:
            time.sleep(0.01)
    else:
        store.add("left", 1)
    store.close()
    return spent


def real_meeting(size: int) -> dict[str, float]:
    """Processes without torch over TCP: CPU of rank 0 with its server, and the others' mean."""
    import socket

    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    folder = str(Path(__file__).parent)
    joined = [
        subprocess.Popen(
            [sys.executable, "-c", JOINING, str(rank), str(size), folder, str(port)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    spent = [json.loads(process.communicate(timeout=600)[0]) for process in joined]
    return {"rank 0 CPU s": spent[0][0], "other CPU s": sum(cpu for cpu, _ in spent[1:]) / (size - 1)}


def gloo(size: int, calls: int = 20) -> dict[str, float]:
    """Contexts of gloo, a thread each: CPU of one of them to connect, and per gather of frames."""
    import torch
    import torch.distributed as dist

    store, device = dist.HashStore(), dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    line, groups = threading.Barrier(size), [None] * size
    frame = torch.zeros(FRAME_BYTES, dtype=torch.uint8)

    def connect(rank: int) -> None:
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001
        options._devices, options._timeout = [device], timedelta(seconds=120)  # noqa: SLF001
        groups[rank] = dist.ProcessGroupGloo(store, rank, size, options)

    def gather(rank: int) -> None:
        outputs = [torch.empty_like(frame) for _ in range(size)]
        line.wait(120)
        for _ in range(calls):
            groups[rank].allgather([outputs], [frame]).wait()

    with ThreadPoolExecutor(size) as pool:
        connecting = cpu_of(lambda: list(pool.map(connect, range(size))))
        list(pool.map(gather, range(size)))
        gathering = cpu_of(lambda: list(pool.map(gather, range(size))))
    return {"connect": connecting / size, "gather": gathering / calls / size}


def store_question(count: int = 2000) -> float:
    """CPU seconds of torch's store and its client, together, for one question."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return cpu_of(lambda: [store.add("count", 1) for _ in range(count)]) / count


def agreement(num_ranks: int) -> dict[str, float]:
    """What a rank does with the frames of all ranks, the real code."""
    raw = encode_frame(Call("all_reduce", "train.py:41", "sum"), 7, payload=b"8 bytes.", payload_bytes=8)
    whole = memoryview(raw * num_ranks)
    repeats = max(1, 4096 // num_ranks)

    def read() -> None:
        for _ in range(repeats):
            starts = range(0, len(whole), FRAME_BYTES)
            frames = [decode_frame(whole[start : start + FRAME_BYTES]) for start in starts]
            identity = frames[0].identity
            assert all(frame.identity == identity for frame in frames)

    return {"CPU ms of each rank": cpu_of(read) / repeats * 1e3, "kB to each rank": num_ranks * FRAME_BYTES / 1e3}


def checkpoint(num_ranks: int) -> dict[str, float]:
    """The manifest of a state in pieces, two parts a rank, the real code; and what rank 0 asks of the storage."""
    digest = hashlib.sha256(b"").hexdigest()

    def part(name: str) -> PartRecord:
        paths = (f"rank-{rank}/{name}.pt" for rank in range(num_ranks))
        files = tuple(FileRecord(path=path, bytes=1 << 30, sha256=digest) for path in paths)
        return PartRecord(scope="sharded", files=files, in_pieces=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "step-0000000100"
        folder.mkdir()
        info = CheckpointInfo(
            path=folder,
            step=100,
            attempt=0,
            world_size=num_ranks,
            time=0.0,
            versions={"rankwise": "0.1.0"},
            parts={"model": part("model"), "optimizer": part("optimizer")},
            meta={},
        )
        writing = cpu_of(lambda: (folder / "manifest.json").write_bytes(encode_manifest(info)))
        reading = cpu_of(lambda: read_manifest(folder))
        size = (folder / "manifest.json").stat().st_size
    return {"kB": size / 1e3, "write CPU s": writing, "read CPU s": reading, "looks": 2 * num_ranks}


def fit(points: dict[int, float]) -> tuple[float, float]:
    """Least squares of ``a + b n``, neither below 0."""
    xs, ys = list(points), list(points.values())
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    slope = max(0.0, above / sum((x - mean_x) ** 2 for x in xs))
    return max(0.0, mean_y - slope * mean_x), slope


def row(name: str, kind: str, values: list[float]) -> None:
    print(
        f"{name:46}{kind:12}" + "".join(f"{value:>14,.3g}" if value < 1000 else f"{value:>14,.0f}" for value in values)
    )


def report(sizes: list[int], ranks: list[int]) -> None:
    print(f"{'ranks':58}" + "".join(f"{size:>14,}" for size in sizes))
    met = [meeting(size) for size in sizes]
    for name in met[0]:
        row(f"meeting: {name}", "real code", [found[name] for found in met])
    real = {size: real_meeting(size) for size in ranks}
    print(f"  measured, processes {ranks}: rank 0 CPU s " + show([found["rank 0 CPU s"] for found in real.values()]))
    print("  the others' CPU s " + show([found["other CPU s"] for found in real.values()]))
    start, each = fit({size: found["rank 0 CPU s"] for size, found in real.items()})
    row("meeting: rank 0 and its server, CPU s", "model", [start + each * size for size in sizes])

    question = store_question()
    print(f"  measured, torch's store: CPU us a question {question * 1e6:.3g}")
    row("meeting: torch's store and its clients, CPU s", "model", [found["store serves"] * question for found in met])

    few = [size for size in ranks if size <= 32]
    joined = {size: gloo(size) for size in few}
    for name in ("connect", "gather"):
        print(f"  measured, gloo, ranks {few}: {name}, CPU ms a rank " + show([joined[n][name] * 1e3 for n in few]))
        start, each = fit({size: cost[name] for size, cost in joined.items()})
        row(f"gloo: {name}, CPU s a rank", "model", [start + each * size for size in sizes])
    row("gloo: connections a rank", "count", [size - 1 for size in sizes])

    told = [agreement(size) for size in sizes]
    for name in told[0]:
        row(f"agreement: {name}", "real code", [found[name] for found in told])
    saved = [checkpoint(size) for size in sizes]
    for name in saved[0]:
        row(f"checkpoint: manifest, {name}", "real code", [found[name] for found in saved])
    for name, look in LOOK_S.items():
        row(f"checkpoint: rank 0 looks, {name}, s", "simulated", [found["looks"] * look for found in saved])
    row("restart: rank 0 verifies 100 GB, s", "simulated", [STATE_BYTES / READ_BYTES_S for _ in sizes])


def show(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 1024, 16384])
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, to see that it runs")
    options = parser.parse_args()
    report(options.sizes, [2, 4] if options.quick else sorted(set(options.ranks)))


if __name__ == "__main__":
    main()
