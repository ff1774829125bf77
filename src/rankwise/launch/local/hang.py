"""When a launch hangs, and which rank holds the others up: from heartbeats, progress and stacks."""

from __future__ import annotations

import itertools
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rankwise import vitals
from rankwise.launch.local.sessions import process_state
from rankwise.launch.topology import format_numbers
from rankwise.launch.verdict import Failure
from rankwise.vitals import Vital

__all__ = ["DEFAULT_TIMEOUT_S", "HangWatch", "StallWatch", "blame"]

DEFAULT_TIMEOUT_S = 1800.0  # from the first beat on; what gloo waits for a peer by default
_STALE_S = 10.0  # a heartbeat comes twice a second; a busy machine may delay it
_COLLECTIVE = ("torch/distributed/", "rankwise/world/")
_BACKWARD = ("torch/autograd/",)
_WIDTH = 72
_NEAR = 6  # frames between a call that blocks in C and the name that tells what it is
_PYTHON = tuple({sysconfig.get_path("stdlib") + "/", sysconfig.get_path("platstdlib") + "/"})
_INSTALLED = ("/site-packages/", "/dist-packages/")
_HERE = str(Path(__file__).parents[1])
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


class StallWatch:
    """Tells, while the ranks of one attempt run on, that none of them moves, and where each of them stands.

    Args:
        folder: their vitals.
        stall_s: as `Job.stall_s`.
    """

    def __init__(self, folder: Path, stall_s: float | None) -> None:
        self._folder, self._stall_s = folder, stall_s
        self.reset()

    def reset(self) -> None:
        """Count from now, for example after all ranks were suspended."""
        self._since_s = time.monotonic()
        self._told_of_s: float | None = None  # the progress before the standstill that was told
        self._again_s = self._stall_s or 0.0  # how long it must have lasted to be told

    def news(self, alive: Collection[int]) -> str:
        """Return what to tell now: a standstill, once and again when it has lasted twice as long, and its end."""
        if self._stall_s is None or not alive:
            return ""
        found = [vital for vital in vitals.read(self._folder) if vital.rank in alive]
        moved_s = max([self._since_s, *(vital.progress_s for vital in found)])
        quiet_s = time.monotonic() - moved_s
        if self._told_of_s is not None and moved_s > self._told_of_s:
            text = f"the ranks advance again, after {moved_s - self._told_of_s:.0f} s"
            self._told_of_s, self._again_s = None, self._stall_s
            return text
        if quiet_s < self._again_s:
            return ""
        self._told_of_s, self._again_s = moved_s, 2 * self._again_s
        return _describe_stall(self._folder, alive, quiet_s)


def _describe_stall(folder: Path, alive: Collection[int], quiet_s: float) -> str:
    """Tell in one line that nobody advances and who seems to be why, then where each rank is, equal stacks once."""
    found, stacks = _observe(folder, alive)
    lines = [f"no rank has advanced for {quiet_s:.0f} s (--stall), the run goes on"]
    if found:
        culprit, why = _choose(found, stacks)
        lines[0] += f"; look at rank {culprit.rank}{': ' + why if why else ''}"
    groups: dict[tuple[str, str], list[int]] = {}
    for vital in found:
        key = _where(vital, stacks[vital.rank]), re.sub(r"0x[0-9a-f]+", "", _tidy(stacks[vital.rank]))
        groups.setdefault(key, []).append(vital.rank)
    for (place, _), ranks in groups.items():
        title = f"---- rank {format_numbers(ranks)}: {place} "
        told = _tidy(stacks[ranks[0]]) or "its stacks cannot be had: it is stopped, or does not answer"
        lines += [title + "-" * max(0, _WIDTH - len(title)), told]
    missing = set(alive) - {vital.rank for vital in found}
    lines += [f"---- rank {format_numbers(missing)} has not begun"] if missing else []
    return "\n".join([*lines, "-" * _WIDTH])


def blame(folder: Path, alive: Collection[int], reason: str, gone: Mapping[int, float] | None = None) -> Failure:
    """Name the rank that holds the others up, with its stacks; the ranks must still be running.

    In this order: a rank that never began; a process that is stopped or whose heartbeat has ceased; a rank that has
    left, if all others wait; one that is not waiting in a collective as the others are; the one with the lowest (epoch,
    step); the one that stands elsewhere than most; the one whose phase nobody else is in.

    Args:
        folder: vitals of the attempt.
        alive: ranks to choose from.
        reason: why they count as hung.
        gone: ranks that have ended with exit 0, and when.
    """
    found, stacks = _observe(folder, alive)
    missing = set(alive) - {vital.rank for vital in found}
    places = {v.rank: _where(v, stacks[v.rank]) for v in found}
    if missing:
        headline = f"hangs: {reason}; it never began"
        return Failure(rank=min(missing), headline=headline, detail="", status=None, exitcode=1, places=places)
    culprit, why = _choose(found, stacks)
    headline = f"hangs ({places[culprit.rank]}): {'; '.join(filter(None, (reason, why)))}"
    rank = culprit.rank
    if gone and not any(_is_frozen(v) for v in found) and all(_waits(stacks[v.rank]) for v in found):
        rank = min(gone, key=gone.__getitem__)
        headline = (
            f"had finished (exit 0) while rank {culprit.rank} still waits for it in a collective "
            f"({places[culprit.rank]}): {reason}; the ranks do not call the same collectives, here is rank "
            f"{culprit.rank}"
        )
    return Failure(
        rank=rank,
        headline=headline,
        detail=_tidy(stacks[culprit.rank]),
        witness=culprit.rank,
        status=None,
        exitcode=1,
        places=places,
        waits=_waits(stacks[culprit.rank]) > 0,
    )


def _observe(folder: Path, alive: Collection[int]) -> tuple[list[Vital], dict[int, str]]:
    """Return what the ranks say of themselves, and the stacks of those that can answer."""
    found = [vital for vital in vitals.read(folder) if vital.rank in alive]
    return found, {v.rank: "" if _is_stopped(v) else vitals.request_stacks(v) for v in found}


def _where(vital: Vital, stacks: str) -> str:
    return ", at ".join(filter(None, (vital.place, _place(stacks))))


def _choose(found: Sequence[Vital], stacks: Mapping[int, str]) -> tuple[Vital, str]:
    """Return the rank that holds the others up, and how one knows; a lone one needs no reason."""
    frozen = [vital for vital in found if _is_frozen(vital)]
    if frozen:
        stopped = _is_stopped(frozen[0])
        return frozen[0], "its process is stopped (SIGSTOP)" if stopped else "its heartbeat has ceased"
    if len(found) == 1:
        return found[0], ""
    places = {vital.rank: _place(stacks[vital.rank]) for vital in found}
    here = Counter(places.values())

    def suspect(vital: Vital) -> tuple[tuple[int, int], int, float]:
        return _progress(vital), here[places[vital.rank]], vital.progress_s

    waiting = {vital.rank: _waits(stacks[vital.rank]) for vital in found}
    busy = [vital for vital in found if waiting[vital.rank] == min(waiting.values())]
    if len(busy) < len(found):
        return min(busy, key=suspect), "the others wait for it in a collective"
    behind, furthest = min(found, key=suspect), max(found, key=_progress)
    if _progress(behind) != _progress(furthest):
        return behind, f"it is behind the others (furthest: {furthest.place})"
    most, num_most = here.most_common(1)[0]
    if len(here) > 1 and num_most > len(found) / 2:
        odd = [vital for vital in found if places[vital.rank] != most]
        return min(odd, key=suspect), f"it stands elsewhere than the others ({num_most} of {len(found)} are at {most})"
    return _quietest(
        found, "all ranks are at the same place" if len(here) == 1 else "the ranks are at different places"
    )


def _quietest(found: Sequence[Vital], where: str) -> tuple[Vital, str]:
    phases = [vital.phase for vital in found]
    lone = [vital for vital in found if phases.count(vital.phase) == 1]
    first = min(lone or found, key=lambda vital: vital.progress_s)
    if lone:
        return first, "its phase differs from the others'"
    return first, f"{where}; it was the first to fall silent"


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
    """Leave out our own heartbeat thread, the import system, and what is above the user's program in the main one."""
    blocks = re.split(r"\n\s*\n", stacks.strip())
    theirs = [block for block in blocks if _OURS[0] not in block]
    kept = [line for block in theirs for line in [*block.splitlines(), ""] if not _is_ours(line)]
    return "\n".join(kept).rstrip()


def _is_ours(line: str) -> bool:
    return '"<frozen ' in line or any(part in line for part in _OURS)


def _waits(stacks: str) -> int:
    """How surely a rank waits for others: 2: it is inside a collective; 1: perhaps, it is in a backward pass; 0: no.

    DDP waits for its collectives in C++ at the end of `backward`, which shows no frame of torch.distributed. What the
    user's code does inside a library's call, and the import of a library, is no waiting.
    """
    inner = list(itertools.takewhile(_is_library, (frame["file"] for frame in _main_frames(stacks))))
    if any(file.startswith("<frozen importlib") for file in inner):
        return 0
    near = inner[:_NEAR]
    return 2 if _within(near, _COLLECTIVE) else int(_within(near, _BACKWARD))


def _within(files: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in file for file in files for part in parts)


def _is_library(file: str) -> bool:
    """Whether a frame is one of torch, of rankwise or of Python itself."""
    return "/torch/" in file or (file.startswith((*_PYTHON, "<frozen ", _HERE)) and not _within([file], _INSTALLED))


def _place(stacks: str) -> str:
    """Return file:line of the innermost frame that is the user's own, or of the innermost one."""
    frames = _main_frames(stacks)
    own = [frame for frame in frames if not frame["file"].startswith((*_PYTHON, "<", _HERE))]
    own = [frame for frame in own if not _within([frame["file"]], _INSTALLED)]
    chosen = (own or frames)[:1]
    return f"{chosen[0]['file']}:{chosen[0]['line']} in {chosen[0]['name']}" if chosen else ""
