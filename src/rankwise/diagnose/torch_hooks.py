"""Hooks into torch and running of an observed script; for verify, profile and scaling."""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rankwise._shutdown import let_gloo_finish


def around(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Wrap a function: `call` gets the function and then its arguments."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return call(inner, *args, **kwargs)

    setattr(owner, name, hooked)


def on_steps(begin: Callable[[Any], None], end: Callable[[Any], None]) -> None:
    """Call `begin` before and `end` after each outermost optimizer step, with the optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    num_open = 0

    def enter(optimizer: Any, *_: Any) -> None:
        nonlocal num_open
        num_open += 1
        if num_open == 1:
            begin(optimizer)

    def leave(optimizer: Any, *_: Any) -> None:
        nonlocal num_open
        num_open -= 1
        if not num_open:
            end(optimizer)

    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)


def run_script(finish: Callable[[], None]) -> None:
    """Run ``sys.argv[1]`` as a script, and always `finish` after it; exit code 0 counts as a return."""
    import torch.distributed as dist

    if dist.is_available():
        around(dist, "destroy_process_group", _destroy_group)
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    finally:
        finish()


def _destroy_group(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Let gloo's threads end their last collective: freeing a group waits for them, with the lock that they need."""
    let_gloo_finish()
    inner(*args, **kwargs)


def _wait_for_others(most_s: float) -> None:
    """Wait until all ranks are here: a rank that leaves earlier would break a collective of the others."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    with contextlib.suppress(Exception):  # the store ended with a rank that has left: then all ranks were here
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (the public name would make another store)
        deadline = time.monotonic() + most_s
        store.add("rankwise/recorded", 1)
        while int(store.add("rankwise/recorded", 0)) < dist.get_world_size() and time.monotonic() < deadline:
            time.sleep(0.02)


def leave_together(most_s: float) -> NoReturn:
    """Exit here with code 0: the script could catch an exception, and its exit handlers may take long."""
    _wait_for_others(most_s)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
