"""The storage of checkpoints, and how they move into place and out of it: a kill at any moment leaves a complete one.

Names inside the folder: ``step-*`` is published, ``.tmp-*`` is being written, ``.old-*`` was set aside while its
replacement was moved in, ``.del-*`` is being deleted, ``skipped-step-*`` was found damaged and is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rankwise._files import fsync_folder

__all__ = ["Disk", "Fence", "Storage", "folder_name"]

Fence = Callable[[], AbstractContextManager[Any]]


class Storage(Protocol):
    """The storage of a `Checkpointer`. `make` returns the place of a new checkpoint until it is published.

    The main rank calls `prepare`, `publish`, `clean` and `remove`; methods that change published checkpoints are called
    inside the fence.
    """

    @property
    def root(self) -> Any:
        """A path, or an object like one."""
        ...

    def make(self, step: int, attempt: int, token: str) -> Any:
        """Return the place for the files of a new checkpoint: a path, or an object like one."""
        ...

    def prepare(self, made: Any) -> None:
        """Create the place, empty."""
        ...

    def create(self, made: Any, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a new file inside it, which is durable at the end of the context."""
        ...

    def flush(self, made: Any, folder: str) -> None:
        """Make the names in one of its folders durable."""
        ...

    def size_of(self, made: Any, name: str) -> int | None:
        """Return the size of a file inside it in bytes, None if it does not exist."""
        ...

    def publish(self, made: Any, step: int, manifest: bytes, fence: Fence) -> None:
        """Write the manifest last, which publishes the checkpoint."""
        ...

    def discard(self, made: Any, folder: str | None) -> None:
        """Remove it, or one of its folders: it will not be published."""
        ...

    def clean(self, skipped: Iterable[Any], fence: Fence) -> None:
        """Remove what killed saves left, and move damaged checkpoints aside."""
        ...

    def remove(self, folders: Callable[[], Iterable[Any]], fence: Fence) -> None:
        """Unpublish checkpoints, chosen inside the fence, and delete them."""
        ...


class Disk:
    """A folder of a file system; attributes and methods as in `Storage`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, step: int, attempt: int, token: str) -> Path:
        """See `Storage`."""
        # two programs may save one step here: none writes into the other's; a name that ends in the token is a Bucket's
        return self.root / f".tmp-{folder_name(step)}-{token}-attempt-{attempt}"

    def prepare(self, made: Path) -> None:
        """See `Storage`."""
        if made.exists():
            shutil.rmtree(made)
        made.mkdir(parents=True)

    @contextmanager
    def create(self, made: Path, name: str) -> Iterator[BinaryIO]:
        """See `Storage`."""
        # with parents: a network file system may not yet show what the main rank has made
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        with (made / name).open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def flush(self, made: Path, folder: str) -> None:
        """See `Storage`."""
        if (made / folder).exists():
            fsync_folder(made / folder)

    def size_of(self, made: Path, name: str) -> int | None:
        """See `Storage`."""
        return (made / name).stat().st_size if (made / name).exists() else None

    def publish(self, made: Path, step: int, manifest: bytes, fence: Fence) -> None:
        """See `Storage`."""
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
        """See `Storage`."""
        shutil.rmtree(made if folder is None else made / folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # others may still write: the last one to give up removes the folder
            made.rmdir()

    def clean(self, skipped: Iterable[Path], fence: Fence) -> None:
        """See `Storage`."""
        with fence():
            self.root.mkdir(parents=True, exist_ok=True)
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

    def remove(self, folders: Callable[[], Iterable[Path]], fence: Fence) -> None:
        """See `Storage`."""
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
