"""Where batches of workers of a `DataLoader` lie: in the CPU's memory, wherever the loader's own would."""

from __future__ import annotations

import logging
from typing import Any

from rankwise.data.feed.place_jax import is_jax_target
from rankwise.errors import ConfigError
from rankwise.world.loader_worker import LoaderWorker

__all__ = ["check_sendable", "host_device", "say_in_memory"]

_LOG = logging.getLogger("rankwise.data")


def check_sendable(device: Any) -> None:
    """Refuse a loader of JAX arrays: those of another process cannot be handed over.

    Raises:
        ConfigError: it is one.
    """
    if is_jax_target(device):
        raise ConfigError(
            "a loader of JAX arrays cannot read in workers, nor be pickled: take num_workers=0 (it reads in the "
            "background all the same), or device=None for NumPy arrays and hand those to JAX"
        )


def host_device(device: Any) -> str | None:
    """Return the device of batches in a worker: "cpu", None where the loader was to give NumPy arrays."""
    return None if device is None else "cpu"


def say_in_memory(device: Any, *, rank: int, worker: LoaderWorker) -> None:
    """Say on the main rank, in the first worker, that batches do not come on the device that they were wanted on."""
    if rank or worker.number or device is None or str(device).startswith("cpu"):
        return
    _LOG.warning(
        "workers of a DataLoader leave %s alone: batches come in the CPU's memory; batch.to(%r) moves one, and "
        "pin_memory=True of the DataLoader lets it do so in the background",
        device, str(device),
    )  # fmt: skip
