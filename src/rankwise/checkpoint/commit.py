"""The storage of checkpoints, and how they move into place and out of it: a kill at any moment leaves a complete one.

Names inside the folder: ``step-*`` is published, ``.tmp-*`` is being written, ``.old-*`` was set aside while its
replacement was moved in, ``.del-*`` is being deleted, ``skipped-step-*`` was found damaged and is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rankwise._files import fsync_folder
from rankwise._process.lock import lock_folder

Fence = Callable[[], AbstractContextManager[Any]]


class Disk:
    """The storage of a `Checkpointer`: a folder of a file system. `Bucket` has the same methods for an object store.

    Methods that change published checkpoints do it inside the fence.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._unlock: Callable[[], Any] = contextlib.nullcontext

    def make(self, step: int, attempt: int, token: str) -> Path:
        """Return the place for the files of a new checkpoint: a path, or in a `Bucket` an object like one."""
        # two programs may save one step here: none writes into the other's; a name that ends in the token is a Bucket's
        return self.root / f".tmp-{folder_name(step)}-{token}-attempt-{attempt}"

    def prepare(self, made: Path) -> None:
        """Create the place, empty; on the main rank."""
        if made.exists():
            shutil.rmtree(made)
        made.mkdir(parents=True)

    @contextmanager
    def create(self, made: Path, name: str) -> Iterator[BinaryIO]:
        """Open a new file inside it, which is durable at the end of the context."""
        # with parents: a network file system may not yet show what the main rank has made
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        with (made / name).open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def flush(self, made: Path, folder: str) -> None:
        """Make the names in one of its folders durable."""
        if (made / folder).exists():
            fsync_folder(made / folder)

    def size_of(self, made: Path, name: str) -> int | None:
        """Return the size of a file inside it in bytes, None if it does not exist."""
        return (made / name).stat().st_size if (made / name).exists() else None

    def publish(self, made: Path, step: int, manifest: bytes, fence: Fence) -> None:
        """Write the manifest last, which publishes the checkpoint; on the main rank."""
        with self.create(made, "manifest.json") as file:
            file.write(manifest)
        fsync_folder(made)
        target = self.root / folder_name(step)
        aside = target.with_name(f".old-{target.name}")
        with fence():
            if target.exists():
                if aside.exists():
                    _delete(aside)
                os.rename(target, aside)  # noqa: PTH104  (tests inject faults here)
            os.rename(made, target)  # noqa: PTH104
            fsync_folder(self.root)
            if aside.exists():
                _delete(aside)

    def discard(self, made: Path, folder: str | None) -> None:
        """Remove it, or one of its folders: it will not be published."""
        shutil.rmtree(made if folder is None else made / folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may still write: the last one to give up removes the folder
            made.rmdir()

    def clean(self, skipped: Iterable[Path], fence: Fence) -> None:
        """Remove what killed saves left, and move damaged checkpoints aside; on the main rank.

        Without a fence the folder is locked until `release`: what another process writes would be removed.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if fence is contextlib.nullcontext:
            self._unlock()
            self._unlock = weakref.finalize(self, lock_folder(self.root))
        with fence():
            for folder in skipped:
                _set_aside(folder)
            for entry in list(self.root.iterdir()):
                if entry.name.startswith(".old-step-"):
                    target = self.root / entry.name.removeprefix(".old-")
                    if target.exists():
                        _delete(entry)
                    else:
                        os.rename(entry, target)  # noqa: PTH104
                elif entry.name.startswith((".tmp-step-", ".del-")):
                    _delete(entry)

    def release(self) -> None:
        """Let other processes save here."""
        self._unlock()

    def remove(self, folders: Callable[[], Iterable[Path]], fence: Fence) -> None:
        """Unpublish checkpoints, chosen inside the fence, and delete them; on the main rank."""
        doomed = []
        with fence():
            for folder in folders():
                # a partially deleted folder must not look like a checkpoint
                gone = folder.with_name(f".del-{folder.name}")
                if gone.exists():
                    shutil.rmtree(gone, ignore_errors=True)
                os.rename(folder, gone)  # noqa: PTH104
                doomed.append(gone)
        for gone in doomed:  # outside the fence: deleting gigabytes takes a while
            _delete(gone)


def folder_name(step: int) -> str:
    """Return ``step-0000000120``."""
    return f"step-{step:010d}"


def _set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint to keep it without blocking later ones."""
    name, number = f"skipped-{folder.name.removeprefix('.old-')}", 1
    while (aside := folder.with_name(name if number == 1 else f"{name}.{number}")).exists():
        number += 1
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, aside)  # noqa: PTH104


def _delete(folder: Path) -> None:
    gone = folder
    if not folder.name.startswith(".del-"):
        gone = folder.with_name(f".del-{folder.name}")
        with contextlib.suppress(OSError):
            shutil.rmtree(gone)
        os.rename(folder, gone)  # noqa: PTH104
    if gone.is_symlink():  # a checkpoint that somebody has moved to another disk; it stays there
        gone.unlink(missing_ok=True)
    shutil.rmtree(gone, ignore_errors=True)
