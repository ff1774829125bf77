"""`Metrics`: several metrics as one object, for the loop and for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rankwise.errors import CheckpointError, ConfigError
from rankwise.metrics.metric import Metric
from rankwise.metrics.reduction import reduce

if TYPE_CHECKING:
    from rankwise.world import World


class Metrics(Mapping[str, Metric]):
    """Metrics by name, as one part of a checkpoint.

    ``metrics = Metrics(loss=Mean(), correct=Sum())``, then ``metrics["loss"].update(...)``, ``metrics.reduce(world)``.

    Args:
        metrics: metrics by name.
        **more: the same as keywords.

    Raises:
        ConfigError: a value is not a `Metric`.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self, metrics: Mapping[str, Metric] | None = None, **more: Metric) -> None:
        self._metrics = {**(metrics or {}), **more}
        for name, metric in self._metrics.items():
            if not isinstance(metric, Metric):
                raise ConfigError(f"{name} is a {type(metric).__name__}; Metrics accepts Mean, Sum, Max, Min")

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def reduce(self, world: World | None = None, *, reset: bool = False) -> dict[str, Any]:
        """Return the values over all ranks; see `rankwise.metrics.reduce`. Every rank must call it."""
        return reduce(self._metrics, world, reset=reset)

    def reset(self) -> None:
        """Reset all metrics."""
        for metric in self._metrics.values():
            metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's partials by name; synchronises with the device."""
        return {name: metric.state_dict() for name, metric in self._metrics.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load partials.

        Raises:
            CheckpointError: the state has different names.
        """
        if sorted(state) != sorted(self._metrics):
            raise CheckpointError(
                f"the checkpoint has the metrics {', '.join(sorted(state))}; this run has "
                f"{', '.join(sorted(self._metrics))}"
            )
        for name, metric in self._metrics.items():
            metric.load_state_dict(state[name])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the merged partials of several ranks."""
        return {name: metric.merge_states([state[name] for state in states]) for name, metric in self._metrics.items()}
