"""`failure.json` in the run directory: a run's failures and standstills, read by `rankwise report`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankwise._files import write_whole

FILE = "failure.json"
_VERSION = 1
_MOST = 50  # entries of each kind; the newest are kept
_CHARACTERS = 16_000  # of the text of a standstill


def keep(run_dir: Path | None, failure: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Add a failure to the run's file (of `AttemptEnd.describe`, or a part of it); one process per launch does.

    Without a run directory nothing is written. `say` gets a message if the file cannot be written: the launch goes on.
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
