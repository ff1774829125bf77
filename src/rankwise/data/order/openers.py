"""Opens user input as samples: a path or a collection becomes a source, and a source becomes draws of it.

An order is arithmetic and knows no stores. A package that can open stores registers on import with `add_opener`.
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
    """Allow orders over more than numbers and sources.

    Args:
        opener: returns a `Source` for input that it supports, else None.
    """
    if opener not in _OPENERS:
        _OPENERS.append(opener)


def opened_samples(samples: Any, draw: Mapping[str, Any]) -> Any:
    """Return samples that can be counted: opens them if an opener supports them, and draws from them if asked to.

    Args:
        samples: what the user passed to an order.
        draw: arguments for the source's ``drawn``; empty = do not draw.

    Raises:
        ConfigError: no opener supports this path, or the samples cannot be drawn.
    """
    found = next((source for opener in _OPENERS if (source := opener(samples)) is not None), samples)
    if isinstance(found, (str, os.PathLike)):
        raise ConfigError(
            f"Order needs samples, got the path {os.fspath(found)!r}: `import rankwise.data.rows` opens AnnData "
            "stores and collections; for other data pass the source or the number of samples"
        )
    if not draw:
        return found
    if not isinstance(found, BaseSamples):
        raise ConfigError(not_drawn(draw, found))
    return found.drawn(**draw)
