"""`Wrapper` and `wrapper`: run a task on every rank of a platform, bound to its device and group."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rankwise.launch.calls import launch_packed
from rankwise.launch.packing import pack_call
from rankwise.launch.platforms import Platform

__all__ = ["Wrapper", "wrapper"]


class Wrapper:
    """Starts tasks on a platform.

    Args:
        platform: where and how.
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def start(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `target(*args, **kwargs, global_rank=, local_rank=, group=, platform=)` on every rank.

        On every rank the process group is initialised, the device is current, the generators are seeded, and the
        variables of torchrun are set. How functions travel: see `rankwise.run`.

        Args:
            target: the task.
            *args: picklable arguments.
            **kwargs: picklable keyword arguments.

        Returns:
            The values of the task, by rank.

        Raises:
            ConfigError: this machine cannot do it, or the task cannot be sent.
            RankFailure: a rank failed; with its traceback.
        """
        platform = self.platform
        platform.check_machine()
        _say_what_makes_no_difference(platform)
        if platform.verbose:
            _say(f"starting {platform.world_size} rank(s) for {getattr(target, '__name__', target)}")
        options: dict[str, Any] = {
            "num_ranks": platform.world_size,
            "max_restarts": 0,
            "timeout_s": None,
            "tee": "all",
            "env": {},
            "master_addr": platform.master_addr,
            "master_port": None if platform.master_port is None else int(platform.master_port),
        }
        # what the parent calls at the end is not for the ranks, and need not be picklable
        context = replace(platform, upon_finish=None)
        values = launch_packed(
            lambda: pack_call(target, args, kwargs, adapter="rankwise.launch.task:run_task", context=context), options
        )
        if platform.verbose:
            _say("all ranks have ended well")
        if platform.upon_finish is not None:
            platform.upon_finish()
        return values


def wrapper(platform: Platform) -> Callable[[Callable[..., Any]], Callable[..., list[Any]]]:
    """Make calling a function run it on every rank of a platform, and return the values by rank.

    The decorated function keeps its name and docstring; `__wrapped__` is the function itself.

    Args:
        platform: where and how.
    """

    def decorate(target: Callable[..., Any]) -> Callable[..., list[Any]]:
        @functools.wraps(target)
        def start(*args: Any, **kwargs: Any) -> list[Any]:
            return Wrapper(platform).start(target, *args, **kwargs)

        return start

    return decorate


def _say(text: str) -> None:
    print(f"rankwise: {text}", flush=True)  # noqa: T201


def _say_what_makes_no_difference(platform: Platform) -> None:
    if platform.spawn_method not in {None, "spawn"}:
        warnings.warn(
            f"spawn_method={platform.spawn_method!r} makes no difference: ranks are always fresh interpreters",
            stacklevel=3,
        )
    if platform.ipc_protocol != "tcp":
        warnings.warn("ipc_protocol='file' makes no difference: ranks of one machine meet at a held port", stacklevel=3)
