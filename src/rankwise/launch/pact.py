"""The death pact on the rank's side: when the supervisor goes, however it goes, the rank goes too."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1
_CHECK_INTERVAL_S = 1.0


def die_with_parent(parent: int) -> None:
    """Make this process end as soon as its parent has.

    On Linux the kernel sends SIGKILL (asked for here, in the main thread, as the kernel ties the request to a thread);
    elsewhere a thread looks after the parent. Leaves at once if the parent is gone already.

    Args:
        parent: process id of the supervisor; this process must be its direct child.
    """
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(parent,), name="rankwise-pact", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_INTERVAL_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)
