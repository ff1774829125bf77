"""What made a run, as JSON: checked when it is recorded, compared when it is resumed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rankwise.data.contract import JSON
from rankwise.errors import ConfigError

__all__ = ["as_json", "describe_differences"]

_ABSENT = object()


def as_json(value: Any, *, what: str, place: str = "") -> JSON:
    """Return `value` as it will be read back: tuples become lists, all else must already be JSON.

    Args:
        value: mapping, list, tuple, string, finite number, bool or None.
        what: what is converted, for the message.
        place: dotted key of `value` inside it.

    Raises:
        ConfigError: something is not JSON; the message names its key.
    """
    where = place or "the top level"
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{what}: {where} is {value}, which JSON cannot hold; use None or a string")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{what}: {where} has the key {key!r}; JSON keys are strings")
        return {key: as_json(item, what=what, place=f"{place}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item, what=what, place=f"{place}[{index}]") for index, item in enumerate(value)]
    raise ConfigError(
        f"{what}: {where} is a {type(value).__name__}; JSON holds numbers, strings, bools, None, lists and dicts: "
        "convert it (str(...) of a path, .item() of an array)"
    )


def describe_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one line per key that differs, ``key: old -> new``, dotted and sorted; empty if they are equal."""
    before, after = _flat(old), _flat(new)
    lines = []
    for key in sorted({*before, *after}):
        left, right = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if _show(left) != _show(right):
            lines.append(f"{key}: {_show(left)} -> {_show(right)}")
    return lines


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _show(value: Any) -> str:
    return "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False, sort_keys=True)
