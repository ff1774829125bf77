"""Copy numbers from devices to the host, with one transfer per device and dtype."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rankwise.metrics.metric import Metric


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_host(cells: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the mapping with every 0-d tensor as a Python number. Only here do metrics synchronise with a device."""
    found, waiting = dict(cells), dict[Any, list[Any]]()
    for key, value in cells.items():
        if is_tensor(value):
            waiting.setdefault((value.device, value.dtype), []).append(key)
    for keys in waiting.values():
        import torch

        numbers = torch.stack([cells[key] for key in keys]).tolist()
        found.update(zip(keys, numbers, strict=True))
    return found


def partials_on_host(metrics: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Return the partials by name with their numbers on the host, copied together."""
    cells = {(name, part): cell for name, metric in metrics.items() for part, cell in metric.partial().items()}
    partials: dict[str, dict[str, Any]] = {name: {} for name in metrics}
    for (name, part), number in to_host(cells).items():
        partials[name][part] = number
    return partials
