"""Read a trace of torch.profiler, of CPU or CUDA, without torch: event by event, keeping only what is needed.

The format is Chrome's trace events as Kineto writes them: times in microseconds, `user_annotation` and `cpu_op` on the
threads of the host, `kernel` and `gpu_memcpy` on streams, tied to their launch in `cuda_runtime` by `correlation`.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankwise.diagnose.profile.intervals import Spans
from rankwise.errors import DataError

_DATA = ("enumerate(DataLoader)#", "rankwise:data")
_OPTIMIZER = ("Optimizer.step#", "rankwise:optimizer")
_BACKEND_OP = re.compile(r"(gloo|mpi|ucc):(\w+)")
# errors of a file that is truncated, damaged, or of another format; an infinite time overflows
_DAMAGED = (
    ValueError, OSError, EOFError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, zlib.error,
)  # fmt: skip
_MOST_RANKS = 1 << 20
_FOR_EVER = 1 << 63  # nanoseconds
_RANK = re.compile(r"rank[-_]?(\d+)")
_DTYPE_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1}


@dataclass(slots=True)
class Kernel:
    """A kernel or copy on a GPU; `launched` is the time of the host's launch, or its own start if unknown."""

    start: int
    end: int
    launched: int


@dataclass(slots=True)
class Collective:
    """A collective as recorded on one rank.

    Attributes:
        name: operation, such as "all_reduce".
        group: name of the process group, "" if unknown.
        start: when this rank joined, nanoseconds.
        end: when it ended.
        launched: when the host launched it.
        nbytes: size of the input, None if unknown.
        wait: how long this rank waited in it for others, nanoseconds; set when the ranks are compared.
    """

    name: str
    group: str
    start: int
    end: int
    launched: int
    nbytes: int | None = None
    wait: int = 0


@dataclass(slots=True)
class Trace:
    """The content of one rank's trace. Spans are unsorted and may overlap.

    Attributes:
        path: the file.
        rank: this rank.
        world_size: number of ranks, 0 if unknown.
        host: host name.
        base_ns: origin of all times, nanoseconds since 1970; 0 if they are absolute.
        steps: number, start and end of each step.
        main: the thread that runs the steps.
        annotations: spans on the host by kind: data, optimizer, forward, backward.
        ops: (thread, start, end) of operators on the host, without communication.
        asked: by thread, the times at which it asked for collectives.
        autograd: (thread, start, end) of nodes of the backward pass.
        recorded: starts of operators on the main thread that autograd may record: work of a forward pass.
        copies: spans on the host of `to` and `copy_`.
        kernels: compute kernels on a GPU.
        uploads: copies from host to GPU.
        collectives: the collectives in order of start.
    """

    path: Path
    rank: int
    world_size: int = 0
    host: str = ""
    base_ns: int = 0
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    main: Any = None
    annotations: dict[str, Spans] = field(
        default_factory=lambda: {"data": [], "optimizer": [], "forward": [], "backward": []}
    )
    ops: list[tuple[Any, int, int]] = field(default_factory=list)
    asked: dict[Any, list[int]] = field(default_factory=dict)
    autograd: list[tuple[Any, int, int]] = field(default_factory=list)
    recorded: list[tuple[Any, int]] = field(default_factory=list)
    copies: list[tuple[Any, int, int]] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    uploads: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether it has kernels."""
        return bool(self.kernels)


def find_traces(folder: Path) -> list[Path]:
    """Return the traces of a folder, or of the `traces/` of a run directory.

    Raises:
        DataError: there is none.
    """
    places = [folder / "traces", folder]
    for place in places:
        found = sorted({*place.glob("*.trace.json"), *place.glob("*.trace.json.gz")})
        if found:
            return found
    raise DataError(
        f"{folder} and its traces/ hold no *.trace.json or *.trace.json.gz: give the folder that "
        "torch.profiler.tensorboard_trace_handler or `rankwise profile SCRIPT` has written"
    )


def read_trace(path: Path, rank: int = 0) -> Trace:
    """Read the trace of one rank.

    Args:
        path: the file.
        rank: its rank, if neither its content nor its name says it.

    Raises:
        DataError: it is truncated, not JSON, not a trace of torch.profiler, or has no ``ProfilerStep``.
    """
    named = _RANK.search(path.name)
    trace = Trace(path, rank=int(named[1]) if named else rank)
    launches: dict[Any, int] = {}

    def take(value: dict[str, Any]) -> dict[str, Any] | None:
        """Note an event as soon as it is parsed, and drop it."""
        if "ph" not in value:
            return value
        if value["ph"] == "X" and "dur" in value:
            _note(trace, value, launches)
        return None

    try:
        with (
            gzip.open(path, "rt", encoding="utf-8", errors="replace")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8", errors="replace") as file
        ):
            whole = json.load(file, object_hook=take, strict=False)
        _head(trace, whole)
        if not all(event is None or isinstance(event, dict) for event in whole.get("traceEvents", ())):
            raise ValueError("an event is no object")
    except _DAMAGED as error:
        raise DataError(f"{path} is not a complete trace of torch.profiler: {error}; record it again") from error
    if not trace.steps:
        raise DataError(
            f"{path} has no ProfilerStep: give torch.profiler.profile a schedule and call its step() after each "
            "optimizer step, or let `rankwise profile SCRIPT` record"
        )
    asked: list[Kernel | Collective] = [*trace.kernels, *trace.uploads, *trace.collectives]
    for kernel in asked:
        if kernel.launched < 0:  # the negated correlation id; a launch before the trace began is missing
            kernel.launched = launches.get(-kernel.launched, kernel.start)
    trace.steps.sort(key=lambda step: step[1])
    trace.collectives.sort(key=lambda found: found.start)
    for moments in trace.asked.values():
        moments.sort()
    return trace


def _head(trace: Trace, whole: dict[str, Any]) -> None:
    """Store what stands beside the events."""
    if (job := whole.get("distributedInfo")) is not None:
        trace.rank, trace.world_size = int(job["rank"]), int(job["world_size"])
        if not 0 <= trace.rank < trace.world_size <= _MOST_RANKS:
            raise ValueError(f"rank {trace.rank} of {trace.world_size}")
    trace.host = str(whole.get("host_name", ""))
    trace.base_ns = int(whole.get("baseTimeNanoseconds", 0))
    if not 0 <= trace.base_ns < _FOR_EVER:
        raise ValueError(f"times since {trace.base_ns} ns")


def _note(trace: Trace, event: dict[str, Any], launches: dict[Any, int]) -> None:
    """Store the needed data of an event."""
    kind = str(event.get("cat", "")).lower()
    start = round(event["ts"] * 1000)
    end = start + round(event["dur"] * 1000)
    if not -_FOR_EVER < start <= end < _FOR_EVER:
        raise ValueError(f"an event of {event['dur']} microseconds at {event['ts']}")
    hash(event.get("tid"))  # used as a key: a TypeError here means a damaged file
    args = event.get("args", {})
    if kind in {"cuda_runtime", "cuda_driver"}:
        if "correlation" in args:
            launches[int(args["correlation"])] = start
    elif kind in {"kernel", "gpu_memcpy", "memcpy"}:
        _note_device(trace, event, start, end, kind)
    elif kind == "user_annotation":
        _note_annotation(trace, event["name"], event.get("tid"), start, end)
    elif kind in {"cpu_op", "operator"}:
        _note_op(trace, event, start, end)


def _note_device(trace: Trace, event: dict[str, Any], start: int, end: int, kind: str) -> None:
    name, args = event["name"], event.get("args", {})
    asked = -int(args["correlation"]) if args.get("correlation") else start
    if kind != "kernel":
        if "HtoD" in name:
            trace.uploads.append(Kernel(start, end, asked))
    elif name.startswith("nccl") or "Collective name" in args:
        called = str(args.get("Collective name") or name)
        elements, size = args.get("In msg nelems"), _DTYPE_BYTES.get(str(args.get("dtype", "")))
        nbytes = int(elements) * size if elements and size else None
        group = str(args.get("Process Group Name", ""))
        trace.collectives.append(Collective(_operation(called), group, start, end, asked, nbytes))
    else:
        trace.kernels.append(Kernel(start, end, asked))


def _operation(name: str) -> str:
    """Return the canonical name of an operation: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)` is an all_reduce."""
    plain = re.sub(r"^nccl(Dev)?Kernel_", "", name).lower().replace("_", "")
    for known in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "send_recv", "all_to_all", "reduce"):
        if known.replace("_", "") in plain:
            return known
    return name


def _note_annotation(trace: Trace, name: str, thread: Any, start: int, end: int) -> None:
    if name.startswith("ProfilerStep#") and end > start:
        trace.steps.append((int(name.partition("#")[2]), start, end))
        trace.main = thread
    elif name.startswith(_DATA):
        trace.annotations["data"].append((start, end))
    elif name.startswith(_OPTIMIZER):
        trace.annotations["optimizer"].append((start, end))
    elif name == "DistributedDataParallel.forward":
        trace.annotations["forward"].append((start, end))
    elif name == "rankwise:backward":
        trace.annotations["backward"].append((start, end))
    elif said := _BACKEND_OP.fullmatch(name):
        # these run on the host; NCCL's annotation only marks the launch of its kernel
        trace.collectives.append(Collective(_operation(said[2]), "", start, end, start))


def _note_op(trace: Trace, event: dict[str, Any], start: int, end: int) -> None:
    name, thread = event["name"], event.get("tid")
    if name.startswith(("c10d::", "record_param_comms", "_c10d_functional")):
        if not name.endswith("::wait_tensor"):  # it waits for a collective that was issued before: no compute either
            trace.asked.setdefault(thread, []).append(start)
        return
    trace.ops.append((thread, start, end))
    if name.startswith("autograd::engine::evaluate_function"):
        trace.autograd.append((thread, start, end))
    elif name in {"aten::to", "aten::copy_", "aten::_to_copy"}:
        trace.copies.append((thread, start, end))
    elif int(event.get("args", {}).get("Sequence number", -1)) >= 0:
        trace.recorded.append((thread, start))
