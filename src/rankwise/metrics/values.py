"""`Sum`, `Mean`, `Max`, `Min`: accumulate here, reduce later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from rankwise.errors import CheckpointError
from rankwise.metrics.amounts import extreme, weighted_sum
from rankwise.metrics.host import is_tensor, to_host

__all__ = ["Max", "Mean", "Min", "Sum"]

_OF_VALUES = ("ints", "floats", "rest")
_OF_WEIGHTS = ("weight_ints", "weight_floats", "weight_rest")


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
        """Return this rank's sum on its device: ``{"ints", "floats", "rest"}``; floats is None if none were added."""
        return self._total.cells()

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sum as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a sum."""
        _check_state(self, state)
        self._total = _Total.of([state])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sum of sums."""
        return _Total.of(states).cells()

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return an int if only integers were added, else a float."""
        return _Total.of([state]).read()


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
        """Return this rank's sums on their device: the cells of `Sum`, and those of the weights as ``weight_...``."""
        return self._total.cells() | self._weight.cells(_OF_WEIGHTS)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load sums."""
        _check_state(self, state)
        self._total, self._weight = _Total.of([state]), _Total.of([state], _OF_WEIGHTS)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sums of several ranks' sums."""
        return _Total.of(states).cells() | _Total.of(states, _OF_WEIGHTS).cells(_OF_WEIGHTS)

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the mean, a float."""
        weight = _Total.of([state], _OF_WEIGHTS).read()
        return _Total.of([state]).read() / weight if weight else math.nan


class _Extreme:
    """Common base of `Max` and `Min`: the best integer and the best float, each with whether there was one."""

    scope: Literal["reduced"] = "reduced"
    _largest: ClassVar[bool]

    def __init__(self) -> None:
        self.reset()

    def update(self, value: Any, weight: Any = 1) -> None:
        """Include `value`. Arguments as in `Sum.update`; a weight of 0 excludes an element, others have no effect."""
        self._add(*extreme(value, weight, largest=self._largest))

    def reset(self) -> None:
        """Clear the stored extreme."""
        self._cells: dict[str, Any] = {"ints": 0, "ints_seen": False, "floats": 0.0, "floats_seen": False}

    def partial(self) -> dict[str, Any]:
        """Return this rank's best integer and float on their device, and whether there are any."""
        return dict(self._cells)

    def state_dict(self) -> dict[str, Any]:
        """Return the same as Python numbers; synchronises with the device."""
        return to_host(self._cells)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load an extreme."""
        _check_state(self, state)
        self._cells = self.merge_states([state])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the best of several partials."""
        best = type(self)()
        for state in states:
            for kind in ("ints", "floats"):
                best._add(state[kind], state[f"{kind}_seen"])  # noqa: SLF001
        return best.partial()

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the best element: an int if it was added as one."""
        found = [state[kind] for kind in ("ints", "floats") if state[f"{kind}_seen"]]
        if not found or any(math.isnan(value) for value in found):
            return math.nan
        best: float | int = max(found) if self._largest else min(found)
        return best

    def _add(self, value: Any, seen: Any) -> None:
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


class Max(_Extreme):
    """Largest element of all updates; NaN if one was NaN, or without updates."""

    _largest = True


class Min(_Extreme):
    """Smallest element of all updates; NaN if one was NaN, or without updates."""

    _largest = False


class _Total:
    """Separate sums of integers and floats, so that integers stay exact. Cells are Python numbers or 0-d tensors.

    Python floats are added with Neumaier's compensation (Z. Angew. Math. Mech. 54, 1974): `rest` holds what rounding
    took from `floats`. Without it ten million equal numbers are off by 1e-10. Tensors on a device are added plainly.
    """

    __slots__ = ("floats", "ints", "rest")

    def __init__(self) -> None:
        self.ints: Any = 0
        self.floats: Any = None
        self.rest = 0.0

    @classmethod
    def of(cls, states: Sequence[Mapping[str, Any]], names: tuple[str, str, str] = _OF_VALUES) -> _Total:
        """Return the sum of states; those of earlier versions lack the rest."""
        total, (ints, floats, rest) = cls(), names
        for state in states:
            total.ints = total.ints + state[ints]
            if state[floats] is not None:
                total.add(state[floats])
                total.rest += state.get(rest, 0.0)
        return total

    def add(self, amount: Any) -> None:
        held = self.floats
        if type(held) is type(amount) is float:
            total = self.floats = held + amount
            self.rest += (held - total) + amount if abs(held) >= abs(amount) else (amount - total) + held
        elif _is_float(amount):
            self.floats = amount if held is None else held + amount
        else:
            self.ints = self.ints + amount

    def cells(self, names: tuple[str, str, str] = _OF_VALUES) -> dict[str, Any]:
        return dict(zip(names, (self.ints, self.floats, self.rest), strict=True))

    def read(self) -> float | int:
        if self.floats is None:
            return self.ints  # type: ignore[no-any-return]
        # a sum that overflowed, or met NaN, has no rest
        return self.ints + (self.floats + self.rest if math.isfinite(self.floats) else self.floats)  # type: ignore[no-any-return]


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if is_tensor(value) else isinstance(value, float)


def _check_state(metric: Any, state: Mapping[str, Any]) -> None:
    wanted = sorted(type(metric)().partial())
    if sorted({*state} | {name for name in wanted if name.endswith("rest")}) != wanted:  # earlier versions lack it
        raise CheckpointError(
            f"a state of {type(metric).__name__} holds {', '.join(wanted)}; got {', '.join(sorted(state))}: it belongs "
            "to another metric"
        )
