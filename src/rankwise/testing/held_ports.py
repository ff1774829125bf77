"""Ports for ranks that tests start, reserved until they are released."""

from __future__ import annotations

from rankwise.launch.local.ports import HeldPort

_held: list[HeldPort] = []


def hold_port() -> int:
    """Return a free port that is held until `release_ports`; on Linux the store of a rank can listen on it."""
    _held.append(HeldPort())
    _held[-1].hand_over()
    return _held[-1].number


def release_ports() -> None:
    """Release all ports."""
    while _held:
        _held.pop().close()
