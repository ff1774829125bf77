"""Wait until rank 0 listens, so that torch's store client connects at its first attempt."""

from __future__ import annotations

import socket
import time

__all__ = ["await_listener"]

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.002, 0.05
_CONNECT_S = 1.0


def await_listener(host: str, port: int, limit_s: float) -> None:
    """Return once something listens there, or after the limit; nothing is sent.

    If torch's TCPStore client starts before the server, it pauses at least half a second before it tries again. With
    ranks that start together this happens in every fifth start. Only a refused connection is tried again; other errors
    (an unknown name, a filtered port) are left to torch.

    Args:
        host: host of rank 0.
        port: port of its store.
        limit_s: seconds to wait; torch has its own limit afterwards.
    """
    deadline, pause = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while True:
        try:
            with socket.create_connection((host, port), timeout=min(_CONNECT_S, limit_s)) as found:
                if found.getsockname() != found.getpeername():  # else it connected to itself
                    return
        except ConnectionRefusedError:
            pass
        except OSError:
            return
        if time.monotonic() + pause > deadline:
            return
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE_S)
