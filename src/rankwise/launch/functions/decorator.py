"""`Wrapper` and `wrapper`: run a task on every rank of a platform, with its device and process group set up."""

from __future__ import annotations

import functools
import inspect
import os
import secrets
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankwise.errors import ConfigError
from rankwise.launch.functions.caller import call_ranks
from rankwise.launch.functions.platforms import DEFAULT_LOGS, Device, Platform, make_folder


class Wrapper:
    """Starts tasks on a platform.

    Args:
        platform: where the tasks run and how the ranks meet.
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def start(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `target(*args, **kwargs, global_rank=, local_rank=, group=, platform=)` on every rank.

        On every rank the process group is initialised, the device is current, the generators are seeded, and torchrun's
        variables are set. `rankwise.run` describes how functions are sent.

        Args:
            target: the task.
            *args: picklable arguments.
            **kwargs: picklable keyword arguments.

        Returns:
            The task's values by rank; with device="slurm" a `SlurmHandle`, immediately: its `result()` waits for them.

        Raises:
            ConfigError: this machine lacks what the platform asks for, the task does not take these arguments and
                the four keywords, or it cannot be sent.
            RankFailure: a rank failed; the error holds its traceback.
            Exception: `upon_finish` raised it, after all ranks had succeeded; a note says so.
        """
        platform = self.platform
        _check_call(target, args, kwargs)
        if platform.device is Device.SLURM:
            from rankwise.launch.slurm.submission import start_in_slurm

            return start_in_slurm(platform, target, args, kwargs)
        platform.check_machine()
        if platform.spawn_method not in {None, "spawn"}:
            warnings.warn(
                f"spawn_method={platform.spawn_method!r} has no effect: ranks are always fresh interpreters",
                stacklevel=2,
            )
        logs = _folder_for_logs(platform)
        if platform.verbose:
            name, where = getattr(target, "__name__", target), "" if logs is None else f", logs in {logs}"
            _print(f"starting {platform.world_size} rank(s) for {name}{where}")
        values = _launch(platform, target, args, kwargs, logs)
        if platform.verbose:
            _print("all ranks have succeeded")
        if platform.upon_finish is not None:
            try:
                platform.upon_finish()
            except BaseException as error:
                error.add_note("rankwise: raised by upon_finish, after all ranks had succeeded")
                raise
        return values


def _check_call(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ConfigError if a task cannot be called with the arguments that the ranks would pass."""
    given = {**kwargs, **dict.fromkeys(("global_rank", "local_rank", "group", "platform"))}
    try:  # what a decorator hides may take other arguments than the decorator passes on
        signature = inspect.signature(target, follow_wrapped=False)
    except (TypeError, ValueError):  # builtins have none
        return
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        name = getattr(target, "__name__", repr(target))
        raise ConfigError(
            f"the task {name}{signature} cannot be called with {len(args)} positional argument(s) and the keywords "
            f"{', '.join(given)}: {error}. Its own arguments come first, those of the rank are keywords: "
            f"def {name}(..., *, global_rank, local_rank, group, platform), or **kwargs for those it does not use"
        ) from error


def _launch(
    platform: Platform, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], logs: Path | None
) -> list[Any]:
    meeting = platform.store_file(f"{os.getpid()}-{secrets.token_hex(8)}")
    if meeting is not None:
        make_folder(meeting.parent)
    options = {
        "num_ranks": platform.world_size,
        "master_addr": "127.0.0.1" if platform.ipc_protocol == "file" else platform.master_addr,
        "master_port": None if platform.master_port is None else int(platform.master_port),
        "log_dir": None if logs is None else str(logs),
    }
    store_file = str(meeting or "") if platform.ipc_protocol == "file" else None
    # the parent calls `upon_finish`, so it is not sent to the ranks and need not be picklable
    sent = replace(platform, upon_finish=None)
    try:
        return call_ranks(target, args, kwargs, options, tee="all", store_file=store_file, platform=sent)
    finally:
        for left in meeting.parent.glob(f"{meeting.name}*") if meeting is not None else ():
            left.unlink(missing_ok=True)


def _folder_for_logs(platform: Platform) -> Path | None:
    """Return the folder for the ranks' logs; None if no logs are wanted, or the default folder is not writable."""
    if platform.console_logs is None:
        return None
    folder = Path(platform.console_logs).absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if platform.console_logs == DEFAULT_LOGS and not os.access(there, os.W_OK):
        _print(f"no logs are written: {there} is read-only (set another one with console_logs=FOLDER)")
        return None
    return folder


def wrapper(platform: Platform) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function: a call runs it on every rank of a platform and returns the values by rank.

    The decorated function keeps its name and docstring; `__wrapped__` is the function itself.

    Args:
        platform: where the tasks run and how the ranks meet.
    """

    def decorate(target: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(target)
        def start(*args: Any, **kwargs: Any) -> Any:
            return Wrapper(platform).start(target, *args, **kwargs)

        return start

    return decorate


def _print(text: str) -> None:
    print(f"rankwise: {text}", flush=True)  # noqa: T201
