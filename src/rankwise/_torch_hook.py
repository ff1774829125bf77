"""What `import torch` calls of us: an entry point of the group "torch.backends", which torch (2.5 on) runs at its end.

It lets one variable, or `rankwise run`, watch the collectives of a script that never imports rankwise. Nothing happens
in any other process.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

_PARAMETERS = ("backend", "init_method", "timeout", "world_size", "rank", "store")  # of `init_process_group`, in order
_LISTENER_S = 10.0  # for rank 0 to listen; torch waits afterwards, too


def autoload() -> None:
    """Look at the process groups that this process will make, if a launcher of ours or RANKWISE_WATCH asks for it."""
    if "RANKWISE_WATCH" not in os.environ and "RANKWISE_VITALS" not in os.environ:
        return
    try:
        _follow_groups()
    except Exception as error:  # noqa: BLE001  (torch would refuse to be imported)
        print(f"rankwise cannot watch this process: {error!r}", file=sys.stderr)  # noqa: T201


def _follow_groups() -> None:
    """Begin to watch once `init_process_group` has made the group; before that there is nobody to wait for."""
    import torch.distributed as front

    if not front.is_available():
        return
    module = sys.modules["torch.distributed.distributed_c10d"]
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        _await_rank_0(*args, **kwargs)
        result = original(*args, **kwargs)
        from rankwise.diagnose.watch import watch_if_asked

        watch_if_asked()
        return result

    for holder in (module, front):
        holder.init_process_group = init_process_group  # type: ignore[attr-defined]


def _await_rank_0(*args: Any, **kwargs: Any) -> None:
    """Let a rank that `rankwise run` has started come to the store no sooner than rank 0 serves it.

    Args:
        *args: of `init_process_group`.
        **kwargs: of `init_process_group`.
    """
    given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    by_variables = given.get("store") is None and given.get("init_method") in (None, "env://")
    rank = str(given.get("rank", -1))
    if rank == "-1":
        rank = os.environ.get("RANK", "0")
    if "RANKWISE_VITALS" in os.environ and by_variables and rank != "0" and host and port.isdecimal():
        from rankwise.world.rendezvous.addresses import await_listener

        await_listener(host, int(port), _LISTENER_S)
