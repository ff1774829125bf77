"""Copy numbers from devices to the host, with one transfer per device and dtype."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["is_tensor", "to_host"]


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_host(cells: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the mapping with every 0-d tensor as a Python number. Only here do metrics synchronise with a device."""
    found = {key: value for key, value in cells.items() if not is_tensor(value)}
    waiting: dict[Any, list[Any]] = {}
    for key, value in cells.items():
        if key not in found:
            waiting.setdefault((value.device, value.dtype), []).append(key)
    for keys in waiting.values():
        import torch

        numbers = torch.stack([cells[key] for key in keys]).tolist()
        found.update(zip(keys, numbers, strict=True))
    return {key: found[key] for key in cells}
