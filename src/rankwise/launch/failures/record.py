"""`failure.json` in the run directory: a run's failures and standstills, read by `rankwise report`."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwise._files import write_whole
from rankwise.launch.failures.outcome import describe_others
from rankwise.launch.failures.verdict import Failure, signal_name

if TYPE_CHECKING:
    from rankwise.launch.local.process import RankEnd

__all__ = ["FILE", "describe", "keep", "keep_standstill"]

FILE = "failure.json"
_VERSION = 1
_MOST = 50  # entries of each kind; the newest are kept
_CHARACTERS = 16_000  # kept of a traceback (its end) and of a standstill's text (its beginning)


def describe(
    failure: Failure, ends: Sequence[RankEnd], *, attempt: int, world_size: int, step: int | None, logs: Path | None
) -> dict[str, Any]:
    """Return how an attempt ended, as JSON values; call it soon after the end, as it takes the current time.

    Args:
        failure: the root cause.
        ends: of the ranks of this machine.
        attempt: how often the ranks were started before this attempt.
        world_size: number of ranks.
        step: the highest step that a rank reported, None if none did.
        logs: folder of the attempt's logs, None without logs.
    """
    root = next((end for end in ends if end.rank == failure.rank and end.failed), None)
    status = failure.status
    return {
        "time": time.time() - (0.0 if root is None else time.monotonic() - root.failed_s),
        "attempt": attempt,
        "host": socket.gethostname(),
        "rank": failure.rank,
        "world_size": world_size,
        "cause": failure.headline,
        "exitcode": failure.exitcode,
        "status": status,
        "signal": signal_name(-status) if status is not None and status < 0 else None,
        "step": step,
        "hang": failure.headline if root is None else None,
        "traceback": failure.detail[-_CHARACTERS:],
        "traceback_of": failure.rank if failure.witness is None else failure.witness,
        "places": {str(rank): where for rank, where in failure.places.items()},
        "others": describe_others(ends, failure),
        "logs": None if logs is None else str(logs),
    }


def keep(run_dir: Path | None, failure: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Add a failure, all or a part of what `describe` returned, to the run's file; one process per launch calls this.

    Args:
        run_dir: the run directory; None: nothing is written.
        failure: what to add.
        say: called with a message if the file cannot be written; the launch goes on.
    """
    _add(run_dir, "failures", failure, say)


def keep_standstill(run_dir: Path | None, text: str, say: Callable[[str], None]) -> None:
    """Add the text about a standstill that did not end the attempt; arguments as for `keep`."""
    first, _, rest = text.partition("\n")
    _add(run_dir, "standstills", {"time": time.time(), "text": first, "stacks": rest[:_CHARACTERS]}, say)


def _add(run_dir: Path | None, kind: str, entry: Mapping[str, Any], say: Callable[[str], None]) -> None:
    if run_dir is None:
        return
    path = run_dir / FILE
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # with the same mode that the ranks would use
        found = _read(path, say)
        found[kind] = [*found[kind], entry][-_MOST:]
        write_whole(path, json.dumps(found, indent=1).encode() + b"\n", durable=False, mode=0o600)
    except OSError as error:
        say(f"events cannot be recorded in {path}: {error.strerror}")


def _read(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the file's content; rename a file of another version or format, so that its content is not lost."""
    empty: dict[str, Any] = {"version": _VERSION, "failures": [], "standstills": []}
    try:
        found = json.loads(path.read_bytes())
        if found["version"] == _VERSION and all(isinstance(found[kind], list) for kind in ("failures", "standstills")):
            return {**empty, **found}
        why = f"version {found['version']}, expected {_VERSION}"
    except FileNotFoundError:
        return empty
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    aside = path.replace(path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}"))
    say(f"{path} was not written by this version ({why}): it was renamed to {aside.name}")
    return empty
