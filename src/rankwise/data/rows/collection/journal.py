"""Files that a write leaves on disk about itself: journal, manifest, and how an interrupted write is found."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import platform
import secrets
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rankwise._files import write_whole
from rankwise.data.rows.datasets.search import COLLECTION_TYPE, MANIFEST, member_names
from rankwise.errors import DataError, DesyncError, RankwiseError, WorldError

JOURNAL = "journal.json"
_FAILED = "failed"  # exists if the write failed by itself, rather than being killed


def work_folder(folder: Path) -> Path:
    """Return the folder beside a collection in which a write is prepared."""
    return folder.with_name(f"{folder.name}.writing")


def read_journal(work: Path) -> dict[str, Any] | None:
    """Return the decisions of an unfinished write, None if there is none; files beside it say which tasks are done."""
    path = work / JOURNAL
    facts: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
    return facts


def resume(folder: Path, plan: str) -> dict[str, Any] | None:
    """Return the journal of an unfinished write into a collection; if it cannot be resumed, delete what it left.

    It cannot if it has another plan; or if the collection now has other datasets, whose variables may differ; or if
    the machine was rebooted: then files that were not yet on disk may have been lost with the power. `plan` identifies
    inputs and parameters.
    """
    work, members = work_folder(folder), listed_names(folder)
    held, failed = read_journal(work), work / _FAILED
    if held is not None:
        same = held["plan"] == plan and [*held["old"], *held["dropped"]] == members
        (node, _, boot), (my_node, _, my_boot) = held["boot"].rpartition(" "), this_boot().rpartition(" ")
        rebooted = boot != my_boot and node in {"", my_node}  # boots of another machine are unknown
        if same and not rebooted:
            failed.unlink(missing_ok=True)
            return held
        if not rebooted and not failed.exists():
            warnings.warn(
                f"{work} holds the unfinished writing of other inputs or parameters, or into other datasets, and is "
                "deleted",
                stacklevel=8,
            )
        for name in set(held["names"]) - set(members):  # moved in, but not yet part of the collection
            shutil.rmtree(folder / name, ignore_errors=True)
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.is_file() and path.name != "lock":
            path.unlink()
    return None


def put_json(path: Path, facts: Any) -> None:
    """Write a file atomically: readers see all of it, or nothing."""
    write_whole(path, json.dumps(facts).encode(), durable=False)


def this_boot() -> str:
    """Return the machine and its boot; without a boot if it is unknown."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {path.read_text().strip() if path.exists() else ''}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers; delete it at the end after success, or if nothing was begun.

    Raises:
        DataError: another process has locked it, or its file system has no locks.
    """
    over, aside = True, f".{folder.name}."
    with _lock(folder):
        try:
            yield
        except BaseException as error:
            over = not (folder / JOURNAL).exists() or _is_vain(folder, error)
            raise
        finally:
            if over:  # rename first: the next writer finds no folder, or its own
                with contextlib.suppress(OSError):
                    folder.rename(folder.with_name(f"{aside}{secrets.token_hex(4)}"))
            for left in folder.parent.glob(f"{glob.escape(aside)}*"):  # also left by jobs killed here
                shutil.rmtree(left, ignore_errors=True)


def _is_vain(folder: Path, error: BaseException) -> bool:
    """Whether a write that failed by itself leaves nothing worth keeping; else record that it was not killed.

    Its inputs cannot be read, or do not fit: the next call will probably have others and need not report these.
    """
    note_failure(folder, error)
    if not (folder / _FAILED).exists() or not (_failed_by_itself(error) or isinstance(error, DesyncError)):
        return False
    if not any((folder / "done").glob("*")):
        return True
    error.add_note(f"What was done is in {folder}: the same call continues it, any other call deletes it")
    return False


def note_failure(folder: Path, error: BaseException) -> None:
    """Record beside the journal that this rank failed by itself: other ranks see the error, but not its type."""
    if _failed_by_itself(error):
        with contextlib.suppress(OSError):
            (folder / _FAILED).touch()


def _failed_by_itself(error: BaseException) -> bool:
    return isinstance(error, RankwiseError) and not isinstance(error, WorldError)


def _lock(folder: Path) -> IO[str]:
    """Take the lock of a folder, creating the folder if necessary."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # another job has just ended and removed the folder
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "lock").open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.close()
                if isinstance(error, BlockingIOError):
                    words = f"another process is writing this collection: it holds {folder}/lock; wait for it"
                else:
                    words = f"{folder}/lock cannot be locked ({error}): write to a file system that has locks"
                raise DataError(words) from error
            place = folder / "lock"
            if place.exists() and os.path.samestat(os.fstat(file.fileno()), place.stat()):
                return file
            file.close()


_VERSION = 1


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a collection, ``{"version", "datasets": {name: ...}, "writes": [...]}``.

    It is empty if the collection has no manifest.

    Raises:
        DataError: a later version wrote it.
    """
    manifest: dict[str, Any] | None = _document(folder).get("attributes", {}).get(MANIFEST)
    if manifest is None:
        return {"version": _VERSION, "datasets": {}, "writes": []}
    if manifest.get("version") != _VERSION:
        raise DataError(
            f"the manifest of {folder} has version {manifest.get('version')!r}, expected {_VERSION}: a newer rankwise "
            "wrote it; use that version"
        )
    return manifest


def on_disk(folder: Path) -> list[str]:
    """Return the folders with names of datasets, sorted by number."""
    return member_names(path.name for path in folder.glob("dataset_*"))


def listed_names(folder: Path) -> list[str]:
    """Return the names of the datasets of a collection: those of its manifest, else all folders with such names."""
    held = read_manifest(folder)["datasets"] if has_manifest(folder) else None
    return [name for name in on_disk(folder) if held is None or name in held]


def has_manifest(folder: Path) -> bool:
    """Whether a collection has a manifest: then rankwise wrote it or added to it."""
    return MANIFEST in _document(folder).get("attributes", {})


def commit(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a collection atomically: from now on it has the datasets of the manifest.

    Readers that list folders use the consolidated metadata, which name these datasets and no others.
    """
    document = _document(folder)
    attributes = document.get("attributes", {}) | {
        "encoding-type": COLLECTION_TYPE,
        "encoding-version": "0.1.0",
        MANIFEST: manifest,
    }
    nodes = {}
    for name in manifest["datasets"]:
        for path in sorted((folder / name).rglob("zarr.json")):
            node = json.loads(path.read_bytes())
            node.pop("consolidated_metadata", None)
            nodes[path.parent.relative_to(folder).as_posix()] = node
    whole = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": attributes,
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": nodes},
    }
    write_whole(folder / "zarr.json", json.dumps(whole, indent=1).encode())


def _document(folder: Path) -> dict[str, Any]:
    path = folder / "zarr.json"
    document: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return document


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextlib.contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """For a full or write-protected disk, raise an error that says what exists and what to do.

    Raises:
        DataError: the disk is full, or is write-protected.
    """
    try:
        yield
    except OSError as error:
        ours = str(error.filename).startswith(str(folder))  # not an unreadable input
        if error.errno not in _FULL and not (error.errno in _FORBIDDEN and ours):
            raise
        raise DataError(f"writing to the disk failed: {error}. {unfinished_state(folder)}") from error
    except KeyboardInterrupt as error:
        error.add_note(unfinished_state(folder))
        raise


def unfinished_state(folder: Path) -> str:
    """Describe what a collection contains after its write has ended early."""
    work = work_folder(folder)
    if not (work / JOURNAL).exists():
        return f"{folder} is unchanged, nothing was started"
    return (
        f"{folder} is unchanged. The same call continues where it stopped; delete {work}, which holds the unfinished "
        "work, to free its space"
    )


def clear_vain(folder: Path) -> None:
    """Remove an empty collection and its work folder, if no work is left there; all ranks have ended."""
    work = work_folder(folder)
    if (work / JOURNAL).exists() or not folder.is_dir() or listed_names(folder):
        return
    for place in (work, folder):
        shutil.rmtree(place, ignore_errors=True)
