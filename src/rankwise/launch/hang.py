"""When a launch hangs, and which rank holds the others up: from heartbeats, progress and stacks."""

from __future__ import annotations

import re
import sys
import sysconfig
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rankwise import vitals
from rankwise.launch.sessions import process_state
from rankwise.launch.verdict import Failure
from rankwise.vitals import Vital

__all__ = ["CHECK_INTERVAL_S", "DEFAULT_TIMEOUT_S", "HangWatch", "blame"]

DEFAULT_TIMEOUT_S = 1800.0  # from the first beat on; what gloo waits for a peer by default
CHECK_INTERVAL_S = 1.0
_STALE_S = 10.0  # a heartbeat comes twice a second; a busy machine may delay it
_COLLECTIVE = ("torch/distributed/", "rankwise/world/")
_OURS = (
    "rankwise/vitals/recorder.py",
    "rankwise/launch/invoking.py",
    "rankwise/launch/child.py",
    "rankwise/launch/bound.py",
)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)')


class HangWatch:
    """Decides whether the ranks of one attempt still move.

    Args:
        folder: their vitals.
        timeout_s: as `Job.hang_timeout_s`.
    """

    def __init__(self, folder: Path, timeout_s: float | None) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self.reset()

    def reset(self) -> None:
        """Count from now, for example after all ranks were suspended."""
        self._since_s = time.monotonic()

    def reason(self, alive: Collection[int]) -> str | None:
        """Say why the ranks that are alive count as hung, None if they do not."""
        if self._timeout_s == 0 or not alive:
            return None
        found = [vital for vital in vitals.read(self._folder) if vital.rank in alive]
        limit = self._timeout_s
        if limit is None:
            if not any(vital.num_beats for vital in found):
                return None
            limit = DEFAULT_TIMEOUT_S
        now = time.monotonic()
        if now - max([self._since_s, *(vital.progress_s for vital in found)]) > limit:
            return f"no rank has made progress for {limit:g} s (--hang-timeout)"
        silent = [v.rank for v in found if now - max(self._since_s, v.heartbeat_s) > limit]
        if silent:
            return f"rank {silent[0]} has shown no sign of life for {limit:g} s (--hang-timeout)"
        return None


def blame(folder: Path, alive: Collection[int], reason: str) -> Failure:
    """Name the rank that holds the others up, with its stacks; the ranks must still be running.

    In this order: a process that is stopped or whose heartbeat has ceased; the rank with the lowest (epoch, step); the
    one that is not waiting in a collective; the one whose phase nobody else is in.

    Args:
        folder: vitals of the attempt.
        alive: ranks to choose from.
        reason: why they count as hung.
    """
    found = [vital for vital in vitals.read(folder) if vital.rank in alive]
    stacks = {v.rank: "" if _is_stopped(v) else vitals.request_stacks(v) for v in found}
    if not found:
        return Failure(rank=min(alive), headline=f"hangs: {reason}; it never began", detail="", status=None, exitcode=1)
    culprit, why = _choose(found, stacks)
    places = {v.rank: ", at ".join(filter(None, (v.place, _place(stacks[v.rank])))) for v in found}
    return Failure(
        rank=culprit.rank,
        headline=f"hangs ({places[culprit.rank]}): {reason}; {why}",
        detail=_tidy(stacks[culprit.rank]),
        status=None,
        exitcode=1,
        places=places,
    )


def _choose(found: Sequence[Vital], stacks: dict[int, str]) -> tuple[Vital, str]:
    frozen = [vital for vital in found if _is_frozen(vital)]
    if frozen:
        stopped = _is_stopped(frozen[0])
        return frozen[0], "its process is stopped (SIGSTOP)" if stopped else "its heartbeat has ceased"
    behind = min(found, key=_progress)
    if _progress(behind) != max(map(_progress, found)):
        return behind, f"it is behind the others (furthest: {max(found, key=_progress).place})"
    busy = [vital for vital in found if not _waits(stacks[vital.rank])]
    if busy and len(busy) < len(found):
        return busy[0], "the others wait for it in a collective"
    phases = [vital.phase for vital in found]
    odd = [vital for vital in found if phases.count(vital.phase) == 1]
    if odd and len(found) > 1:
        return min(odd, key=lambda vital: vital.progress_s), "its phase differs from the others'"
    return min(
        found, key=lambda vital: vital.progress_s
    ), "all ranks are at the same place; it was the first to fall silent"


def _progress(vital: Vital) -> tuple[int, int]:
    none = -1
    return (none if vital.epoch is None else vital.epoch, none if vital.step is None else vital.step)


def _is_frozen(vital: Vital) -> bool:
    return _is_stopped(vital) or time.monotonic() - vital.heartbeat_s > _STALE_S


def _is_stopped(vital: Vital) -> bool:
    return process_state(vital.pid) in {"T", "t"}


def _main_frames(stacks: str) -> list[re.Match[str]]:
    """Frames of the main thread, innermost first; faulthandler writes the oldest thread last."""
    block = re.split(r"^(?:Current thread|Thread) 0x.*$", stacks, flags=re.MULTILINE)[-1]
    return [match for match in map(_FRAME.match, block.splitlines()) if match]


def _tidy(stacks: str) -> str:
    """Leave out our own heartbeat thread, and what is above the user's program in the main one."""
    blocks = re.split(r"\n\s*\n", stacks.strip())
    theirs = [block for block in blocks if _OURS[0] not in block]
    kept = [line for block in theirs for line in [*block.splitlines(), ""] if not _is_ours(line)]
    return "\n".join(kept).rstrip()


def _is_ours(line: str) -> bool:
    return "<frozen runpy>" in line or any(part in line for part in _OURS)


def _waits(stacks: str) -> bool:
    return any(part in frame["file"] for frame in _main_frames(stacks)[:6] for part in _COLLECTIVE)


def _place(stacks: str) -> str:
    """Return file:line of the innermost frame that is the user's own, or of the innermost one."""
    frames = _main_frames(stacks)
    library = (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sys.prefix,
        "<",
        str(Path(__file__).parents[1]),
    )
    own = [frame for frame in frames if not frame["file"].startswith(library)]
    chosen = (own or frames)[:1]
    return f"{chosen[0]['file']}:{chosen[0]['line']} in {chosen[0]['name']}" if chosen else ""
