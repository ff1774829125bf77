"""Small checks of parsed JSON: exactly as expected, or `UnusualError`."""

from __future__ import annotations

from typing import Any

__all__ = ["UnreadableError", "UnusualError", "named", "positive_ints", "subset"]


class UnusualError(Exception):
    """A part of a document is not exactly what we know: zarr-python decides what it means. Never leaves this room.

    The message is short, such as "gzip" or "big-endian": it becomes `ChunkCodec.why`.
    """


class UnreadableError(Exception):
    """A document makes no sense to anybody; becomes a `DataError` that names the place. Never leaves this room."""


def is_int(value: Any) -> bool:
    """Whether a parsed JSON value is an integer (True and False are not)."""
    return type(value) is int


def positive_ints(value: Any, what: str, *, least: int = 1) -> tuple[int, ...]:
    """Return a list of integers as a tuple; all of them at least `least`.

    Raises:
        UnusualError: it is anything else.
    """
    if type(value) is not list or not all(is_int(item) and item >= least for item in value):
        raise UnusualError(f"{what} {value!r}")
    return tuple(value)


def named(value: Any, what: str) -> tuple[str, dict[str, Any]]:
    """Return name and configuration of {"name": ..., "configuration": {...}}; a missing configuration is empty.

    Raises:
        UnusualError: it is anything else, or says more.
    """
    if type(value) is not dict or type(value.get("name")) is not str or not value.keys() <= {"name", "configuration"}:
        raise UnusualError(f"{what} {value!r}")
    config = value.get("configuration", {})
    if type(config) is not dict:
        raise UnusualError(f"{what} {value['name']} with the configuration {config!r}")
    return value["name"], config


def subset(config: dict[str, Any], allowed: set[str], what: str) -> None:
    """Check that a configuration has no keys but the allowed ones.

    Raises:
        UnusualError: it has.
    """
    if not config.keys() <= allowed:
        raise UnusualError(f"{what} with {', '.join(sorted(config.keys() - allowed))}")
