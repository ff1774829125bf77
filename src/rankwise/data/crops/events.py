"""What a consumer may name as the end of its work on a batch, and what to do with memory until then."""

from __future__ import annotations

from collections import deque
from typing import Any

from rankwise.data.crops.exceptions import InvalidArgument
from rankwise.data.feed.lease import Done, done_of
from rankwise.errors import ConfigError

__all__ = ["Parked", "waitable"]


def waitable(event: Any) -> Done | None:
    """Return something to wait for: an event itself, or what a stream has been given to do so far.

    Args:
        event: event or stream of torch or CuPy, handle of a CUDA stream as an int, a JAX array (waited for until it is
            computed), or None.

    Raises:
        InvalidArgument: it is none of these, or a handle on a machine without CUDA.
    """
    if event is None:
        return None
    if isinstance(event, int) and not isinstance(event, bool):
        event = _stream_of(event)
    if hasattr(event, "record_event"):  # a stream of torch
        event = event.record_event()
    elif hasattr(event, "wait_event") and hasattr(event, "record"):  # a stream of CuPy
        event = event.record()
    try:
        return done_of(event)
    except ConfigError as error:
        raise InvalidArgument(
            "event= is an event or stream of torch or CuPy, the handle of a stream, or a JAX array; got "
            f"{type(event).__name__}"
        ) from error


def _stream_of(handle: int) -> Any:
    import torch

    if not torch.cuda.is_available():
        raise InvalidArgument(f"event={handle} is the handle of a CUDA stream, and there is no CUDA device here")
    return torch.cuda.ExternalStream(handle)  # type: ignore[no-untyped-call]


class Parked:
    """Things that must live until an event has happened."""

    def __init__(self) -> None:
        self._things: deque[tuple[Done, object]] = deque()

    def __len__(self) -> int:
        return len(self._things)

    def park(self, until: Done, thing: object) -> None:
        """Keep a thing until an event."""
        self._things.append((until, thing))

    def sweep(self) -> None:
        """Forget the things whose event has happened; those of events that cannot be asked are waited for."""
        while self._things:
            event = self._things[0][0]
            query = getattr(event, "query", None)
            if query is None:
                event.synchronize()
            elif not query():
                return
            self._things.popleft()
