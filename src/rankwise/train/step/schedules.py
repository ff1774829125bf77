"""Schedules that count samples instead of steps: the same plan at any global batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.errors import ConfigError

# what torch's schedulers take from the script and, with a checkpoint's state, from the checkpoint instead
_SETTINGS = {"total_steps", "total_iters", "T_max", "T_0", "T_mult", "eta_min", "step_size", "gamma", "milestones"}


class BySamples:
    """A scheduler that is stepped once for every `per` samples that were trained on, over all ranks.

    Its plan is in units of `per` samples, so that another global batch size, even in mid-run, does not change it::

        plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=num_samples * epochs // 64)
        Trainer(..., scheduler=BySamples(plan, per=64), may_change={"batch_size"})

    `ExactStep` and `Trainer` pass the samples of each step; in a loop of your own call ``step(num_samples)``.

    Args:
        scheduler: any object with a ``step()`` without required arguments.
        per: samples per step of the scheduler.

    Raises:
        ConfigError: `per` is below 1.
    """

    def __init__(self, scheduler: Any, *, per: int) -> None:
        if per < 1:
            raise ConfigError(f"BySamples needs per >= 1 samples for one step of the scheduler, got {per}")
        self.scheduler = scheduler
        self.per = per
        self.num_samples = 0

    def step(self, num_samples: int | None = None) -> None:
        """Count the samples of an optimizer step (default `per`); step the scheduler when due."""
        before = self.num_samples // self.per
        self.num_samples += self.per if num_samples is None else num_samples
        for _ in range(self.num_samples // self.per - before):
            self.scheduler.step()

    def get_last_lr(self) -> list[float]:
        """Return the learning rates that the scheduler set last."""
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the samples so far and the scheduler's own state."""
        return {"num_samples": self.num_samples, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore both."""
        self.num_samples = int(state["num_samples"])
        self.scheduler.load_state_dict(state["scheduler"])


def plan_of(scheduler: Any) -> dict[str, Any]:
    """Return the settings of torch's schedulers by name, without what their steps change; none of other schedulers."""
    if isinstance(scheduler, BySamples):
        return plan_of(scheduler.scheduler)
    if type(scheduler).__module__ != "torch.optim.lr_scheduler":
        return {}
    kind = type(scheduler).__name__
    plan = {f"{kind}.{name}": value for name, value in vars(scheduler).items() if name.lstrip("_") in _SETTINGS}
    for index, inner in enumerate(getattr(scheduler, "_schedulers", ())):
        plan |= {f"{kind}[{index}].{name}": value for name, value in plan_of(inner).items()}
    return plan


def step_schedule(scheduler: Any, num_samples: int) -> None:
    """Step a scheduler after an optimizer step over `num_samples` samples."""
    if isinstance(scheduler, BySamples):
        scheduler.step(num_samples)
    else:
        scheduler.step()
