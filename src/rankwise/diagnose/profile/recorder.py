"""Record the steps of a script: their times, then some of them with torch.profiler. The script is not changed.

``python -m rankwise.diagnose.profile script.py ...`` runs a script with the recorder; RANKWISE_PROFILE holds the task
as JSON. A step ends with the step of the optimizer that stepped first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankwise.diagnose.torch_hooks import around, leave_together, on_steps, run_script
from rankwise.errors import needs_extra

VARIABLE = "RANKWISE_PROFILE"
_NUM_WARM = 2  # steps with a running profiler that are discarded: its start-up is no cost of the script
_LEAVE_S = 60  # how long a rank waits for the other ranks before it ends the script

# Methods in which rankwise's loaders wait: module, class, method; the last one makes a batch of the data read.
OWN_LOADERS = (
    ("rankwise.data.feed.loader", "FeedLoader", "_next"),
    ("rankwise.data.samples.dataset", "DatasetLoader", "_step"),
    ("rankwise.data.crops.stream.pipeline", "Pipeline", "pop"),
    ("rankwise.data.rows.loader.requests", "Requests", "take"),
    ("rankwise.data.rows.loader.loader", "Loader", "_batch"),
)
# names for users
_NAMES = {
    "Requests": "rows.Loader",
    "Loader": "rows.Loader",
    "OrderedLoader": "rows.OrderedLoader",
    "Pipeline": "crops.Pipeline",
    "IndexPipeline": "crops.IndexPipeline",
    "SampleLoader": "SampleLoader",
    "DatasetLoader": "DatasetLoader",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to record.

    Attributes:
        folder: where this rank writes `rank-<r>.json` and `rank-<r>.trace.json.gz`.
        skip: steps to skip at the beginning.
        timed: steps to time without the profiler.
        traced: steps after them to record with the profiler.
        to_end: let the script continue after the recording; else end it.
        ddp: arguments of `DistributedDataParallel` that replace the script's own.
    """

    folder: str
    skip: int = 5
    timed: int = 0
    traced: int = 20
    to_end: bool = False
    ddp: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Return the total number of steps."""
        return self.skip + self.timed + (self.traced + _NUM_WARM if self.traced else 0)

    def to_json(self) -> str:
        """Return the task as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read a task from JSON."""
        return cls(**json.loads(text))


class Recorder:
    """Records one rank."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.num_steps = 0
        self._profiler: Any = None
        self._stepping: Any = None
        self._optimizing: Any = None
        self._began_ns = 0
        self._walls_ns: list[int] = []
        self._samples: list[int | None] = []
        self._pulled: list[tuple[int, int | None]] = []
        self._waits_ns: dict[str, int] = {}  # by loader, in the traced steps
        self._ddp: Any = None
        self._loader: Any = None
        self._traced: list[int] = []
        self.done = False

    def install(self) -> None:
        """Hook into torch."""
        with needs_extra("rankwise profile and scaling need torch: pip install 'rankwise[train]'"):
            import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

        on_steps(self._begin, self._end)
        around(torch.autograd, "backward", self._backward)
        around(_BaseDataLoaderIter, "__next__", self._pull)
        around(DataLoader, "__iter__", self._iterate)
        around(DistributedDataParallel, "__init__", self._wrap)

    def _wrap(self, inner: Callable[..., Any], ddp: Any, *args: Any, **kwargs: Any) -> None:
        inner(ddp, *args, **{**kwargs, **self._task.ddp})
        self._ddp = ddp

    def _backward(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._mark("rankwise:backward"):
            return inner(*args, **kwargs)

    @contextlib.contextmanager
    def _mark(self, name: str) -> Iterator[None]:
        if self._profiler is None:
            yield
            return
        import torch

        with torch.profiler.record_function(name):
            yield

    @contextlib.contextmanager
    def _wait(self, name: str) -> Iterator[None]:
        """Mark the wait for a batch of a loader."""
        began_ns = time.perf_counter_ns()
        with self._mark("rankwise:data"):
            yield
        if self._profiler is not None:
            self._waits_ns[name] = self._waits_ns.get(name, 0) + time.perf_counter_ns() - began_ns

    def _iterate(self, inner: Callable[..., Any], loader: Any) -> Any:
        self._loader = loader
        return inner(loader)

    def _pull(self, inner: Callable[..., Any], batches: Any) -> Any:
        with self._wait("DataLoader"):
            batch = inner(batches)
        self._pulled.append((id(batches), _num_samples(batch)))
        return batch

    def _take(self, inner: Callable[..., Any], loader: Any, *args: Any, **kwargs: Any) -> Any:
        known = (_NAMES.get(kind.__name__) for kind in type(loader).__mro__)
        with self._wait(next(filter(None, known), type(loader).__name__)):
            batch = inner(loader, *args, **kwargs)
        if batch is not None and batch != ():  # empty at the end of an epoch
            self._pulled.append((id(loader), _num_known(batch)))
        return batch

    def _begin(self, optimizer: Any) -> None:
        if self._stepping is None:
            self._stepping = optimizer
            # mark the waits of rankwise's loaders that the script has imported by its first step
            for module, owner, name in OWN_LOADERS:
                if module in sys.modules:
                    around(getattr(sys.modules[module], owner), name, self._take)
        if self._profiler is not None:
            import torch

            self._optimizing = torch.profiler.record_function("rankwise:optimizer")
            self._optimizing.__enter__()

    def _end(self, optimizer: Any) -> None:
        if self._optimizing is not None:
            self._optimizing.__exit__(None, None, None)
            self._optimizing = None
        if optimizer is self._stepping and not self.done:
            self._step()

    def _step(self) -> None:
        """End a step. Steps are numbered as in the script, from 0."""
        number, task = self.num_steps, self._task
        self.num_steps += 1
        last = self._pulled[-1][0] if self._pulled else None
        counts = [count for loader, count in self._pulled if loader == last]
        self._pulled = []
        begin = task.skip + task.timed
        if number + 1 in {task.skip, begin}:  # synchronise, so that work of a GPU counts for the step that launched it
            _synchronize()
        now_ns = time.perf_counter_ns()
        if task.skip <= number < begin:
            self._walls_ns.append(now_ns - self._began_ns)
            whole = bool(counts) and all(count is not None for count in counts)
            self._samples.append(sum(count or 0 for count in counts) if whole else None)
        if task.traced and number + 1 == begin:
            self._start()
        elif self._profiler is not None:
            if number >= begin + _NUM_WARM:
                self._traced.append(number)
            self._profiler.step()
        self._began_ns = time.perf_counter_ns()
        if self.num_steps == task.num_steps:
            self.finish()
            if not task.to_end:
                leave_together(_LEAVE_S)

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

        wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & supported_activities()  # type: ignore[no-untyped-call]
        self._profiler = profile(
            activities=sorted(wanted, key=str),
            schedule=schedule(wait=0, warmup=_NUM_WARM, active=self._task.traced, repeat=1),
            on_trace_ready=self._export,
        )
        self._profiler.start()

    def _path(self, ending: str) -> Path:
        return Path(self._task.folder) / f"rank-{_rank()}{ending}"

    def _export(self, profiler: Any) -> None:
        if not self._traced:
            return
        # written under a temporary name and renamed, so that the file is complete
        path = self._path(".trace.json.gz")
        beside = path.with_name(f".{path.name}")
        profiler.export_chrome_trace(str(beside))
        beside.replace(path)

    def finish(self) -> None:
        """Write the results; if the script ended early, those recorded so far."""
        if self.done:
            return
        self.done = True
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()  # even without results: the interpreter's exit would crash in it
        facts = {
            "rank": _rank(),
            "num_steps": self.num_steps,
            "walls_ns": self._walls_ns,
            "samples": self._samples,
            "first_traced": self._task.skip + self._task.timed,
            "num_traced": len(self._traced),
            "settings": self._settings(),
        }
        self._path(".json").write_text(json.dumps(facts))

    def _settings(self) -> dict[str, Any]:
        """Return the known settings that affect the speed."""
        found: dict[str, Any] = {}
        with contextlib.suppress(RuntimeError, AttributeError):  # a private method of DDP, which may disappear
            told = self._ddp._get_ddp_logging_data()  # noqa: SLF001
            found = {
                "bucket_mb": told["bucket_cap_bytes"] / 2**20,
                "static_graph": bool(told.get("static_graph")),
                "find_unused": bool(told["find_unused_parameters"]),
                "bucket_view": bool(told["gradient_as_bucket_view"]),
                "gradient_bytes": told["total_parameter_size_bytes"],
                "unused_bytes": told.get("unused_parameter_size"),
            }
        if self._loader is not None:
            found |= {"num_workers": self._loader.num_workers, "prefetch": self._loader.prefetch_factor}
        if self._waits_ns:
            found["loader"] = max(self._waits_ns, key=self._waits_ns.__getitem__)
        return found


def _synchronize() -> None:
    """Synchronise with the GPU, so that times are meaningful."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _rank() -> int:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    return int(os.environ.get("RANK", "0"))


def _num_known(batches: Any) -> int | None:
    """Return the number of samples in a rankwise batch, or in the micro-batches of a step, from ids or rows."""
    if isinstance(batches, dict):
        return _num_samples(batches.get("X"))
    parts = batches if isinstance(batches, tuple) else (batches,)
    ids = [getattr(part, "ids", None) for part in parts]
    return sum(map(len, ids)) if all(each is not None for each in ids) else None  # type: ignore[arg-type]


def _num_samples(batch: Any) -> int | None:
    """Return the number of samples in a batch: the length of its first tensor; None without one."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, tuple | list):
        found = (_num_samples(part) for part in batch)
    elif isinstance(batch, Mapping):
        found = (_num_samples(part) for part in batch.values())
    else:
        return None
    return next((count for count in found if count is not None), None)


def main() -> None:
    """Run ``sys.argv[1]`` as a script and record it."""
    recorder = Recorder(Task.from_json(os.environ[VARIABLE]))
    recorder.install()
    run_script(recorder.finish)
