"""From what a user names to samples: places and collections become a source, and a source becomes draws of it.

An order is arithmetic and knows no stores. The room that knows some says so here when it is imported: `add_opener`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rankwise.data.contract import BaseSamples, not_drawn
from rankwise.errors import ConfigError

__all__ = ["Opener", "add_opener", "opened_samples"]

Opener: TypeAlias = Callable[[Any], Any]

_OPENERS: list[Opener] = []


def add_opener(opener: Opener) -> None:
    """Let orders be made of more than numbers and sources.

    Args:
        opener: returns a `Source` of what it knows, None of what it does not.
    """
    if opener not in _OPENERS:
        _OPENERS.append(opener)


def opened_samples(samples: Any, draw: Mapping[str, Any]) -> Any:
    """Return samples that can be counted: a source of what an opener knows, drawn if that is asked for.

    Args:
        samples: what the user passed to an order.
        draw: arguments of the source's ``drawn``; empty = as they are.

    Raises:
        ConfigError: nobody opens this, or its samples cannot be drawn.
    """
    found = next((source for opener in _OPENERS if (source := opener(samples)) is not None), samples)
    if isinstance(found, (str, os.PathLike)):
        raise ConfigError(
            f"Order wants samples, got the place {os.fspath(found)!r}: `import rankwise.data.rows` opens AnnData "
            "stores and collections; of others pass the source, or the number of samples"
        )
    if not draw:
        return found
    if not isinstance(found, BaseSamples):
        raise ConfigError(not_drawn(draw, found))
    return found.drawn(**draw)
