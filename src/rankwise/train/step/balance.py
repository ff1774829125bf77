"""Shares in proportion to speed: measures how fast each rank computes, without waiting times, and agrees on a cut."""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rankwise.data.contract import BaseLoader, whole_speeds
from rankwise.errors import ConfigError
from rankwise.guard.check import replicas_in
from rankwise.train.loaders.foreign import as_loader, kind_of
from rankwise.train.models.sharding import is_sharded, watch_gradients
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.train.step.checks import lone_sample
from rankwise.world import World
from rankwise.world.adopt import joined_world

if TYPE_CHECKING:
    import torch
    from torch import nn

_LOG = logging.getLogger("rankwise.train")
_NUM_FIRST = 2  # steps of a pass that are not measured: caches and allocators warm up
_EVERY = 8  # after the warm-up, every n-th step is measured
_NUM_KEPT = 32
_MOVED = 0.05  # smallest change of a rank's share that is worth a new cut


class Balance:
    """Cuts each step's shares in proportion to the speed of the ranks, so that unequal devices finish together.

    Samples, their order, the global batch and the exact mean do not change; only the number of samples per rank does.
    Every rank makes one, and iterates over it in place of the loader::

        balance = Balance(model, world)
        for epoch in range(num_epochs):
            loader.set_epoch(epoch)
            for batches in balance.steps(loader):
                report = step(batches)
                loader.mark_done(report.resume)

    A rank's speed is its samples per second from the start of a step to the last gradient of its backward pass. Waits
    for data and for other ranks happen before and after that. Ranks agree on speeds after `warmup` steps with equal
    shares, and at the end of each epoch, with one small collective; the loader saves them.

    Args:
        model: what `prepare` returned.
        world: this rank's world; `World.current()` if None.
        speeds: "speed" measures; numbers, one for each rank, are used as given, and nothing is measured.
        warmup: measured steps with equal shares before the first cut by speed.

    Raises:
        ConfigError: the model makes ranks wait for each other inside a pass (fsdp, statistics over all ranks), so that
            speeds cannot be measured, or an argument is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        world: World | None = None,
        *,
        speeds: Literal["speed"] | Sequence[float] = "speed",
        warmup: int = 12,
    ) -> None:
        self._world = joined_world(world, "a Balance")
        check_balance(speeds)
        if warmup <= _NUM_FIRST:
            raise ConfigError(
                f"warmup must be more than {_NUM_FIRST} steps, as the first {_NUM_FIRST} are not measured; got {warmup}"
            )
        self._fixed = None
        if not isinstance(speeds, str):
            self._fixed = whole_speeds(speeds, world_size=self._world.world_size)
        elif self._world.world_size > 1:
            _refuse_waiting(model)
        self._model, self._warmup = model, warmup
        self._watch = _Stopwatch(model, self._world.device)
        self._seen: deque[tuple[Any, int]] = deque(maxlen=_NUM_KEPT)
        self._said_lone = False

    def steps(self, loader: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the loader's steps to the end of its epoch. Collective: every rank iterates to the same step.

        Mark a step done before asking for the next one.

        Args:
            loader: one with an `Order`: `SampleLoader`, `DatasetLoader`, `OrderedLoader`.

        Raises:
            ConfigError: the loader cannot cut unequal shares.
            DesyncError: the loader of another rank cannot.
        """
        loader = as_loader(loader)
        self.check(loader)
        if self._fixed is not None and loader.speeds != self._fixed:
            loader.set_speeds(self._fixed)
        if self._fixed is not None or self._world.world_size == 1:
            yield from loader
            return
        with self._watch:
            yield from self._measured(loader)

    def check(self, loader: Any) -> None:
        """Refuse loaders that `steps` cannot cut. Collective: raises on every rank if any rank has one.

        Raises:
            ConfigError: this rank's loader cannot cut unequal shares.
            DesyncError: another rank's loader cannot.
        """
        loader, error = as_loader(loader), None
        if not loader.takes_speeds:
            error = ConfigError(
                "balance= needs a loader over an Order, whose steps can be divided again (SampleLoader, DatasetLoader, "
                f"rows in an order), got a {kind_of(loader)}: leave it out"
            )
        elif loader.equal_because:
            error = ConfigError(
                f"balance= needs a loader whose shares may be unequal, but this {kind_of(loader)} makes equal shares "
                f"only: {loader.equal_because}; leave it out"
            )
        self._world.raise_together(error)

    def _measured(self, loader: BaseLoader) -> Iterator[tuple[Any, ...]]:
        number, cut_anew = 0, True
        while cut_anew:
            cut_anew = False
            for batches in loader:
                number += 1
                if number > _NUM_FIRST and (number <= self._warmup or number % _EVERY == 0):
                    self._watch.start()
                yield batches
                taken, num_samples = self._watch.stop(), sum(len(batch.ids) for batch in batches)
                if taken is not None and num_samples:
                    self._seen.append((taken, num_samples))
                # a resumed run has its speeds in the checkpoint
                if number == self._warmup and loader.speeds is None and self._agree(loader):
                    cut_anew = True  # prefetched steps have the old cut
                    break
        self._agree(loader)

    def _agree(self, loader: BaseLoader) -> bool:
        """Agree on the speeds, and cut by them if that changes the shares. Every rank calls it."""
        mine = [taken() / num_samples for taken, num_samples in self._seen]
        told = self._world.all_gather_object(statistics.median(mine) if mine else None)
        known = [seconds for seconds in told if seconds]
        if not known:
            return False
        usual = statistics.median(known)
        speeds = whole_speeds([1 / (seconds or usual) for seconds in told], world_size=len(told))
        old = loader.speeds or (1,) * len(told)
        moved = max(abs(s * sum(old) / (o * sum(speeds)) - 1) for s, o in zip(speeds, old, strict=True))
        if moved < _MOVED or self._leaves_one(loader, speeds):
            return False
        loader.set_speeds(speeds)
        self._seen.clear()
        if self._world.is_main:
            parts = ", ".join(f"rank {rank} {speed / sum(speeds):.0%}" for rank, speed in enumerate(speeds))
            _LOG.info("shares now follow the speed of the ranks: %s of each step", parts)
        return True

    def _leaves_one(self, loader: BaseLoader, speeds: tuple[int, ...]) -> bool:
        """Whether batch statistics forbid a cut: the same on every rank. Logged once, on the main rank."""
        from torch import nn

        # layers over pixels have statistics of a single sample
        if not any(isinstance(module, nn.BatchNorm1d) and module.training for module in self._model.modules()):
            return False
        lone = lone_sample(loader, self._world, None, speeds)
        if lone and not self._said_lone and self._world.is_main:
            self._said_lone = True
            _LOG.warning("shares stay as they are, as batch statistics need two samples: by the ranks' speed %s", lone)
        return bool(lone)


class _Stopwatch:
    """Measures the time from the start of a step to the last gradient, on the CPU's clock or the device's.

    A context manager around the steps: its gradient hooks stay, since changing them would recompile a compiled model.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._on_gpu = model, device.type == "cuda"
        self._handles: list[Any] = []
        self._begin: Any = None
        self._end: Any = None

    def __enter__(self) -> None:
        self._handles = watch_gradients(self._model, lambda _: self._mark())
        replicas: Any = replicas_in(self._model)
        if replicas is not None and replicas.will_sync_module_buffers():
            # DistributedDataParallel sends rank 0's buffers before the forward: fast ranks wait there
            self._handles.append(unwrapped(self._model).register_forward_pre_hook(lambda *_: self._begin_again()))

    def __exit__(self, *_: object) -> None:
        self._begin = self._end = None
        for handle in self._handles:
            handle.remove()

    def start(self) -> None:
        """Start the measurement."""
        self._begin, self._end = self._now(), None

    def stop(self) -> Any:
        """Return a function that returns the seconds until the last gradient, None if there was none."""
        begin, end = self._begin, self._end
        self._begin = self._end = None
        if end is None:
            return None

        def seconds() -> float:
            if isinstance(end, float):
                return end - float(begin)
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1000

        return seconds

    def _begin_again(self) -> None:
        if self._begin is not None and self._end is None:
            self._begin = self._now()

    def _mark(self) -> None:
        if self._begin is None:
            return
        if self._on_gpu and self._end is not None:
            self._end.record()  # an event keeps the time of its last record
        else:
            self._end = self._now()

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        from torch import cuda

        event: Any = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def check_balance(wish: Any) -> None:
    """Refuse an invalid value of ``balance=``.

    Raises:
        ConfigError: it is neither "speed" nor numbers.
    """
    if isinstance(wish, str) and wish != "speed":
        raise ConfigError(f'balance must be "speed", one number for each rank, or None, got {wish!r}')


def _refuse_waiting(model: nn.Module) -> None:
    from torch import nn

    how = "pass the speeds as numbers, one for each rank"
    if is_sharded(model):
        raise ConfigError(
            'balance="speed" cannot measure a rank\'s speed with strategy="fsdp", whose ranks wait for each other in '
            f"every unit: {how}"
        )
    if any(isinstance(module, nn.SyncBatchNorm) or hasattr(module, "joins_ranks") for module in model.modules()):
        raise ConfigError(
            'balance="speed" cannot measure a rank\'s speed with sync_batchnorm, whose ranks wait for each other in '
            f"every such layer: {how}"
        )
