"""torchmetrics metrics in `reduce`: their states are merged here, never by their own hidden collectives."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rankwise.errors import ConfigError

# torchmetrics' own reductions, by function name.
_KNOWN = {"dim_zero_sum": "sum", "dim_zero_min": "min", "dim_zero_max": "max", "dim_zero_cat": "cat"}


def is_torchmetric(value: Any) -> bool:
    """Whether `value` is a torchmetrics metric (not a collection); does not import torchmetrics."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(value, module.Metric)


class TorchMetricAdapter:
    """A torchmetrics metric in `reduce`: exact for ranks with different numbers of samples; keeps the local state.

    Args:
        name: its name, for messages.
        metric: the metric; each state must reduce by sum, min, max or cat, or be a list that is gathered only.

    Raises:
        ConfigError: it wraps other metrics, or has a state that cannot be merged exactly.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self.metric = metric
        self._ops = _merge_ops(name, metric)

    def reset(self) -> None:
        """Reset the metric."""
        self.metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the states on the CPU; concatenate lists if the metric would do so."""
        return {state: _on_cpu(getattr(self.metric, state), op) for state, op in self._ops.items()}

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the states of several ranks, in rank order."""
        defaults = {name: _on_cpu(value, "list") for name, value in self.metric._defaults.items()}  # noqa: SLF001
        if not states:
            return defaults
        return {name: _merged(op, [state[name] for state in states]) for name, op in self._ops.items()}

    def read_state(self, state: Mapping[str, Any]) -> Any:
        """Return the metric's value for merged states: a number, or its tensors on the CPU."""
        twin = copy.deepcopy(self.metric)
        # else `compute` would gather again, in the default group
        twin._to_sync = False  # noqa: SLF001
        twin.sync_on_compute = False
        twin.reset()
        twin._to_sync = False  # noqa: SLF001
        _put(twin, state)
        return _as_numbers(twin.compute())


def _merge_ops(name: str, metric: Any) -> dict[str, str]:
    inner = [type(child).__name__ for child in metric.modules() if child is not metric and is_torchmetric(child)]
    kind = type(metric).__name__
    if inner:
        raise ConfigError(f"{name}: {kind} wraps other metrics ({', '.join(inner)}); reduce the inner metrics instead")
    ops = {}
    for state, function in metric._reductions.items():  # noqa: SLF001
        op = _KNOWN.get(getattr(function, "__name__", ""))
        if function is None and isinstance(metric._defaults[state], list):  # noqa: SLF001
            op = "list"  # items may have different shapes: make a list, do not concatenate
        if op is None:
            how = getattr(function, "__name__", str(function)).removeprefix("dim_zero_")
            raise ConfigError(
                f"{name}: the state {state!r} of {kind} reduces by {how}, which is not exact over ragged ranks; "
                "supported are sum, min, max, cat and lists. Gather its inputs with gather_rows and compute on the "
                "main rank"
            )
        ops[state] = op
    if not ops:
        raise ConfigError(f"{name}: {kind} has no states to reduce")
    return ops


def _on_cpu(value: Any, op: str) -> Any:
    if not isinstance(value, list):
        return value.detach().cpu()
    if op == "list":
        return [item.detach().cpu() for item in value]
    import torch

    rows = [_rows(item.detach().cpu()) for item in value]
    return [torch.cat(rows)] if rows else []


def _rows(value: Any) -> Any:
    return value.reshape(1) if value.ndim == 0 else value


def _merged(op: str, values: list[Any]) -> Any:
    import torch

    if op == "list":
        return [item for value in values for item in value]
    if op == "cat":
        rows = [_rows(row) for value in values for row in (value if isinstance(value, list) else [value])]
        return [torch.cat(rows)] if rows else []
    total = torch.stack(values)
    if op == "sum":
        return total.sum(0)
    return total.amin(0) if op == "min" else total.amax(0)


def _put(metric: Any, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        place = metric.device
        was_list = isinstance(metric._defaults[name], list)  # noqa: SLF001
        moved = [item.to(place) for item in value] if isinstance(value, list) else value.to(place)
        setattr(metric, name, moved if was_list or not isinstance(moved, list) else moved[0])
    metric._update_count = 1  # noqa: SLF001
    metric._computed = None  # noqa: SLF001


def _as_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_numbers(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_as_numbers(item) for item in value)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        return value.item() if value.ndim == 0 else value
    return value
