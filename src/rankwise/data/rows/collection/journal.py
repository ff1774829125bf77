"""`Journal`: how far the writing of a collection has come, so that a killed one goes on."""

from __future__ import annotations

import fcntl
import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankwise.errors import DataError

__all__ = ["Journal", "locked", "work_folder"]


def work_folder(folder: Path) -> Path:
    """Return the folder beside a collection in which it is prepared."""
    return folder.with_name(f"{folder.name}.writing")


class Journal:
    """Facts about one unfinished writing, kept whole on disk.

    Args:
        folder: the folder beside the collection.
        plan: identifies inputs and parameters.
        facts: what a fresh one begins with.
    """

    def __init__(self, folder: Path, plan: str, facts: dict[str, Any]) -> None:
        self.folder = folder
        self._path = folder / "journal.json"
        stale, held = self.stale(folder, plan), self.peek(folder)
        if stale is not None and stale["boot"] == _boot():
            warnings.warn(
                f"{folder} holds the unfinished writing of other inputs or parameters; it is thrown away", stacklevel=5
            )
        held = held if stale is None else None
        if held is None:
            self._clear()
        self.facts: dict[str, Any] = {"plan": plan, "boot": _boot(), **facts} if held is None else held
        (folder / "buckets").mkdir(exist_ok=True)
        self.keep()

    @staticmethod
    def peek(folder: Path) -> dict[str, Any] | None:
        """Return the facts of an unfinished writing, None if there is none."""
        path = folder / "journal.json"
        facts: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        return facts

    @classmethod
    def stale(cls, folder: Path, plan: str) -> dict[str, Any] | None:
        """Return the facts of an unfinished writing that cannot be continued.

        Either it is another one, or the machine was started anew since: then files that were not on the disk yet may
        have been lost with the power.
        """
        held = cls.peek(folder)
        return held if held is not None and (held["plan"] != plan or held["boot"] != _boot()) else None

    def keep(self, **facts: Any) -> None:
        """Change facts, in the file too, which a kill leaves whole."""
        self.facts |= facts
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self.facts))
        beside.replace(self._path)

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()


def _boot() -> str:
    """Which run of the machine this is; "" where it cannot be told."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other writers; it is deleted at the end if all went well.

    Raises:
        DataError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"another process writes this collection: it holds {folder}/lock; wait for it") from error
        yield
        shutil.rmtree(folder)
