"""The first lines that every benchmark prints."""

from __future__ import annotations

from collections.abc import Sequence

from _common.machine import describe


def print_machine() -> None:
    """Print hardware, load and versions."""
    facts = describe()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    print(f"{facts['processor']}, {facts['cores']} cores, load {facts['load']:.1f}, Linux {facts['kernel']}")
    print(versions, flush=True)


def span_of(values: Sequence[float]) -> str:
    """Return least and most, for loads."""
    return f"{min(values):.1f} to {max(values):.1f}"
