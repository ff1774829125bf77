"""`Sum`, `Mean`, `Max`, `Min`: accumulate here, reduce later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from rankwise.errors import CheckpointError
from rankwise.metrics.amounts import extreme, weighted_sum
from rankwise.metrics.host import is_tensor, to_host

__all__ = ["Max", "Mean", "Min", "Sum"]


class Sum:
    """Sum of value x weight over all updates; exact for integers, 0 without updates."""

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._total = _Total()

    def update(self, value: Any, weight: Any = 1) -> None:
        """Add `value`. No communication, no device synchronisation.

        Args:
            value: number, tensor or array; all its elements count. It may be empty.
            weight: one weight, one per sample (leading axes of `value`) or one per element; elements of weight 0 are
                ignored, even NaN.

        Raises:
            ConfigError: not numbers, or incompatible shapes.
        """
        # a training step adds such numbers, several times
        plain = type(value) in (int, float) and type(weight) in (int, float) and weight == 1
        self._total.add(value if plain else weighted_sum(value, weight)[0])

    def reset(self) -> None:
        """Clear the accumulated values."""
        self._total = _Total()

    def partial(self) -> dict[str, Any]:
        """Return this rank's sum on its device: ``{"ints", "floats"}``; floats is None if none were added."""
        return {"ints": self._total.ints, "floats": self._total.floats}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sum as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a sum."""
        _check_state(self, state)
        self._total = _Total(state["ints"], state["floats"])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sum of sums."""
        return {"ints": sum(state["ints"] for state in states), "floats": _add(state["floats"] for state in states)}

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return an int if only integers were added, else a float."""
        return _read(state["ints"], state["floats"])


class Mean:
    """Weighted mean over all updates: sum of value x weight divided by sum of weight; NaN without updates."""

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self._total = _Total()
        self._weight = _Total()

    def update(self, value: Any, weight: Any = 1) -> None:
        """Add `value`. No communication, no device synchronisation.

        Weight a batch's mean loss with its number of samples: ``update(loss, weight=len(batch))``.

        Args:
            value: number, tensor or array; all its elements count. It may be empty.
            weight: one weight (for each element), one per sample (leading axes of `value`) or one per element; elements
                of weight 0 are ignored, even NaN.

        Raises:
            ConfigError: not numbers, or incompatible shapes.
        """
        total, weight = weighted_sum(value, weight)
        self._total.add(total)
        self._weight.add(weight)

    def reset(self) -> None:
        """Clear the accumulated values."""
        self._total, self._weight = _Total(), _Total()

    def partial(self) -> dict[str, Any]:
        """Return this rank's sums on their device: ``{"ints", "floats", "weight_ints", "weight_floats"}``."""
        sums = {"ints": self._total.ints, "floats": self._total.floats}
        return sums | {"weight_ints": self._weight.ints, "weight_floats": self._weight.floats}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load sums."""
        _check_state(self, state)
        self._total = _Total(state["ints"], state["floats"])
        self._weight = _Total(state["weight_ints"], state["weight_floats"])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sums of several ranks' sums."""
        merged: dict[str, Any] = {name: sum(state[name] for state in states) for name in ("ints", "weight_ints")}
        return merged | {name: _add(state[name] for state in states) for name in ("floats", "weight_floats")}

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the mean, a float."""
        weight = _read(state["weight_ints"], state["weight_floats"])
        return _read(state["ints"], state["floats"]) / weight if weight else math.nan


class _Extreme:
    """Common base of `Max` and `Min`."""

    scope: Literal["reduced"] = "reduced"
    _largest: ClassVar[bool]

    def __init__(self) -> None:
        self._best = _Best(largest=self._largest)

    def update(self, value: Any, weight: Any = 1) -> None:
        """Include `value`. Arguments as in `Sum.update`; a weight of 0 excludes an element, others have no effect."""
        self._best.add(*extreme(value, weight, largest=self._largest))

    def reset(self) -> None:
        """Clear the stored extreme."""
        self._best = _Best(largest=self._largest)

    def partial(self) -> dict[str, Any]:
        """Return this rank's best integer and float on their device, and whether there are any."""
        return self._best.cells()

    def state_dict(self) -> dict[str, Any]:
        """Return the same as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load an extreme."""
        _check_state(self, state)
        self._best = _Best.of([state], largest=self._largest)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the best of several partials."""
        return _Best.of(states, largest=self._largest).cells()

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the best element: an int if it was added as one."""
        return _Best.read(state, largest=self._largest)


class Max(_Extreme):
    """Largest element of all updates; NaN if one was NaN, or without updates."""

    _largest = True


class Min(_Extreme):
    """Smallest element of all updates; NaN if one was NaN, or without updates."""

    _largest = False


class _Total:
    """Separate sums of integers and floats, so that integers stay exact. Cells are Python numbers or 0-d tensors."""

    __slots__ = ("floats", "ints")

    def __init__(self, ints: Any = 0, floats: Any = None) -> None:
        self.ints = ints
        self.floats = floats

    def add(self, amount: Any) -> None:
        if _is_float(amount):
            self.floats = amount if self.floats is None else self.floats + amount
        else:
            self.ints = self.ints + amount


class _Best:
    """The best integer and the best float separately, each with a flag whether there was one."""

    __slots__ = ("_cells", "_largest")

    def __init__(self, *, largest: bool) -> None:
        self._largest = largest
        self._cells: dict[str, Any] = {"ints": 0, "ints_seen": False, "floats": 0.0, "floats_seen": False}

    @classmethod
    def of(cls, states: Sequence[Mapping[str, Any]], *, largest: bool) -> _Best:
        best = cls(largest=largest)
        for state in states:
            best.add(state["ints"], state["ints_seen"])
            best.add(state["floats"], state["floats_seen"])
        return best

    @classmethod
    def read(cls, state: Mapping[str, Any], *, largest: bool) -> float | int:
        found = [state[kind] for kind in ("ints", "floats") if state[f"{kind}_seen"]]
        if not found or any(math.isnan(value) for value in found):
            return math.nan
        best: float | int = max(found) if largest else min(found)
        return best

    def cells(self) -> dict[str, Any]:
        return dict(self._cells)

    def add(self, value: Any, seen: Any) -> None:
        kind = "floats" if _is_float(value) else "ints"
        old, old_seen = self._cells[kind], self._cells[f"{kind}_seen"]
        if old_seen is False or seen is False:
            if seen is not False:
                self._cells |= {kind: value, f"{kind}_seen": seen}
            return
        self._cells[kind] = self._better(old, value)
        self._cells[f"{kind}_seen"] = True if old_seen is True or seen is True else old_seen | seen

    def _better(self, old: Any, new: Any) -> Any:
        if not is_tensor(old) and not is_tensor(new):
            if math.isnan(old) or math.isnan(new):
                return math.nan
            return max(old, new) if self._largest else min(old, new)
        import torch

        model = old if is_tensor(old) else new
        pair = [cell if is_tensor(cell) else torch.full_like(model, cell) for cell in (old, new)]
        return torch.maximum(*pair) if self._largest else torch.minimum(*pair)


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if is_tensor(value) else isinstance(value, float)


def _add(floats: Any) -> float | None:
    there = [value for value in floats if value is not None]
    return sum(there) if there else None


def _read(ints: int, floats: float | None) -> float | int:
    return ints if floats is None else ints + floats


def _check_state(metric: Any, state: Mapping[str, Any]) -> None:
    wanted = sorted(type(metric)().partial())
    if sorted(state) != wanted:
        raise CheckpointError(
            f"a state of {type(metric).__name__} holds {', '.join(wanted)}; got {', '.join(sorted(state))}: it belongs "
            "to another metric"
        )
