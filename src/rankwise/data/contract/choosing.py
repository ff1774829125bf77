"""Some of the fields of a source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rankwise.errors import ConfigError

__all__ = ["choose_fields"]


def choose_fields(there: Iterable[str], fields: Sequence[str], *, of: str = "source") -> tuple[str, ...]:
    """Return the names of the fields that were asked for, in the order in which the source has them.

    Args:
        there: names of all.
        fields: names of those that are wanted.
        of: what has them, for the message.

    Raises:
        ConfigError: there is no such field, or none is wanted.
    """
    names = tuple(there)
    if not fields or any(name not in names for name in fields):
        raise ConfigError(f"the {of} has the fields {', '.join(names)}; asked for {list(fields)}")
    return tuple(name for name in names if name in fields)
