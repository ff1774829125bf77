"""What a launch shares with its caller: event loop, console, and who prints the final failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwise.launch.local.console import Console
    from rankwise.launch.local.forks.spare import Spare
    from rankwise.launch.local.loop import Loop

__all__ = ["ALONE", "Stage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a launch shares with its caller; the launch creates what is None.

    Attributes:
        loop: an entered loop whose descriptors are served while the ranks run; None creates one.
        console: where the ranks' output and our messages go; None makes one.
        tell_last: print the failure that ends the launch; it stands in `Outcome.text` in any case.
        spare: a process that may become the fork server of the first attempt; the caller closes it.
    """

    loop: Loop | None = None
    console: Console | None = None
    tell_last: bool = True
    spare: Spare | None = None


ALONE = Stage()
