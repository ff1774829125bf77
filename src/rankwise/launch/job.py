"""The settings of one launch, validated before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankwise.errors import ConfigError
from rankwise.launch.show import Show
from rankwise.launch.target import Target

if TYPE_CHECKING:
    from rankwise.launch.elastic.nodes import Nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One launch as this machine sees it: what runs, on how many ranks, and what happens after a failure.

    Attributes:
        target: what every rank runs.
        num_ranks: number of processes on this machine, >= 1.
        max_restarts: how often all ranks are restarted after a failure, >= 0.
        run_dir: run directory, passed to the ranks as RANKWISE_RUN_DIR; logs go to its `logs/`.
        fresh: set RANKWISE_FRESH=1 for the first attempt.
        resume: passed to the ranks as RANKWISE_RESUME; None leaves it to the script.
        hang_timeout_s: stop when no rank has made progress for so many seconds, counted from the start, even without
            beats. None: 1800 from the first `vitals.beat` on, never without one. 0: never.
        stall_s: when no rank has made progress for so many seconds, print where every rank is and which one blocks the
            others, and go on; counted from the start, even without beats. None: 180 from the first beat or collective
            on. 0: never.
        timeout_s: stop when the whole attempt takes longer; None: never.
        shutdown_timeout_s: seconds that ranks get to end when asked, before they are killed. None: 5 after a failure,
            30 after a stop from outside (time to save a checkpoint).
        grace_s: the same after a stop from outside only; None: `shutdown_timeout_s`, else 30.
        min_ranks: continue with fewer ranks, but at least so many. If no restart is left: with one rank fewer and all
            restarts again. If some ranks cannot be started, or GPUs are gone: with as many as possible. None: never.
        show: which output reaches the console.
        log_dir: folder for `attempt-<n>/rank-<r>.out` and `.err`.
        master_addr: where rank 0 listens, for MASTER_ADDR.
        master_port: its port; None takes a free one for every attempt and holds it until the attempt ends.
        env: additional variables for every rank.
        num_threads: OMP_NUM_THREADS of a rank; None: its part of the usable cores, unless the variable is set already.
        binding: which cores a rank may use, see `assign_cores`: "auto", "numa", "core" or "none".
        ranks_per_gpu: how many ranks compute on one GPU, passed to the ranks as RANKWISE_RANKS_PER_GPU; None: one.
        nodes: the other machines of this launch and the way to them; None: there are none.

    Raises:
        ConfigError: a value is invalid.
    """

    target: Target
    num_ranks: int = 1
    max_restarts: int = 0
    run_dir: Path | None = None
    fresh: bool = False
    resume: Literal["auto", "must", "never"] | None = None
    hang_timeout_s: float | None = None
    stall_s: float | None = None
    timeout_s: float | None = None
    shutdown_timeout_s: float | None = None
    grace_s: float | None = None
    min_ranks: int | None = None
    show: Show = field(default_factory=Show)
    log_dir: Path | None = None
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    num_threads: int | None = None
    binding: Literal["auto", "numa", "core", "none"] = "auto"
    ranks_per_gpu: int | None = None
    nodes: Nodes | None = None

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts must be at least 0, got {self.max_restarts}")
        for name in ("hang_timeout_s", "stall_s", "timeout_s", "shutdown_timeout_s", "grace_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value >= 0):
                raise ConfigError(f"{name} must be at least 0 seconds, got {value!r}")
        if self.resume not in {None, "auto", "must", "never"}:
            raise ConfigError(f"resume must be auto, must or never, got {self.resume!r}")
        if self.fresh and self.resume == "must":
            raise ConfigError("fresh starts a new run and resume='must' forbids that: give one of them")
        if self.master_port is not None and not 0 < self.master_port < 1 << 16:
            raise ConfigError(f"master_port must be between 1 and 65535, got {self.master_port}")
        for name, text in self.env.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ConfigError(f"env: {name!r} is not a valid name of an environment variable")
            if not isinstance(text, str) or "\0" in text:
                raise ConfigError(f"env: the value of {name} must be text without null characters, got {text!r}")
        self._check_binding()
        self._check_ranks()

    def _check_binding(self) -> None:
        if self.binding not in {"auto", "numa", "core", "none"}:
            raise ConfigError(f"binding must be auto, numa, core or none, got {self.binding!r}")
        if self.binding in {"numa", "core"} and not hasattr(os, "sched_setaffinity"):
            raise ConfigError(f"binding={self.binding!r} needs Linux, which binds processes to cores; use none")
        if self.ranks_per_gpu is not None and self.ranks_per_gpu < 1:
            raise ConfigError(f"ranks_per_gpu must be at least 1, got {self.ranks_per_gpu}")

    def _check_ranks(self) -> None:
        if self.num_ranks < 1:
            raise ConfigError(f"num_ranks must be at least 1, got {self.num_ranks}")
        if self.min_ranks is not None and not 1 <= self.min_ranks <= self.num_ranks:
            raise ConfigError(f"min_ranks must be between 1 and the {self.num_ranks} ranks, got {self.min_ranks}")
        if self.min_ranks is not None and self.nodes is not None:
            raise ConfigError("min_ranks is only valid on one machine; with several nodes use --nnodes MIN:MAX")
        if self.nodes is not None:
            return  # the user may name ranks of other nodes here
        self.show.check(self.num_ranks if self.min_ranks is None else self.min_ranks)

    @property
    def logs(self) -> Path | None:
        """Folder in which each attempt creates its log folder, None if no logs are wanted."""
        if self.log_dir is not None:
            return self.log_dir
        return self.run_dir / "logs" if self.run_dir is not None else None
