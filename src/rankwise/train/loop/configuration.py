"""The configuration of a training run: its options, and the record that must match when it is resumed."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal

from rankwise._version import __version__
from rankwise.checkpoint.parts import plain_name
from rankwise.data.contract import JSON, BaseLoader
from rankwise.errors import ConfigError
from rankwise.train.models.passes import Precision
from rankwise.train.models.sharding import is_sharded, shards_state
from rankwise.train.models.wrapped_models import uncompiled
from rankwise.train.step.balance import check_balance
from rankwise.world import World

if TYPE_CHECKING:
    import torch
    from torch import nn

# possible values of `may_change`, and their places in the record of a run
RELEASED = {"batch_size": "data.batch_size", "max_grad_norm": "train.max_grad_norm"}
# Recorded settings that affect no number of a step: a run may change them.
MAY_CHANGE = (
    "step_fn_code",
    *(f"train.{name}" for name in ("epochs", "limit_steps", "log_every", "save_every", "keep")),
    "train.balance",
    *(f"train.{name}" for name in ("keep_best", "best_metric", "best_mode", "asynchronous")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How often to log and to save, and when to stop.

    Attributes:
        log_every: optimizer steps between two log lines; each costs one small collective.
        save_every: optimizer steps between two checkpoints; None saves at the end of each epoch only.
        keep: number of checkpoints to keep.
        keep_best: number of best checkpoints (saved after the validation of an epoch) to keep in addition.
        best_metric: the value that defines the best.
        best_mode: "min" or "max": which value is best.
        asynchronous: a thread writes the checkpoints while the training goes on; costs the memory of a copy.
        limit_steps: stop after this many optimizer steps in total; None runs all epochs.
        max_seconds: save and stop this many seconds after the start of `fit`, with the exit code that asks a launcher
            for a restart; None = RANKWISE_MAX_SECONDS, else never.
        max_grad_norm: clip the exact gradient to this norm; None does not clip.
        may_change: options that a resumed run may change although they affect the numbers: "batch_size",
            "max_grad_norm". Such a change is logged and recorded with the attempt.
        balance: "speed" cuts the shares of each step in proportion to the measured speed of the ranks, numbers (one for
            each rank) in proportion to these, see `Balance`; None makes them equal.
        precision: run step function and validation under autocast to "bf16" or "fp16", whose loss is scaled.
    """

    log_every: int = 10
    save_every: int | None = None
    keep: int = 3
    keep_best: int | None = None
    best_metric: str = "val_loss"
    best_mode: Literal["min", "max"] = "min"
    asynchronous: bool = False
    limit_steps: int | None = None
    max_grad_norm: float | None = None
    may_change: Collection[str] = ()
    precision: Precision | None = None
    max_seconds: float | None = None
    balance: Literal["speed"] | Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("log_every", "save_every", "keep", "keep_best", "limit_steps"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}")
        unknown = sorted({self.may_change} if isinstance(self.may_change, str) else set(self.may_change) - {*RELEASED})
        if unknown:
            raise ConfigError(f"may_change accepts the names {', '.join(RELEASED)}, got {', '.join(unknown)}")
        for name in ("max_seconds", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise ConfigError(f"{name} must be a positive number or None, got {value!r}")
        check_balance(self.balance)
        if self.precision not in (None, "bf16", "fp16"):
            raise ConfigError(f"precision must be 'bf16', 'fp16' or None, got {self.precision!r}")


def read_options(given: Mapping[str, Any]) -> TrainOptions:
    """Return the options from keyword arguments.

    Raises:
        ConfigError: one is unknown, or out of range.
    """
    known = [f.name for f in fields(TrainOptions)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        of_fit = [name for name in unknown if name in ("epochs", "max_epochs", "num_epochs", "val")]
        hint = f"{' and '.join(of_fit)}: fit(train, val=..., epochs=...) takes that; " if of_fit else ""
        raise ConfigError(f"Trainer has no option {', '.join(unknown)}; {hint}its options are {', '.join(known)}")
    return TrainOptions(**given)


def run_record(
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    step_fn: Any,
    train: BaseLoader,
    world: World,
    epochs: int,
    options: TrainOptions,
    user: Mapping[str, JSON],
    init_from: str | None,
) -> dict[str, JSON]:
    """Return the configuration of a run: equal for the same command at any world size, different otherwise.

    Except for `MAY_CHANGE`.
    """
    state, order = train.state_dict(), train.order
    settings = {"epochs": epochs, **asdict(options)}
    del settings["max_seconds"], settings["may_change"]  # they decide nothing that a run computes
    if options.precision is None:  # earlier runs have none
        del settings["precision"]
    return {
        **({} if init_from is None else {"init_from": init_from}),  # earlier runs have no such key
        "model": _model_record(model),
        "optimizer": optimizer_record(optimizer),
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "step_fn": getattr(step_fn, "__qualname__", type(step_fn).__name__),
        "step_fn_code": _code_record(step_fn),
        "seed": world.seed,
        "data": {
            "recipe": state.get("recipe"),
            "seed": state.get("seed"),
            "batch_size": None if order is None else order.batch_size or None,
            "remainder": None if order is None else order.remainder or None,
        },
        "train": settings,
        "user": dict(user),
    }


def environment_record(world: World) -> dict[str, JSON]:
    """Return the environment of an attempt: recorded, not compared."""
    import numpy as np
    import torch

    return {
        "world_size": world.world_size,
        "num_nodes": world.num_nodes,
        "device": str(world.device),
        "backend": world.backend,
        "threads": torch.get_num_threads(),
        "host": platform.node(),
        "command": list(sys.argv),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "rankwise": __version__,
        "code": _code_version() if world.is_main else None,
    }


def _code_version() -> dict[str, JSON] | None:
    """Return the git commit of the script's folder, and whether tracked files differ from it; None without git."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(script).parent if script else Path.cwd()
    said = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            done = subprocess.run(  # noqa: S603
                ["git", "-C", os.fspath(folder), *command],  # noqa: S607
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        said.append(done.stdout.strip())
    return {"commit": said[0], "dirty": bool(said[1])}


def _code_record(step_fn: Any) -> str:
    """Return a hash of what a function does, from its own code alone, as far as possible.

    It uses the code that this process has imported, not the file, which may have changed since. Comments and line
    numbers do not count. The version of Python, which determines the code, comes before the hash.
    """
    while isinstance(step_fn, functools.partial):
        step_fn = step_fn.func
    step_fn = inspect.unwrap(step_fn)
    found = getattr(step_fn, "__code__", None) or getattr(type(step_fn).__call__, "__code__", None)
    digest = "unknown" if found is None else hashlib.sha256(_code_text(found).encode()).hexdigest()[:16]
    return f"{sys.implementation.cache_tag} {digest}"


def _code_text(constant: Any) -> str:
    if isinstance(constant, CodeType):
        names = (constant.co_names, constant.co_varnames, constant.co_freevars)
        return f"{constant.co_code.hex()} {names} {_code_text(constant.co_consts)}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_code_text, constant))})"
    # the order of a set differs between processes
    return f"{sorted(map(repr, constant))}" if isinstance(constant, frozenset) else repr(constant)


def _model_record(model: nn.Module) -> dict[str, JSON]:
    model = uncompiled(model)  # a compiled model is the same model
    state = model.state_dict(keep_vars=True)
    shapes = {plain_name(name): [*p.shape, str(p.dtype)] for name, p in state.items()}
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
    # `fully_shard` replaces the class by one of its own: a sharded run is the same run
    kinds = [kind.__name__ for kind in type(model).__mro__ if kind.__name__ != "FSDPModule"]
    replaced = is_sharded(model) and kinds[0] == f"FSDP{kinds[1]}"
    return {
        "class": kinds[1] if replaced else kinds[0],
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "shapes": digest,
    }


def optimizer_record(optimizer: Any) -> dict[str, JSON]:
    """Return the class and the settings of each parameter group, without tensors."""
    kind = type(getattr(optimizer, "optim", optimizer) if shards_state(optimizer) else optimizer)
    record: dict[str, JSON] = {"class": kind.__name__}
    for index, group in enumerate(optimizer.param_groups):
        plain: dict[str, JSON] = {"num_tensors": len(group["params"])}
        for name, value in group.items():
            if name != "params" and isinstance(value, bool | int | float | str | tuple | list | None):
                plain[name] = json.loads(json.dumps(value))
        if "initial_lr" in plain:  # a scheduler has set "lr" to its first, warmed-up value
            plain["lr"] = plain.pop("initial_lr")
        record[f"group {index}"] = plain
    return record
