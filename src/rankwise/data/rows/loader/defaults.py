"""The sampler of a loader that was given none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import RandomSampler, SequentialSampler
from rankwise.data.rows.saying import say_once
from rankwise.errors import ConfigError
from rankwise.world.loader_worker import current_worker

__all__ = ["choose_sampler", "say_idle_workers", "say_no_batch"]

_DEFAULTS = {"chunk_size": 512, "preload_nchunks": 32, "batch_size": 1, "drop_last": False}


def choose_sampler(sampler: Sampler | None, arguments: Mapping[str, Any]) -> Sampler:
    """Return the sampler of a loader.

    Args:
        sampler: what the user passed.
        arguments: shuffle, rng and the arguments of samplers, None where they were not passed.

    Raises:
        ConfigError: both were passed, or they do not fit together.
        TypeError: it is no sampler.
    """
    passed = [name for name, value in arguments.items() if value is not None]
    if sampler is not None:
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"batch_sampler wants a sampler of rankwise.data.rows.samplers, or a subclass of "
                f"rankwise.data.rows.abc.Sampler, got {type(sampler).__name__}"
            )
        if passed:
            raise ConfigError(
                f"Cannot specify {', '.join(passed)} when providing batch_sampler: give them to the sampler instead"
            )
        return sampler
    sizes: dict[str, Any] = {
        name: default if arguments[name] is None else arguments[name] for name, default in _DEFAULTS.items()
    }
    if arguments["shuffle"]:
        return RandomSampler(**sizes, rng=arguments["rng"])
    if arguments["shuffle"] is None:
        say_once(
            "rows come in their stored order: pass shuffle=True (or shuffle=False, which says that it is meant so)"
        )
    return SequentialSampler(**sizes)


def say_idle_workers(sampler: Sampler) -> None:
    """Say in the one worker of a DataLoader that reads everything why the others do not."""
    worker = current_worker()
    if worker is None or worker.number or worker.count == 1 or sampler.handles_workers or sampler.rng is not None:
        return
    say_once(
        f"one of {worker.count} workers reads everything: {type(sampler).__name__} has no rng, so that the workers may "
        "draw differently; assign one and draw from self.rng, or take num_workers=1"
    )


def say_no_batch(sampler: Sampler, n_obs: int) -> None:
    """Say why a pass was over at once: what fills no batch is left out where it is asked for so."""
    if current_worker() is None:  # one of several may have nothing to do
        say_once(
            f"a pass over {n_obs} rows had no batch: {type(sampler).__name__} makes batches of {sampler.batch_size} "
            "rows and leaves out what fills none; take a smaller batch_size, or drop_last=False"
        )
