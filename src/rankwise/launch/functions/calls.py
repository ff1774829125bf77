"""`rankwise.run`: call a Python function on N ranks and return its values by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from rankwise.launch.functions.caller import call_ranks
from rankwise.launch.hardware import count_ranks

__all__ = ["run"]


def run(
    fn: Callable[..., Any],
    *args: Any,
    num_ranks: int | str,
    max_restarts: int = 0,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    stall: float | None = None,
    binding: Literal["auto", "numa", "core", "none"] = "auto",
    ranks_per_gpu: int | None = None,
    tee: str = "auto",
    env: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on every one of `num_ranks` new processes and return its values by rank.

    The ranks are new processes on this machine, never forks of this one. A small supervisor process watches them: when
    this process ends, even by SIGKILL, no rank is left running. `fn` gets its rank and device with `rankwise.bind()`.
    A function that a fresh interpreter can import is sent by name. If it is defined in the main script, put that
    script's own actions under `if __name__ == "__main__":`. Lambdas, closures and notebook functions are sent by value
    if cloudpickle is installed.

    Args:
        fn: what every rank calls.
        *args: picklable arguments, the same for all ranks.
        num_ranks: number of processes, >= 1; "auto": one per visible GPU, or 1 with a message if there is none; "gpu":
            one per GPU; "cpu": one per usable core.
        max_restarts: how often all ranks are restarted after a failure.
        timeout: limit in seconds for one attempt; after it the rank that blocks the others is named; None: no limit.
        hang_timeout: stop all ranks and name the culprit after so many seconds without progress of any rank; None: 1800
            once a rank has called `rankwise.vitals.beat`; 0: never.
        stall: after so many seconds without progress, print where every rank is and which one blocks the others, and go
            on; None: 180 once a rank has begun a collective or called `beat`; 0: never.
        binding: cores of a rank: those near its GPU or its NUMA node ("numa"), own ones ("core"), all ("none"), "auto".
        ranks_per_gpu: ranks that share a GPU; None: one.
        tee: which output reaches stdout and stderr, as `rankwise run --tee`: "auto", "all", "main", "none".
        env: additional environment variables for the ranks.
        **kwargs: picklable keyword arguments, the same for all ranks.

    Returns:
        The values of `fn`, by rank.

    Raises:
        RankFailure: a rank raised, exited, was killed or hung; the error holds its traceback.
        ConfigError: an argument is invalid, or cannot be pickled.
        LaunchError: the ranks could not be started, or a value could not be read back.
    """
    if isinstance(num_ranks, str):
        num_ranks = count_ranks(num_ranks, "num_ranks", ranks_per_gpu=ranks_per_gpu)
    options = {
        "num_ranks": num_ranks,
        "max_restarts": max_restarts,
        "timeout_s": timeout,
        "hang_timeout_s": hang_timeout,
        "stall_s": stall,
        "binding": binding,
        "ranks_per_gpu": ranks_per_gpu,
        "env": dict(env or {}),
    }
    return call_ranks(fn, args, kwargs, options, tee=tee)
