"""Arguments of `add_adatas` as users give them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rankwise.errors import ConfigError

__all__ = ["listed", "named", "seed_of"]


def listed(sources: Any) -> list[Any]:
    """Return inputs as a list, also a single one."""
    alone = isinstance(sources, (str, os.PathLike)) or any(hasattr(sources, name) for name in ("obs_names", "attrs"))
    if not alone and not isinstance(sources, Iterable):
        raise ConfigError(f"add_adatas wants a list of paths, groups or AnnData objects, got {type(sources).__name__}")
    return [sources] if alone else list(sources)


def named(names: Iterable[str], argument: str) -> list[str]:
    """Return names as a list.

    Raises:
        ConfigError: it is one text, which would be taken for its letters.
    """
    if isinstance(names, str):
        raise ConfigError(f"{argument}= is a list of names, got the text {names!r}: write {argument}=[{names!r}]")
    return list(names)


def seed_of(rng: Any) -> int | None:
    """Return the seed of a shuffle: a number as it is, one that is drawn from a generator, None for a fresh one.

    Raises:
        ConfigError: it is something else.
    """
    if rng is None:
        return None
    if hasattr(rng, "integers"):
        return int(rng.integers(2**63))
    if not hasattr(rng, "__index__") or isinstance(rng, bool):
        raise ConfigError(
            f"rng wants a numpy.random.Generator, a whole number as seed, or None; got {type(rng).__name__}"
        )
    return int(rng)
