"""How what was opened travels to another process: without the catalogue that it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rankwise.data.store.meta.tree import STORES

__all__ = ["set_state", "state_of"]


def state_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass but for `nodes`; to be its ``__getstate__``."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.name != "nodes"}


def set_state(value: Any, state: Mapping[str, Any]) -> None:
    """Fill a dataclass in; what it opens later is read from the stores. To be its ``__setstate__``."""
    for name, part in {**state, "nodes": STORES}.items():
        object.__setattr__(value, name, part)
