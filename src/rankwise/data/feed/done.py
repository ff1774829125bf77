"""What a consumer may name as the end of its work on a batch, as something to wait for."""

from __future__ import annotations

from typing import Any, Protocol

from rankwise.errors import ConfigError

__all__ = ["Done", "done_of"]


class Done(Protocol):
    """Something that will have happened, such as a CUDA event."""

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class _Computed:
    """A JAX array that is still being computed, as an event."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def query(self) -> bool:
        return bool(self._array.is_ready())

    def synchronize(self) -> None:
        self._array.block_until_ready()


def done_of(event: Any) -> Done | None:
    """Return something to wait for.

    Args:
        event: an event of torch or CuPy, or anything else with ``synchronize()``; a JAX array, which is waited for
            until it is computed; or None.

    Raises:
        ConfigError: it is none of these.
    """
    if event is None or callable(getattr(event, "synchronize", None)):
        done: Done | None = event
        return done
    if callable(getattr(event, "block_until_ready", None)):
        return _Computed(event)
    raise ConfigError(
        f"release(event) takes an event (with synchronize()) or a JAX array, got {type(event).__name__}: the batch is "
        "released, and its memory is used again when nobody has a view of it"
    )
