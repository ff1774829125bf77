"""`Sum`, `Mean`, `Max`, `Min`: accumulate here, reduce later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from rankwise.errors import CheckpointError
from rankwise.metrics.amounts import extreme, weighted_sum
from rankwise.metrics.host import is_tensor, to_host

_WEIGHT = "weight_"


class Sum:
    """Sum of value x weight over all updates; exact for integers, 0 without updates.

    Integers and floats are added separately, so that integers stay exact. Python floats are added with Neumaier's
    compensation (Z. Angew. Math. Mech. 54, 1974): a rest holds what rounding took from the sum. Without it ten million
    equal numbers are off by 1e-10. Tensors on a device are added plainly.
    """

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self.reset()

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
        self._add(value if plain else weighted_sum(value, weight)[0])

    def reset(self) -> None:
        """Clear the accumulated values."""
        self._ints: Any = 0
        self._floats: Any = None
        self._rest = 0.0

    def partial(self) -> dict[str, Any]:
        """Return this rank's sum on its device: ``{"ints", "floats", "rest"}``; floats is None if none were added."""
        return {"ints": self._ints, "floats": self._floats, "rest": self._rest}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sum as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a sum."""
        _check_state(self, state)
        self.reset()
        self._include(state)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sum of sums."""
        return _sum_of(states).partial()

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return an int if only integers were added, else a float."""
        ints, floats = state["ints"], state["floats"]
        if floats is None:
            return ints  # type: ignore[no-any-return]
        # a sum that overflowed, or met NaN, has no rest
        return ints + (floats + state.get("rest", 0.0) if math.isfinite(floats) else floats)  # type: ignore[no-any-return]

    def _add(self, amount: Any) -> None:
        held = self._floats
        if type(held) is type(amount) is float:
            total = self._floats = held + amount
            self._rest += (held - total) + amount if abs(held) >= abs(amount) else (amount - total) + held
        elif _is_float(amount):
            self._floats = amount if held is None else held + amount
        else:
            self._ints = self._ints + amount

    def _include(self, state: Mapping[str, Any]) -> None:
        """Add another sum; those of earlier versions lack the rest."""
        self._ints = self._ints + state["ints"]
        if state["floats"] is not None:
            self._add(state["floats"])
            self._rest += state.get("rest", 0.0)


class Mean:
    """Weighted mean over all updates: sum of value x weight divided by sum of weight; NaN without updates."""

    scope: Literal["reduced"] = "reduced"

    def __init__(self) -> None:
        self.reset()

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
        self._total._add(total)  # noqa: SLF001
        self._weight._add(weight)  # noqa: SLF001

    def reset(self) -> None:
        """Clear the accumulated values."""
        self._total, self._weight = Sum(), Sum()

    def partial(self) -> dict[str, Any]:
        """Return this rank's sums on their device: the cells of `Sum`, and those of the weights as ``weight_...``."""
        return _both(self._total, self._weight)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's sums as Python numbers; synchronises with the device."""
        return to_host(self.partial())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load sums."""
        _check_state(self, state)
        self._total, self._weight = _sum_of([state]), _sum_of([_of_weight(state)])

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the sums of several ranks' sums."""
        return _both(_sum_of(states), _sum_of(map(_of_weight, states)))

    def read_state(self, state: Mapping[str, Any]) -> float | int:
        """Return the mean, a float."""
        weight = self._weight.read_state(_of_weight(state))
        return self._total.read_state(state) / weight if weight else math.nan


def _sum_of(states: Iterable[Mapping[str, Any]]) -> Sum:
    total = Sum()
    for state in states:
        total._include(state)  # noqa: SLF001
    return total


def _both(total: Sum, weight: Sum) -> dict[str, Any]:
    return total.partial() | {_WEIGHT + name: cell for name, cell in weight.partial().items()}


def _of_weight(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of the weights from a state of `Mean`."""
    return {name.removeprefix(_WEIGHT): cell for name, cell in state.items() if name.startswith(_WEIGHT)}


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


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if is_tensor(value) else isinstance(value, float)


def _check_state(metric: Any, state: Mapping[str, Any]) -> None:
    wanted = sorted(type(metric)().partial())
    if sorted({*state} | {name for name in wanted if name.endswith("rest")}) != wanted:  # earlier versions lack it
        raise CheckpointError(
            f"a state of {type(metric).__name__} holds {', '.join(wanted)}; got {', '.join(sorted(state))}: it belongs "
            "to another metric"
        )
