"""Compute the scalars to accumulate from a value and a weight: sums and extremes, on the host or on the device.

NumPy and torch share the few functions needed here, so the code is the same for both: `xp` is one of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rankwise.errors import ConfigError
from rankwise.metrics.host import is_tensor

_INT_LIMIT = 2**62


def weighted_sum(value: Any, weight: Any) -> tuple[Any, Any]:
    """Return (sum of value x weight, sum of weight) over all elements, integers exact.

    Elements of weight 0 are ignored, even NaN. Numbers, arrays and CPU tensors give Python numbers. Tensors on a device
    give 0-d tensors there (int64, float64, or float32 if the device has no float64).

    Raises:
        ConfigError: not numbers, incompatible shapes, or a negative or non-finite weight on the host.
    """
    value, weight = _plain(value, "value"), _plain(weight, "weight")
    if isinstance(value, (int, float)) and isinstance(weight, (int, float)):
        return (value * weight if weight else type(value)(0)), weight
    xp, value, weight = _together(value, weight)
    if weight.ndim == 0 and xp is np:
        weight = weight.item()
        total = _sum(xp, value)
        return (total * weight if weight else 0 * _zero(total)), value.size * weight
    weight = _aligned(xp, value, weight)
    counted = xp.where(weight != 0, value, xp.zeros_like(value))
    # on the host products of whole numbers stay exact as well
    times = int(weight.max()) if xp is np and weight.dtype.kind in "iu" and weight.size else 1
    return _sum(xp, _exact(xp, counted, times) * _exact(xp, weight)), _sum(xp, weight)


def extreme(value: Any, weight: Any, *, largest: bool) -> tuple[Any, Any]:
    """Return (largest or smallest element, whether there is one) among the elements whose weight is not 0.

    If one is NaN, the result is NaN. On a device both are 0-d tensors; if the second is False, ignore the first.

    Raises:
        ConfigError: as `weighted_sum`.
    """
    value, weight = _plain(value, "value"), _plain(weight, "weight")
    if isinstance(value, (int, float)) and isinstance(weight, (int, float)):
        return value, weight != 0
    everything = isinstance(weight, (int, float)) and weight != 0
    xp, value, weight = _together(value, weight)
    if not everything:
        weight = _aligned(xp, value, weight)
        value = xp.broadcast_to(value, weight.shape)
    if 0 in value.shape:
        return 0, False
    if everything:
        seen: Any = True
    elif xp is np:
        value, seen = value[weight != 0], bool((weight != 0).any())
        if not seen:
            return 0, False
    else:
        seen = (weight != 0).any()
        value = xp.where(weight != 0, value, xp.full_like(value, _identity(xp, value, largest=largest)))
    if xp is np:
        best = (value.max() if largest else value.min()).item()
        return (int(best) if isinstance(best, int) else float(best)), seen
    best = _exact(xp, value)
    return (best.amax() if largest else best.amin()), seen


def _plain(value: Any, what: str) -> Any:
    """Return a validated Python number, NumPy array or detached device tensor."""
    if isinstance(value, (bool, int, float)):
        value = int(value) if isinstance(value, (bool, int)) else value
    elif is_tensor(value):
        value = value.detach()
        if value.is_complex() or value.is_sparse:
            raise ConfigError(f"a metric's {what} must be a dense real tensor, got {value.dtype}, {value.layout}")
        if value.device.type == "cpu":
            value = (value.double() if value.is_floating_point() else value).numpy()
    else:
        value = np.asarray(value)
        if value.dtype.kind not in "biuf":
            raise ConfigError(
                f"a metric's {what} must be a number, tensor or array of numbers, got dtype {value.dtype}"
            )
    if what == "weight":
        _check_weight(value)
    return value


def _check_weight(weight: Any) -> None:
    if is_tensor(weight):
        return  # checking the values would synchronise with the device
    good = 0 <= weight < math.inf if isinstance(weight, (int, float)) else _all_weights_good(weight)
    if not good:
        raise ConfigError(f"a metric's weights must be finite and at least 0, got {weight!r}")


def _all_weights_good(weight: np.ndarray[Any, Any]) -> bool:
    return weight.dtype.kind in "bu" or bool(((weight >= 0) & np.isfinite(weight)).all())


def _together(value: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Return (np or torch, value, weight) with both as arrays of that library, on one device."""
    if not is_tensor(value) and not is_tensor(weight):
        return np, np.asarray(value), np.asarray(weight)
    import torch

    device = value.device if is_tensor(value) else weight.device
    # copies to the device are asynchronous; a Python number becomes a fill on the device
    return torch, _on_device(torch, value, device), _on_device(torch, weight, device)


def _on_device(torch: Any, value: Any, device: Any) -> Any:
    if isinstance(value, (int, float)):
        dtype = torch.int64 if isinstance(value, int) else _float_dtype(torch, device)
        return torch.full((), value, dtype=dtype, device=device)
    if not is_tensor(value) and value.dtype.kind == "f":
        return torch.as_tensor(value).to(dtype=_float_dtype(torch, device)).to(device, non_blocking=True)
    return torch.as_tensor(value).to(device, non_blocking=True)


def _float_dtype(torch: Any, device: Any) -> Any:
    return torch.float32 if device.type == "mps" else torch.float64


def _aligned(xp: Any, value: Any, weight: Any) -> Any:
    """Return the weight of each element: a weight with fewer axes applies to the leading axes (the samples)."""
    target = tuple(weight.shape) if value.ndim == 0 else tuple(value.shape)
    shape = tuple(weight.shape) + (1,) * max(0, len(target) - weight.ndim)
    fits = len(shape) == len(target) and all(have in (1, want) for have, want in zip(shape, target, strict=True))
    if not fits:
        raise ConfigError(
            f"a metric's weight of shape {tuple(weight.shape)} does not fit its value of shape {tuple(value.shape)}: "
            "pass one weight, one per sample (first axis), or one per element"
        )
    return xp.broadcast_to(weight.reshape(shape), target)


def _exact(xp: Any, array: Any, times: int = 1) -> Any:
    """Return the array as int64 or as the widest float of its device."""
    if xp is np:
        return array.astype(np.float64 if array.dtype.kind == "f" else object if _is_wide(array, times) else np.int64)
    return array.to(_float_dtype(xp, array.device) if array.is_floating_point() else xp.int64)


def _is_wide(array: np.ndarray[Any, Any], times: int) -> bool:
    """Whether sums of so many times these integers could overflow int64; then Python integers are used."""
    if array.dtype.kind == "b" or (array.dtype.itemsize < 8 and times == 1) or not array.size:
        return False
    return max(abs(int(array.max())), abs(int(array.min()))) * max(times, 1) * array.size >= _INT_LIMIT


def _sum(xp: Any, array: Any) -> Any:
    total = _exact(xp, array).sum()
    if xp is not np:
        return total
    return float(total) if isinstance(total, (float, np.floating)) else int(total)


def _zero(total: Any) -> Any:
    return 0.0 if isinstance(total, float) else 0


def _identity(xp: Any, value: Any, *, largest: bool) -> Any:
    """Return the identity: the value that every other element replaces."""
    if value.is_floating_point():
        return -math.inf if largest else math.inf
    if value.dtype is xp.bool:
        return not largest
    info = xp.iinfo(value.dtype)
    return info.min if largest else info.max
