"""`rankwise.run`: call a Python function on N ranks and return its values by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rankwise.errors import ConfigError, LaunchError
from rankwise.launch.functions.bound import is_loading_main
from rankwise.launch.functions.client import call_ranks
from rankwise.launch.hardware import MAX_RANKS, count_ranks

if TYPE_CHECKING:
    from rankwise.launch.functions.pickled_call import Packed

__all__ = ["launch_packed", "run"]


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
    options = {
        "num_ranks": count_ranks(num_ranks, "num_ranks", ranks_per_gpu=ranks_per_gpu)
        if isinstance(num_ranks, str)
        else num_ranks,
        "max_restarts": max_restarts,
        "timeout_s": timeout,
        "hang_timeout_s": hang_timeout,
        "stall_s": stall,
        "binding": binding,
        "ranks_per_gpu": ranks_per_gpu,
        "tee": tee,
        "env": dict(env or {}),
        "master_addr": "127.0.0.1",
        "master_port": None,
    }

    def pack() -> Packed:
        from rankwise.launch.functions.pickled_call import pack_call

        return pack_call(fn, args, kwargs)

    return launch_packed(pack, options, fn)


def launch_packed(pack: Callable[[], Packed], options: Mapping[str, Any], fn: Any = None) -> list[Any]:
    """Check the options, pack the call, and run it on the ranks.

    Args:
        pack: returns the packed call; it is called while the supervisor's process starts.
        options: as `service` reads them.
        fn: the function to call, if its ranks may be forked; None: start each rank with a fresh interpreter.

    Raises:
        LaunchError: called from a rank while it imports the main script.
    """
    if is_loading_main():
        raise LaunchError(
            "a rank reached another launch while importing the main script: put the launch under "
            'if __name__ == "__main__":'
        )
    if not isinstance(options["num_ranks"], int) or not 1 <= options["num_ranks"] <= MAX_RANKS:
        raise ConfigError(f"num_ranks must be an integer from 1 to {MAX_RANKS:,}, got {options['num_ranks']!r}")
    code = None if fn is None or options["env"] else getattr(fn, "__code__", None)
    hint = (code.co_filename, code.co_name) if code is not None and options["num_ranks"] > 1 else None

    def check_and_pack() -> tuple[dict[str, Any], bytes]:
        from rankwise.launch.show import parse_show

        parse_show(options["tee"]).check(options["num_ranks"])
        call = pack()
        return {**options, "main": call.main, "function": call.function, "path": call.path}, call.data

    return call_ranks(check_and_pack, hint)
