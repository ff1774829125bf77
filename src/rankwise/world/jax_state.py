"""What JAX knows about its processes. It has no public way to ask without starting its devices, or to swap messages."""

from __future__ import annotations

import sys
from typing import Any

from rankwise.errors import needs_extra

__all__ = ["devices_started", "import_jax", "jax_client", "jax_numbers"]


def import_jax() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needs_extra("jax is needed for this: pip install 'rankwise[jax]', or the jax of your accelerator"):
        import jax
    return jax


def jax_client() -> Any:
    """Return what talks to JAX's other processes, None before they are initialised; loads nothing."""
    state = _state()
    return None if state is None else state.client


def jax_numbers() -> tuple[int, int]:
    """Return (process id, number of processes) of an initialised JAX."""
    state = _state()
    return int(state.process_id), int(state.num_processes)


def devices_started() -> bool:
    """Whether JAX has looked for its devices already; afterwards nobody can tell it of other processes."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def _state() -> Any:
    distributed = sys.modules.get("jax._src.distributed")
    return None if distributed is None else distributed.global_state
