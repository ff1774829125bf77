"""Record each optimizer step of a rank for `rankwise verify`, for any script that steps a torch optimizer.

``python -m rankwise.diagnose script.py ...`` runs a script with the recorder; RANKWISE_VERIFY names the folder. It
writes one line of JSON per step, batch of held-out data and reduced value; the script is not changed.
"""

from __future__ import annotations

import atexit
import contextlib
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
from rankwise.errors import needs_extra

FOLDER, STEPS, KILL = "RANKWISE_VERIFY", "RANKWISE_VERIFY_STEPS", "RANKWISE_VERIFY_KILL"
STOP = "RANKWISE_VERIFY_STOP"
_TOGETHER_S = 20.0
_NUM_VALUES = 64  # recorded per tensor, evenly spread; the digest covers all values
_active: list[Recorder] = []


def note(**values: float) -> None:
    """Record numbers that must be equal at any number of ranks, such as a metric; no effect without `rankwise verify`.

    Call it on every rank, with the reduced values.
    """
    for recorder in _active:
        recorder.write("values", values={name: float(value) for name, value in values.items()})


class Recorder:
    """Writes the records of one rank.

    Args:
        path: file to write.
        num_steps: number of steps to record; the script continues afterwards, unless `stop`.
        kill: send SIGKILL to this process when the step of this number begins; None never.
        stop: exit with code 0 after these steps, together with the other ranks.
    """

    def __init__(self, path: Path, *, num_steps: int, kill: int | None, stop: bool = False) -> None:
        # Line-buffered: a killed rank leaves its completed lines, and a forked loader worker inherits no buffer that it
        # would write again at its exit.
        self._file = path.open("w", buffering=1)
        self._num_steps, self._kill, self._stop = num_steps, kill, stop
        self.step = self.inside = self._forwards = 0
        self._pulled: list[tuple[int, list[int]]] = []
        self._trained_on: set[int] = set()
        self._given: list[int] | None = None
        self._losses: list[tuple[float, float | None]] = []
        self._modules: list[weakref.ref[Any]] = []  # weak: do not change the modules' lifetimes
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
        """Install hooks into torch and the exact step."""
        with needs_extra("rankwise verify needs torch: pip install 'rankwise[train]'"):
            import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        from rankwise import metrics
        from rankwise.train.step.exact import ExactStep
        from rankwise.train.step.ledger import RunningMeans
        from rankwise.train.step.window import StreamWindow, Window

        _active.append(self)
        on_steps(self._begin, self._end)
        for made in ("__init__", "__setstate__"):  # copies and unpickled modules do not call `__init__`
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
        """Record how a DataLoader is iterated: samples, sampler, epoch."""
        number, _ = self._loaders.setdefault(id(loader.dataset), (len(self._loaders), loader.dataset))
        self._passes[number] = self._passes.get(number, -1) + 1
        sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        told = {name: getattr(sampler, name, None) for name in ("epoch", "shuffle", "num_replicas")}
        told = {name: value for name, value in told.items() if isinstance(value, int | None)}
        split = None
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # not some samples of another data set
            split = _sha(json.dumps([int(i) for i in loader.dataset.indices]).encode())
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
        with contextlib.suppress(AttributeError, TypeError, ValueError, LookupError):
            while True:  # a Subset: take indices of the whole
                ids, dataset = [int(dataset.indices[i]) for i in ids], dataset.dataset
        self._pulled.append((number, ids))

    def _begin(self, optimizer: Any) -> None:
        if self._kill == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self._names:
            self._register(optimizer)
        if self.step < self._num_steps:
            named = self._named(optimizer)
            self._before = {
                "before": _sha("".join(_summary(p)[0] for _, p in named).encode()),
                "grads": {name: _summary(p.grad) for name, p in named if p.grad is not None},
            }

    def _end(self, optimizer: Any) -> None:
        ids = self._settle()
        if self.step < self._num_steps:
            params = {name: _summary(p) for name, p in self._named(optimizer)}
            # besides the exact step's losses there is only its warm-up
            losses = [pair for pair in self._losses if pair[1] is not None] or self._losses
            forwards = self._forwards
            self.write("step", ids=ids, losses=losses, params=params, forwards=forwards, **self._before)
        self._losses, self._forwards = [], 0
        self.step += 1
        if self._stop and self.step == self._num_steps:
            self.close()
            leave_together(_TOGETHER_S)

    def _settle(self) -> list[int] | None:
        """Return the samples of this step; record the samples that were only evaluated since the last step."""
        given, self._given = self._given, None
        pulled, self._pulled = self._pulled, []
        if given is not None or not pulled:
            return given
        training = pulled[-1][0]
        self._trained_on.add(training)
        self._compare([(number, ids) for number, ids in pulled if number != training])
        return [i for number, ids in pulled if number == training for i in ids]

    def _compare(self, pulled: list[tuple[int, list[int]]]) -> None:
        for number, ids in pulled:
            if number not in self._trained_on:
                self.write("look", loader=number, turn=self._passes[number], ids=ids)

    def close(self) -> None:
        """Record the samples that were evaluated after the last step."""
        self._compare(self._pulled)
        self.write("end")
        self._file.close()

    def _register(self, optimizer: Any) -> None:
        """Find the names of the parameters in the largest module that contains them."""
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
        dtype = str(self._named(optimizer)[0][1].dtype).removeprefix("torch.")
        facts = {"dtype": dtype, "autocast": self._autocast, "threads": torch.get_num_threads()}
        self.write("model", layers=sorted(layers), late=late, wrapped=bool(self._wrapped), **facts)

    def _named(self, optimizer: Any) -> list[tuple[str, Any]]:
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        return [(self._names.get(id(p), f"parameter {number}"), p) for number, p in enumerate(tensors)]


def _asked(batches: Any) -> deque[Any]:
    """Return the indices that a DataLoader iteration has requested from its workers but not yielded yet."""
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


def _summary(tensor: Any) -> tuple[str, float, list[float]]:
    """Return digest, norm and some values of a tensor; a sharded tensor is gathered, as a collective."""
    import torch

    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    flat = tensor.detach().cpu().reshape(-1).contiguous()
    some = flat[:: max(1, len(flat) // _NUM_VALUES)][:_NUM_VALUES].double()
    return _sha(flat.view(torch.uint8).numpy().tobytes()), float(flat.double().norm()), some.tolist()


def _sha(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def main() -> None:
    """Run ``sys.argv[1]`` as a script and record it."""
    rank, attempt = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    killed_rank, _, killed_step = os.environ.get(KILL, "-1:0").partition(":")
    kill = int(killed_step) if (rank, attempt) == (int(killed_rank), 0) else None
    path = Path(os.environ[FOLDER]) / f"rank-{rank}.attempt-{attempt}.jsonl"
    recorder = Recorder(path, num_steps=int(os.environ[STEPS]), kill=kill, stop=STOP in os.environ)
    recorder.install()
    run_script(recorder.close)
    _leave()


def _leave() -> None:
    """Exit with code 0 without finalising the interpreter, as `multiprocessing` does in its children.

    During the finalisation, a gloo thread that frees a tensor of the last collective cannot get the interpreter lock
    any more and aborts the process: on a busy machine a correct script would sometimes fail.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  (waits for the script's own threads)
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
