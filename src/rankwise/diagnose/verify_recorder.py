"""What a rank does in each optimizer step, written down for `rankwise verify`: any script that steps a torch optimizer.

``python -m rankwise.diagnose script.py ...`` runs a script with the recorder in place, where RANKWISE_VERIFY
names a folder. One line of JSON for each step, batch of held-out data and reduced value; the script is not changed.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import signal
import sys
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from rankwise.diagnose.torch_hooks import around, leave_together, on_steps, run_script

__all__ = ["FOLDER", "KILL", "STEPS", "STOP", "Recorder", "main", "note"]

FOLDER, STEPS, KILL = "RANKWISE_VERIFY", "RANKWISE_VERIFY_STEPS", "RANKWISE_VERIFY_KILL"
STOP = "RANKWISE_VERIFY_STOP"
_TOGETHER_S = 20.0
_NUM_VALUES = 64  # of each tensor are kept, evenly spread; its digest covers all
_active: list[Recorder] = []


def note(**values: float) -> None:
    """Record numbers that must be equal at any number of ranks, such as a metric; nothing without `rankwise verify`.

    Call it on every rank, with the reduced values.
    """
    for recorder in _active:
        recorder.write("values", values={name: float(value) for name, value in values.items()})


class Recorder:
    """Writes the lines of one rank.

    Args:
        path: file to write.
        num_steps: how many steps are written down; the script runs on, unless `stop`.
        kill: send SIGKILL to this process when the step of this number begins; None never.
        stop: end the process well after these steps, together with the other ranks.
    """

    def __init__(self, path: Path, *, num_steps: int, kill: int | None, stop: bool = False) -> None:
        # A line at a time: a killed rank leaves what it has done, and a forked loader worker has no rest of a buffer to
        # write once more at its end.
        self._file = path.open("w", buffering=1)
        self._num_steps, self._kill, self._stop = num_steps, kill, stop
        self.step = self.inside = self._forwards = 0
        self._pulled: list[tuple[int, list[int]]] = []
        self._trained_on: set[int] = set()
        self._given: list[int] | None = None
        self._losses: list[tuple[float, float | None]] = []
        self._modules: list[weakref.ref[Any]] = []  # weak: they live and die as without us, in any thread
        self._names: dict[int, str] = {}
        self._wrapped: set[int] = set()
        self._loaders: dict[int, tuple[int, Any]] = {}
        self._passes: dict[int, int] = {}
        self._before: dict[str, Any] = {}
        self._autocast = ""

    def write(self, kind: str, **facts: Any) -> None:
        """Write a line."""
        self._file.write(json.dumps({"kind": kind, "step": self.step, **facts}) + "\n")

    def install(self) -> None:
        """Hook into torch, and into the exact step."""
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        from rankwise import metrics
        from rankwise.train.exact import ExactStep
        from rankwise.train.parts import RunningMeans
        from rankwise.train.stream_windows import StreamWindow
        from rankwise.train.window import Window

        _active.append(self)
        on_steps(self._begin, self._end)
        for made in ("__init__", "__setstate__"):  # copies and unpickled modules are never initialised
            _after(nn.Module, made, lambda _, module, *__, **___: self._modules.append(weakref.ref(module)))
        _after(torch.autocast, "__enter__", self._cast)
        _before(torch.Tensor, "backward", self._backward)
        _before(DistributedDataParallel, "forward", self._forward)
        _after(DistributedDataParallel, "__init__", self._wrap)
        _before(ExactStep, "__call__", lambda _, batches: self._give(batches))
        _before(StreamWindow, "__init__", lambda _, batches, *__: self._give(batches))
        _after(RunningMeans, "reduce_noted", lambda result, *_, **__: note(**result[0]))
        _after(metrics, "reduce", lambda result, *_, **__: note(**result))
        _before(DataLoader, "__iter__", self._iterate)
        _after(_BaseDataLoaderIter, "_next_index", lambda index, batches: _asked(batches).append(index))
        _after(_BaseDataLoaderIter, "__next__", lambda _, batches: self._pull(batches))
        around(Window, "backward", self._backward_of_window)

    def _backward_of_window(self, inner: Any, window: Any, total: Any, weight: Any) -> None:
        self._losses.append((float(total.detach()), float(weight)))
        self.inside += 1
        try:
            inner(window, total, weight)
        finally:
            self.inside -= 1

    def _backward(self, loss: Any, *_: Any, **__: Any) -> None:
        if not self.inside and loss.numel() == 1:
            self._losses.append((float(loss.detach()), None))

    def _cast(self, _: Any, autocast: Any) -> None:
        if autocast._enabled:  # noqa: SLF001  (it has no public name)
            self._autocast = str(autocast.fast_dtype).removeprefix("torch.")

    def _forward(self, *_: Any, **__: Any) -> None:
        self._forwards += 1

    def _wrap(self, _: Any, ddp: Any, *__: Any, **___: Any) -> None:
        self._wrapped |= {id(p) for p in ddp.module.parameters()}

    def _give(self, batches: Any) -> None:
        self._given = [*(self._given or ()), *(int(i) for batch in batches for i in batch.ids)]

    def _iterate(self, loader: Any) -> None:
        """Note how a DataLoader is iterated: which samples, by which sampler, told which epoch."""
        number, _ = self._loaders.setdefault(id(loader.dataset), (len(self._loaders), loader.dataset))
        self._passes[number] = self._passes.get(number, -1) + 1
        sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        told = {name: getattr(sampler, name, None) for name in ("epoch", "shuffle", "num_replicas")}
        told = {name: value for name, value in told.items() if isinstance(value, int | None)}
        indices = getattr(loader.dataset, "indices", None)
        split = None if indices is None else _sha(json.dumps([int(i) for i in indices]).encode())
        self.write(
            "iterate", loader=number, turn=self._passes[number], sampler=type(sampler).__name__, split=split, **told
        )

    def _pull(self, batches: Any) -> None:
        asked = _asked(batches)
        index = asked.popleft() if asked else None
        dataset = batches._dataset  # noqa: SLF001
        ids: list[Any] = index if isinstance(index, list) else [index]
        if not all(isinstance(i, int) for i in ids) or id(dataset) not in self._loaders:
            return
        number = self._loaders[id(dataset)][0]
        while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # of a Subset: numbers in the whole
            ids, dataset = [int(dataset.indices[i]) for i in ids], dataset.dataset
        self._pulled.append((number, ids))

    def _begin(self, optimizer: Any) -> None:
        if self._kill == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self._names:
            self._introduce(optimizer)
        if self.step < self._num_steps:
            named = self._named(optimizer)
            self._before = {
                "before": _sha("".join(_told(p)[0] for _, p in named).encode()),
                "grads": {name: _told(p.grad) for name, p in named if p.grad is not None},
            }

    def _end(self, optimizer: Any) -> None:
        ids = self._settle()
        if self.step < self._num_steps:
            params = {name: _told(p) for name, p in self._named(optimizer)}
            # beside the exact step's own there is only its warm-up
            losses = [pair for pair in self._losses if pair[1] is not None] or self._losses
            forwards = self._forwards
            self.write("step", ids=ids, losses=losses, params=params, forwards=forwards, **self._before)
        self._losses, self._forwards = [], 0
        self.step += 1
        if self._stop and self.step == self._num_steps:
            self.close()
            leave_together(_TOGETHER_S)

    def _settle(self) -> list[int] | None:
        """Return what this step was taken on; write down what was only looked at since the last one."""
        given, self._given = self._given, None
        pulled, self._pulled = self._pulled, []
        if given is not None or not pulled:
            return given
        training = pulled[-1][0]
        self._trained_on.add(training)
        self._look([(number, ids) for number, ids in pulled if number != training])
        return [i for number, ids in pulled if number == training for i in ids]

    def _look(self, pulled: list[tuple[int, list[int]]]) -> None:
        for number, ids in pulled:
            if number not in self._trained_on:
                self.write("look", loader=number, turn=self._passes[number], ids=ids)

    def close(self) -> None:
        """Write down what was looked at after the last step."""
        self._look(self._pulled)
        self.write("end")
        self._file.close()

    def _introduce(self, optimizer: Any) -> None:
        """Find the names of the parameters: those in the largest module that has them."""
        import torch

        wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
        modules = [module for one in self._modules if (module := one()) is not None]
        modules.sort(key=lambda module: len(list(module.modules())))
        layers: set[str] = set()
        for module in modules:
            named = {
                id(p): name.replace("_orig_mod.", "").replace("module.", "") for name, p in module.named_parameters()
            }
            if wanted & named.keys():
                self._names |= named
                layers = {type(part).__name__ for part in module.modules() if part.training}
        late = [
            name for key, name in self._names.items() if key in wanted and self._wrapped and key not in self._wrapped
        ]
        dtype = str(next(iter(optimizer.param_groups[0]["params"])).dtype).removeprefix("torch.")
        facts = {"dtype": dtype, "autocast": self._autocast, "threads": torch.get_num_threads()}
        self.write("model", layers=sorted(layers), late=late, wrapped=bool(self._wrapped), **facts)

    def _named(self, optimizer: Any) -> list[tuple[str, Any]]:
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        return [(self._names.get(id(p), f"parameter {number}"), p) for number, p in enumerate(tensors)]


def _asked(batches: Any) -> deque[Any]:
    """Return the indices that an iteration of a DataLoader has asked for and not brought yet: workers run ahead."""
    asked: deque[Any] = batches.__dict__.setdefault("_rankwise_asked", deque())
    return asked


def _before(owner: Any, name: str, hook: Any) -> None:
    def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
        hook(*args, **kwargs)
        return inner(*args, **kwargs)

    around(owner, name, call)


def _after(owner: Any, name: str, hook: Any) -> None:
    def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        hook(result, *args, **kwargs)
        return result

    around(owner, name, call)


def _told(tensor: Any) -> tuple[str, float, list[float]]:
    """Return digest, norm and some values of a tensor; a sharded one is gathered, by all ranks."""
    import torch

    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    flat = tensor.detach().cpu().reshape(-1).contiguous()
    some = flat[:: max(1, len(flat) // _NUM_VALUES)][:_NUM_VALUES].double()
    return _sha(flat.view(torch.uint8).numpy().tobytes()), float(flat.double().norm()), some.tolist()


def _sha(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def main() -> None:
    """Run ``sys.argv[1]`` as a script, recorded."""
    rank, attempt = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    killed_rank, _, killed_step = os.environ.get(KILL, "-1:0").partition(":")
    kill = int(killed_step) if (rank, attempt) == (int(killed_rank), 0) else None
    path = Path(os.environ[FOLDER]) / f"rank-{rank}.attempt-{attempt}.jsonl"
    recorder = Recorder(path, num_steps=int(os.environ[STEPS]), kill=kill, stop=STOP in os.environ)
    recorder.install()
    run_script(recorder.close)
    _leave()


def _leave() -> None:
    """End this process well, as `multiprocessing` ends its own: the interpreter is not taken down.

    A thread of gloo that lets go of a tensor of the last collective while that goes on wants the interpreter's lock,
    does not get it any more, and aborts the process: on a busy machine now and then a right script would have failed.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  (waits for the script's own threads)
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
