"""Whether it is known what decides the batches of a sampler's passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rankwise.data.contract import JSON

__all__ = ["known_settings"]


class _HasSettings(Protocol):
    def pass_settings(self) -> Mapping[str, JSON] | None: ...


def known_settings(sampler: _HasSettings) -> Mapping[str, JSON] | None:
    """Return the settings of a sampler, None where they are not known.

    A class that inherits them and draws in its own way has settings of its own, which it would have to tell as well.
    """
    classes = type(sampler).__mro__
    telling, drawing = (
        next(place for place, one in enumerate(classes) if name in vars(one)) for name in ("pass_settings", "_sample")
    )
    return sampler.pass_settings() if telling <= drawing else None
