"""`Journal`: how far the writing of a collection has come, so that a killed one goes on."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import platform
import secrets
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rankwise.data.rows.collection.crew.crew import failed_by_itself, put_json
from rankwise.errors import DataError

__all__ = ["Journal", "locked", "work_folder"]

_FAILED = "failed"  # by itself, not killed


def work_folder(folder: Path) -> Path:
    """Return the folder beside a collection in which it is prepared."""
    return folder.with_name(f"{folder.name}.writing")


class Journal:
    """What was decided about one unfinished writing, kept whole on disk; what of it is done, marks beside it say.

    Args:
        folder: the folder beside the collection.
        plan: identifies inputs and parameters.
        members: names of the datasets that the collection has.
        facts: what a fresh one begins with.
    """

    NAME = "journal.json"

    def __init__(self, folder: Path, plan: str, members: Sequence[str], facts: dict[str, Any]) -> None:
        self.folder = folder
        stale, held = self.stale(folder, plan, members), self.peek(folder)
        failed = folder / _FAILED
        if stale is not None and not _was_started_anew(stale["boot"]) and not failed.exists():
            warnings.warn(
                f"{folder} holds the unfinished writing of other inputs or parameters, or into other datasets; it is "
                "thrown away",
                stacklevel=5,
            )
        failed.unlink(missing_ok=True)
        held = held if stale is None else None
        self.facts: dict[str, Any] = {"plan": plan, "boot": _boot(), **facts} if held is None else held
        if held is None:
            self._clear()
            put_json(folder / self.NAME, self.facts)

    @staticmethod
    def peek(folder: Path) -> dict[str, Any] | None:
        """Return the facts of an unfinished writing, None if there is none."""
        path = folder / Journal.NAME
        facts: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        return facts

    @classmethod
    def stale(cls, folder: Path, plan: str, members: Sequence[str]) -> dict[str, Any] | None:
        """Return the facts of an unfinished writing that cannot be continued.

        Either it is another one; or the collection has other datasets now, whose variables may be others; or the
        machine was started anew since: then files that were not on the disk yet may have been lost with the power.
        """
        held = cls.peek(folder)
        if held is None:
            return None
        same = held["plan"] == plan and [*held["old"], *held["dropped"]] == list(members)
        return None if same and not _was_started_anew(held["boot"]) else held

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.name.startswith("session-"):
                shutil.rmtree(path)
            elif path.is_file() and path.name != "lock":
                path.unlink()


def _boot() -> str:
    """Which machine this is and which run of it; no run where it cannot be told."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {path.read_text().strip() if path.exists() else ''}"


def _was_started_anew(held: str) -> bool:
    """Whether it was this machine, in an earlier run; of another one that is not known."""
    (node, _, run), (my_node, _, my_run) = held.rpartition(" "), _boot().rpartition(" ")
    return run != my_run and node in {"", my_node}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other writers; it is deleted at the end if all went well, or nothing was begun.

    Raises:
        DataError: another process holds it, or its file system has no locks.
    """
    over, aside = True, f".{folder.name}."
    with _lock(folder):
        try:
            yield
        except BaseException as error:
            over = not (folder / Journal.NAME).exists() or _is_vain(folder, error)
            raise
        finally:
            if over:  # all at once: whoever comes next finds no folder, or one of his own
                with contextlib.suppress(OSError):
                    folder.rename(folder.with_name(f"{aside}{secrets.token_hex(4)}"))
            for left in folder.parent.glob(f"{glob.escape(aside)}*"):  # also of jobs that were killed right here
                shutil.rmtree(left, ignore_errors=True)


def _is_vain(folder: Path, error: BaseException) -> bool:
    """Whether what a writing leaves that failed by itself is nothing; else it is noted that it was not killed.

    Its inputs cannot be read, or do not fit: the next call will probably have others, and need not be told of these.
    """
    if not failed_by_itself(folder, error):
        return False
    if not any((folder / "done").glob("*")):
        return True
    with contextlib.suppress(OSError):
        (folder / _FAILED).touch()
        error.add_note(f"What was done lies in {folder}: the same call goes on with it, any other clears it")
    return False


def _lock(folder: Path) -> IO[str]:
    """Take the lock of a folder, which is made if need be."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # another job has just ended, and the folder went with it
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "lock").open("w")
            if _is_mine(file, folder):
                return file
            file.close()


def _is_mine(file: IO[str], folder: Path) -> bool:
    """Lock a file; False if it went with its folder before it was locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise DataError(f"another process writes this collection: it holds {folder}/lock; wait for it") from error
    except OSError as error:
        file.close()
        raise DataError(f"{folder}/lock cannot be locked ({error}): write to a file system that has locks") from error
    place = folder / "lock"
    return place.exists() and os.path.samestat(os.fstat(file.fileno()), place.stat())
