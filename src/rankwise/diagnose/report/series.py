"""Compress curves: a hundred thousand steps become a few hundred ranges, in which spikes stay visible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

_RESERVED = {"step", "epoch", "attempt", "time", "event", "nonfinite", "superseded", "restored_step"}
_MOST_ODD = 20


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number and no boolean."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def collect(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of each metric, by step; tags and other text are ignored.

    If no line has a rate, compute ``steps_per_s`` from the times of the lines.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        step = int(line["step"])
        for name, value in line.items():
            if name not in _RESERVED and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, []).append((step, _as_float(value)))
    if not any(name.endswith("_per_s") for name in found):
        rates = _rates(lines)
        if rates:
            found["steps_per_s"] = rates
    for points in found.values():
        points.sort(key=lambda point: point[0])
    return found


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if value > 0 else -math.inf


def _rates(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    rates: list[tuple[int, float]] = []
    before: tuple[object, int, float] | None = None
    for line in lines:
        attempt, step, now = line.get("attempt"), int(line["step"]), line.get("time")
        if not is_number(now):
            continue
        if before is not None and attempt == before[0] and step > before[1] and now > before[2]:
            rates.append((step, (step - before[1]) / (now - before[2])))
        if before is None or (attempt, step) != before[:2]:
            before = attempt, step, now
    return rates


def envelope(points: Sequence[tuple[int, float]], most: int) -> dict[str, Any]:
    """Return a curve of at most `most` ranges: start, mean, lowest and highest value of each.

    Non-finite values are listed under ``odd``. A curve with few points keeps them, with gaps at non-finite values.

    Args:
        points: (step, value), by step.
        most: maximum number of ranges.

    Returns:
        ``{"x", "mean", "lo", "hi", "last", "odd": [[step, kind], ...], "num_odd", "n"}``; lo and hi are None if every
        range is one point. All numbers are finite, for JSON.
    """
    odd = [[step, str(value)] for step, value in points if not math.isfinite(value)]
    finite = [point for point in points if math.isfinite(point[1])]
    record: dict[str, Any] = {"odd": odd[:_MOST_ODD], "num_odd": len(odd), "n": len(points)}
    record["last"] = points[-1][0] if points else 0
    if len(points) <= most:
        means = [_short(value) if math.isfinite(value) else None for _, value in points]
        return {**record, "x": [step for step, _ in points], "mean": means, "lo": None, "hi": None}
    cuts = [round(index * len(finite) / most) for index in range(most + 1)]
    ranges = [finite[begin:end] for begin, end in itertools.pairwise(cuts) if end > begin]
    values = [[value for _, value in part] for part in ranges]
    return {
        **record,
        "x": [part[0][0] for part in ranges],
        # divide first: the sum of values near the largest float would overflow
        "mean": [_short(math.fsum(value / len(part) for value in part)) for part in values],
        "lo": [_short(min(part)) for part in values],
        "hi": [_short(max(part)) for part in values],
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}") if abs(value) < 1e308 else math.copysign(1e308, value)


def summary(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return last, lowest and highest finite value as (step, value) or None, and the number of non-finite values."""
    finite = [point for point in points if math.isfinite(point[1])]
    return {
        "last": points[-1] if points else None,
        "low": min(finite, key=lambda point: point[1], default=None),
        "high": max(finite, key=lambda point: point[1], default=None),
        "num_odd": len(points) - len(finite),
    }
