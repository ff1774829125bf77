"""JAX's state of its processes. JAX has no public API to query it without initialising devices, or to send messages."""

from __future__ import annotations

import sys
from typing import Any

from rankwise.errors import needs_extra


def import_jax() -> Any:
    """Import and return JAX.

    Raises:
        MissingExtraError: JAX is not installed.
    """
    with needs_extra("this needs jax: pip install 'rankwise[jax]', or the jax build for your accelerator"):
        import jax
    return jax


def jax_client() -> Any:
    """Return JAX's client of its coordinator, None before the initialisation; imports nothing."""
    state = _state()
    return None if state is None else state.client


def jax_numbers() -> tuple[int, int]:
    """Return JAX's (process index, number of processes) after its initialisation."""
    state = _state()
    return int(state.process_id), int(state.num_processes)


def devices_started() -> bool:
    """Whether JAX has already initialised its devices; afterwards `jax.distributed.initialize` is too late."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def _state() -> Any:
    distributed = sys.modules.get("jax._src.distributed")
    return None if distributed is None else distributed.global_state
