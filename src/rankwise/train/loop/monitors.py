"""Hooks for most runs: early stopping, throughput, gradient statistics, system metrics."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankwise.errors import ConfigError
from rankwise.train.models.passes import in_eval_mode
from rankwise.train.models.wrapped_models import unwrapped
from rankwise.train.step.ledger import StepReport

if TYPE_CHECKING:
    import torch

    from rankwise.train.trainer import Trainer


class EarlyStopping:
    """Stops the run when a validation value has not improved for some epochs: the same decision on all ranks.

    The run then counts as finished. Its state is in the checkpoints, so a restart decides like an undisturbed run.

    Args:
        monitor: name of an epoch's reduced value, for example "val_loss".
        patience: number of epochs without improvement before stopping.
        mode: whether smaller or larger values are better.
        min_delta: smallest change that counts as an improvement. NaN never does.
    """

    def __init__(
        self, monitor: str = "val_loss", *, patience: int = 3, mode: Literal["min", "max"] = "min", min_delta: float = 0
    ) -> None:
        if mode not in ("min", "max") or patience < 1 or not min_delta >= 0:
            raise ConfigError(
                "EarlyStopping needs a mode of 'min' or 'max', a patience of at least 1 and a min_delta of at least 0, "
                f"got {mode!r}, {patience!r}, {min_delta!r}"
            )
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self._sign = 1 if mode == "min" else -1
        self.best, self.num_bad = math.nan, 0

    def validation_end(self, trainer: Trainer, epoch: int, values: Mapping[str, float]) -> None:
        """Compare the epoch with the best one."""
        del epoch
        if self.monitor not in values:
            raise ConfigError(
                f"EarlyStopping watches {self.monitor!r}, but an epoch has {', '.join(values)}; names of validation "
                "metrics start with 'val_' and need fit(val=...)"
            )
        value = values[self.monitor]
        better = math.isnan(self.best) and not math.isnan(value)
        if better or self._sign * (self.best - value) > self.min_delta:
            self.best, self.num_bad = value, 0
            return
        self.num_bad += 1
        if self.num_bad >= self.patience:
            trainer.stop(f"{self.monitor} has not improved on {self.best:g} for {self.num_bad} epochs")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the number of epochs since."""
        return {"best": self.best, "num_bad": self.num_bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self.best, self.num_bad = float(state["best"]), int(state["num_bad"])


class LearningRates:
    """Logs the learning rate of every parameter group, as ``lr/0``, ``lr/1``, ..., or under the group's "name"."""

    def numbers(self, trainer: Trainer) -> dict[str, float]:
        """Return the learning rates."""
        groups = trainer.optimizer.param_groups
        return {f"lr/{group.get('name', index)}": float(group["lr"]) for index, group in enumerate(groups)}


class GradientStats:
    """Logs norm and largest element of the exact gradient, in total (``grad/norm``) and by part of the model.

    Measured at log steps, after clipping. Waits for the device then.

    Args:
        depth: number of components of a parameter's name that identify a part; 0 logs only the total.
    """

    def __init__(self, *, depth: int = 1) -> None:
        self.depth = depth

    def numbers(self, trainer: Trainer) -> dict[str, float]:
        """Return the statistics."""
        import torch

        square: dict[str, Any] = {}
        largest: dict[str, Any] = {}
        for name, parameter in unwrapped(trainer.model).named_parameters():
            grad = parameter.grad
            if grad is None:
                continue
            grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            part = ".".join(name.split(".")[: self.depth])
            sizes = (grad.coalesce().values() if grad.is_sparse else grad).abs().double()
            for key in {"", part} if sizes.numel() else ():
                norm, peak = sizes.square().sum(), sizes.max()
                square[key] = square.get(key, 0) + norm
                largest[key] = torch.maximum(largest[key], peak) if key in largest else peak
        if not square:
            return {}
        found = torch.stack([torch.stack([square[key].sqrt(), largest[key]]) for key in square]).tolist()
        return {
            f"grad/{key and f'{key}/'}{what}": value
            for key, pair in zip(square, found, strict=True)
            for what, value in zip(("norm", "max"), pair, strict=True)
        }


class Predictions:
    """Writes the model's outputs for a few fixed samples after each validation, to the run and to its trackers.

    The tables are in ``<run>/tables/<name>/``. W&B shows them as tables, TensorBoard as text; MLflow stores the files.

    Args:
        predict: ``predict(model, batch)`` returns a value for each sample, by column: lists, arrays or tensors of one
            dimension. Called on every rank (a sharded model needs all of them), in eval mode and without gradients.
        batch: its argument, the same each time.
        name: of the table.
        every: epochs between two tables.
    """

    def __init__(
        self, predict: Callable[[Any, Any], Mapping[str, Any]], batch: Any, *, name: str = "predictions", every: int = 1
    ) -> None:
        if every < 1:
            raise ConfigError(f"every= must be a number of epochs, at least 1, got {every}")
        self.predict, self.batch, self.name, self.every = predict, batch, name, every

    def validation_end(self, trainer: Trainer, epoch: int, values: Mapping[str, float]) -> None:
        """Run the model and write a table."""
        import torch

        del values
        if (epoch + 1) % self.every:
            return
        model = unwrapped(trainer.model)
        with in_eval_mode(model), torch.no_grad():
            columns = self.predict(model, self.batch)
        session = trainer.session
        if session is not None and session.tracker is not None:
            session.tracker.table(session.progressed.num_steps, self.name, columns)


class Throughput:
    """Logs seconds per step (median and 95th percentile, over the ranks) and, on request, units per second and the MFU.

    Args:
        unit: the unit of the losses' weights ("tokens"): ``tokens_per_s`` is logged. Samples are in every line.
        peak_flops: peak operations per second of one device: ``mfu`` is logged, the fraction that the model uses.
        flops_per_sample: forward and backward; None counts those of this rank's third step, once, by
            ``torch.utils.flop_counter``.
    """

    def __init__(
        self, *, unit: str | None = None, peak_flops: float | None = None, flops_per_sample: float | None = None
    ) -> None:
        self.unit, self.peak_flops, self.flops_per_sample = unit, peak_flops, flops_per_sample
        self._counter: Any = None
        self._num_steps = 0
        self._last_s = self._since_s = time.perf_counter()
        self._steps_s: list[float] = []
        self._weight: Any = 0.0
        self._num_samples = 0

    def fit_start(self, trainer: Trainer) -> None:
        """Start the clock."""
        del trainer
        self._last_s = self._since_s = time.perf_counter()

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        """Record the time of a step."""
        now = time.perf_counter()
        self._steps_s.append(now - self._last_s)
        self._last_s = now
        self._weight += report.weight
        self._num_samples += report.num_samples
        self._num_steps += 1
        if self.peak_flops and self.flops_per_sample is None:
            self._count(report.num_samples / trainer.world.world_size)

    def rank_numbers(self, trainer: Trainer) -> dict[str, float]:
        """Return this rank's numbers since the last log step."""
        steps, span_s = sorted(self._steps_s), max(time.perf_counter() - self._since_s, 1e-9)
        if not steps:
            return {}
        found = {f"step_s/p{p}": steps[min(len(steps) - 1, len(steps) * p // 100)] for p in (50, 95)}
        if self.unit:
            found[f"{self.unit}_per_s"] = float(self._weight) / span_s
        if self.peak_flops and self.flops_per_sample is not None:
            mine = self._num_samples / trainer.world.world_size
            found["mfu"] = self.flops_per_sample * mine / span_s / self.peak_flops
        self._steps_s, self._weight, self._num_samples = [], 0.0, 0
        self._since_s = time.perf_counter()
        return found

    def failure(self, trainer: Trainer, error: Exception) -> None:
        """Stop the operation counter."""
        del trainer, error
        self._end_count()

    def fit_end(self, trainer: Trainer) -> None:
        """Stop the operation counter."""
        del trainer
        self._end_count()

    def _count(self, num_samples: float) -> None:
        """Count the operations between the second and the third step, after the warm-up."""
        from torch.utils.flop_counter import FlopCounterMode

        if self._num_steps == 2:
            self._counter = FlopCounterMode(display=False)
            self._counter.__enter__()
        elif self._counter is not None:
            total = self._counter.get_total_flops()
            self._end_count()
            self.flops_per_sample = total / max(num_samples, 1e-9)

    def _end_count(self) -> None:
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counter = None


class SystemMetrics:
    """Logs CPU time, memory and GPU of every rank's process, as ``system/...``; `Trainer(system_metrics=True)` adds it.

    Args:
        per_rank: a value for each rank (``system/ram_bytes/rank3``) instead of min, mean and max.
    """

    def __init__(self, *, per_rank: bool = False) -> None:
        self.per_rank = per_rank
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def rank_numbers(self, trainer: Trainer) -> dict[str, float]:
        """Return this process's numbers."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        share = (cpu_s - self._cpu_s) / max(wall_s - self._wall_s, 1e-9)
        self._cpu_s, self._wall_s = cpu_s, wall_s
        found = {"cpu_percent": 100 * share, **_memory(), **_gpu(trainer.world.device)}
        suffix = f"/rank{trainer.world.rank}" if self.per_rank else ""
        return {f"system/{name}{suffix}": value for name, value in found.items()}


def _memory() -> dict[str, float]:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return {}  # not Linux
    return {"ram_bytes": float(pages * os.sysconf("SC_PAGE_SIZE"))}


def _gpu(device: torch.device) -> dict[str, float]:
    """Return memory and utilisation of the rank's GPU; utilisation needs pynvml and is left out without it."""
    import torch

    if device.type != "cuda":
        return {}
    found = {
        "gpu_bytes": float(torch.cuda.memory_allocated(device)),
        "gpu_reserved_bytes": float(torch.cuda.memory_reserved(device)),
        "gpu_peak_bytes": float(torch.cuda.max_memory_allocated(device)),
    }
    try:
        found["gpu_percent"] = float(torch.cuda.utilization(device))
    except Exception:  # noqa: BLE001  (no pynvml, or no right to ask: torch raises what it finds)
        return found
    return found
