"""Waiting until rank 0 listens, so that torch's store is reached at the first attempt."""

from __future__ import annotations

import socket
import time

__all__ = ["await_listener"]

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.002, 0.05
_CONNECT_S = 1.0


def await_listener(host: str, port: int, limit_s: float) -> None:
    """Return once something listens there, and in any case when the limit is over; nothing is sent.

    A client of torch's TCPStore that comes before the server pauses for half a second and more until it tries again,
    and of ranks that start together one comes first in every fifth start. What is wrong otherwise (a name that is not
    known, a port that is filtered) is left to torch: only a refused connection is tried again.

    Args:
        host: of rank 0.
        port: of its store.
        limit_s: seconds to wait; torch has its own limit afterwards.
    """
    deadline, pause = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while True:
        try:
            with socket.create_connection((host, port), timeout=min(_CONNECT_S, limit_s)) as found:
                if found.getsockname() != found.getpeername():  # else the system gave us that very port
                    return
        except ConnectionRefusedError:
            pass
        except OSError:
            return
        if time.monotonic() + pause > deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE_S)
