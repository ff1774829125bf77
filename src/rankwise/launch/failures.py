"""What a run has died of and where it stood still, kept in its directory: `failure.json`, read by `rankwise report`."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwise._files import write_whole
from rankwise.launch.outcome import describe_others
from rankwise.launch.verdict import Failure, RankEnd, signal_name

__all__ = ["FILE", "describe", "keep", "keep_standstill"]

FILE = "failure.json"
_VERSION = 1
_MOST = 50  # of each kind; the newest stay
_CHARACTERS = 16_000  # of a traceback, and of a text about a standstill; the end of it


def describe(
    failure: Failure, ends: Sequence[RankEnd], *, attempt: int, world_size: int, step: int | None, logs: Path | None
) -> dict[str, Any]:
    """Return how an attempt ended, as JSON has it, to be called soon after.

    Args:
        failure: the root cause.
        ends: of the ranks of this machine.
        attempt: how often the ranks had been started before.
        world_size: number of ranks.
        step: the highest that a rank said it works on, None if none did.
        logs: folder of the attempt's logs, None without.
    """
    root = next((end for end in ends if end.rank == failure.rank), None)
    failed = root is not None and root.failed
    status = failure.status
    return {
        "time": time.time() - (time.monotonic() - root.failed_s if root is not None and failed else 0.0),
        "attempt": attempt,
        "host": socket.gethostname(),
        "rank": failure.rank,
        "world_size": world_size,
        "cause": failure.headline,
        "exitcode": failure.exitcode,
        "status": status,
        "signal": signal_name(-status) if status is not None and status < 0 else None,
        "step": step,
        "hang": None if failed else failure.headline,
        "traceback": failure.detail[-_CHARACTERS:],
        "traceback_of": failure.rank if failure.witness is None else failure.witness,
        "places": {str(rank): where for rank, where in failure.places.items()},
        "others": describe_others(ends, failure),
        "logs": None if logs is None else str(logs),
    }


def keep(run_dir: Path | None, failure: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Add a failure, from `describe` or a part of that, to the run's file; one process of a launch does.

    Args:
        run_dir: of the run; None: nothing is kept.
        failure: what to add.
        say: told if the file cannot be written, which does not stop a launch.
    """
    _add(run_dir, "failures", failure, say)


def keep_standstill(run_dir: Path | None, text: str, say: Callable[[str], None]) -> None:
    """Add what was told of a standstill that did not end the attempt; arguments as for `keep`."""
    first, _, rest = text.partition("\n")
    _add(run_dir, "standstills", {"time": time.time(), "text": first, "stacks": rest[:_CHARACTERS]}, say)


def _add(run_dir: Path | None, kind: str, entry: Mapping[str, Any], say: Callable[[str], None]) -> None:
    if run_dir is None:
        return
    path = run_dir / FILE
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)  # as the ranks would make it
        found = _read(path, say)
        found[kind] = [*found[kind], entry][-_MOST:]
        write_whole(path, json.dumps(found, indent=1).encode() + b"\n", durable=False, mode=0o600)
    except OSError as error:
        say(f"what happened is not kept in {path}: {error.strerror}")


def _read(path: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return what the file holds; one that is not ours is put aside, for its content may be wanted."""
    empty: dict[str, Any] = {"version": _VERSION, "failures": [], "standstills": []}
    try:
        found = json.loads(path.read_bytes())
        if found["version"] == _VERSION and all(isinstance(found[kind], list) for kind in ("failures", "standstills")):
            return {**empty, **found}
        why = f"version {found['version']}, wanted {_VERSION}"
    except FileNotFoundError:
        return empty
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    aside = path.replace(path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}"))
    say(f"{path} was not written by this version ({why}): it is now {aside.name}")
    return empty
