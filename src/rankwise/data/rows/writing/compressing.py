"""Codecs as users give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rankwise.errors import ConfigError

__all__ = ["codecs_of"]


def codecs_of(given: Any, argument: str) -> tuple[Any, ...] | None:
    """Return codecs of Zarr, of one or several; None stays None.

    Args:
        given: what the user passed.
        argument: its name, for the message.

    Raises:
        ConfigError: it is something else, such as the name of a codec.
    """
    if given is None:
        return None
    found = () if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not found or not all(hasattr(codec, "to_dict") for codec in found):
        raise ConfigError(
            f"{argument}= is a list of Zarr's codecs, such as [zarr.codecs.ZstdCodec(level=3)]; got {given!r}"
        )
    return found
