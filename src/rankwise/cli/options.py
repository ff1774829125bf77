"""The options of `rankwise run`, also those from the environment, and a parser that does not import typer.

Importing typer and parsing with it takes longer than everything else before the ranks start. The parser here knows
the options of most launches, and returns None for anything else, even for errors: then typer parses and decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal


class RunOptions:
    """The options of `rankwise run`; class attributes hold the defaults.

    Args:
        **said: the options that were given.
    """

    words: Sequence[str] = ()
    nproc: str = "auto"
    ranks_per_gpu: int | None = None
    binding: Literal["auto", "numa", "core", "none"] = "auto"
    module: bool = False
    run_dir: Path | None = None
    fresh: bool = False
    resume: Literal["auto", "must", "never"] | None = None
    env: list[str] | None = None
    dry_run: bool = False
    max_restarts: int = 0
    min_ranks: int | None = None
    grace: float | None = None
    hang_timeout: float | None = None
    stall: float | None = None
    shutdown_timeout: float | None = None
    tee: str = "auto"
    redirects: str = "0"
    merge: bool = True
    log_dir: Path | None = None
    nnodes: str = "1"
    rdzv: str | None = None
    node_rank: int | None = None
    token_file: Path | None = None
    join_timeout: float = 300.0
    master_addr: str | None = None
    master_port: int | None = None
    slurm: bool = False
    partition: str | None = None
    slurm_nodes: int = 1
    gpus_per_node: int | None = None
    time: str = "1h"
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    mem: str | None = None
    cpus_per_task: int | None = None
    job_name: str | None = None
    slurm_arg: list[str] | None = None
    container: str | None = None
    detach: bool = False
    requeue: bool | None = None
    max_requeues: int | None = None
    standalone: bool = False
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    rdzv_conf: str | None = None
    monitor_interval: float | None = None
    start_method: str | None = None
    role: str | None = None
    local_addr: str | None = None
    signals_to_handle: str | None = None

    def __init__(self, **said: Any) -> None:
        unknown = said.keys() - RunOptions.__annotations__.keys()
        if unknown:
            raise TypeError(f"not options of rankwise run: {', '.join(sorted(unknown))}")
        vars(self).update(said)


class _Unsure(Exception):  # noqa: N818  (no error: typer has the say)
    pass


def _number(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise _Unsure
        return int(text)

    return read


def _seconds(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or float(text) < least:
            raise _Unsure
        return float(text)

    return read


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise _Unsure
        return text

    return read


_FLAGS = {
    "-m": ("module", True),
    "--module": ("module", True),
    "--fresh": ("fresh", True),
    "--merge": ("merge", True),
    "--no-merge": ("merge", False),
    "--standalone": ("standalone", True),
}
_VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--nproc": ("nproc", str),
    "--nproc-per-node": ("nproc", str),
    "--ranks-per-gpu": ("ranks_per_gpu", _number(1)),
    "--binding": ("binding", _one_of("auto", "numa", "core", "none")),
    "--run-dir": ("run_dir", Path),
    "--resume": ("resume", _one_of("auto", "must", "never")),
    "--env": ("env", str),
    "--max-restarts": ("max_restarts", _number(0)),
    "--min-ranks": ("min_ranks", _number(1)),
    "--grace": ("grace", _seconds(0)),
    "--hang-timeout": ("hang_timeout", _seconds(0)),
    "--stall": ("stall", _seconds(0.1)),
    "--shutdown-timeout": ("shutdown_timeout", _seconds(0)),
    "-t": ("tee", str),
    "--tee": ("tee", str),
    "-r": ("redirects", str),
    "--redirects": ("redirects", str),
    "--log-dir": ("log_dir", Path),
    "--nnodes": ("nnodes", _one_of("1")),
    "--master-addr": ("master_addr", str),
    "--master-port": ("master_port", _number(0)),
}
# environment variables that torchrun reads, and Kubeflow sets in each pod
_VARIABLES = {
    "PET_NNODES": "nnodes",
    "PET_NODE_RANK": "node_rank",
    "PET_NPROC_PER_NODE": "nproc",
    "PET_MASTER_ADDR": "master_addr",
    "PET_MASTER_PORT": "master_port",
    "PET_MAX_RESTARTS": "max_restarts",
    "PET_RDZV_ENDPOINT": "rdzv_endpoint",
    "PET_RDZV_ID": "rdzv_id",
}


def announced_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options from PET_* variables, by parameter; options on the command line override them."""
    return {option: environ[name].strip() for name, option in _VARIABLES.items() if environ.get(name, "").strip()}


def read_plainly(words: Sequence[str], environ: Mapping[str, str]) -> RunOptions | None:
    """Parse a command line as typer would; return None if that is not certain.

    Args:
        words: the words after `rankwise run`.
        environ: this process's environment, which may set options.
    """
    if announced_options(environ):
        return None
    said: dict[str, Any] = {}
    rest = list(words)
    try:
        while rest and rest[0].startswith("-"):
            _take(rest, said)
    except _Unsure:
        return None
    return RunOptions(words=rest, **said) if rest and rest[0] else None


def _take(rest: list[str], said: dict[str, Any]) -> None:
    """Take one option and its value from the front of the list."""
    name, sign, value = rest.pop(0).partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    if name in _FLAGS and not sign:
        option, meaning = _FLAGS[name]
        said[option] = meaning
        return
    if name not in _VALUES or (sign and not name.startswith("--")):
        raise _Unsure
    if not sign:
        value = rest.pop(0) if rest else ""
    if not value or value.startswith("-"):
        raise _Unsure
    option, read = _VALUES[name]
    said[option] = [*said.get("env", ()), value] if option == "env" else read(value)
