"""Moving checkpoints into place and out of it, so that a kill at any moment leaves a whole one to be found.

Names inside the folder: ``step-*`` is published, ``.tmp-*`` is being written, ``.old-*`` was set aside while its
replacement moved in, ``.del-*`` is being deleted, ``skipped-step-*`` was found damaged and is kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rankwise._files import fsync_folder
from rankwise.checkpoint.manifest import sound_folders, step_of

__all__ = ["Fence", "clean", "folder_name", "prune", "publish", "set_aside"]

Fence = Callable[[], AbstractContextManager[Any]]


def folder_name(step: int) -> str:
    """Return ``step-0000000120``."""
    return f"step-{step:010d}"


def publish(temporary: Path, target: Path) -> None:
    """Give a complete folder its final name; one that has the name already is replaced. Call it inside the fence."""
    aside = target.with_name(f".old-{target.name}")
    if target.exists():
        if aside.exists():
            _delete(aside)
        os.rename(target, aside)  # noqa: PTH104  (tests inject faults here)
    os.rename(temporary, target)  # noqa: PTH104
    fsync_folder(target.parent)
    if aside.exists():
        _delete(aside)


def clean(root: Path) -> None:
    """Remove what saves and deletions left behind when they were killed. Call it inside the fence."""
    for entry in list(root.iterdir()):
        if entry.name.startswith(".old-step-"):
            target = root / entry.name.removeprefix(".old-")
            if target.exists():
                _delete(entry)
            else:
                os.rename(entry, target)  # noqa: PTH104
        elif entry.name.startswith((".tmp-step-", ".del-")):
            _delete(entry)


def prune(root: Path, *, keep: int | None, keep_every: int | None, newest: Path, fence: Fence) -> None:
    """Remove all but the `keep` newest checkpoints; `newest` and every `keep_every`-th step stay.

    What is damaged, cannot be read now or has a later format neither counts nor goes.
    """
    if keep is None:
        return
    doomed = []
    with fence():
        for folder in [newest, *(other for other in sound_folders(root) if other != newest)][keep:]:
            if keep_every is not None and step_of(folder) % keep_every == 0:
                continue
            # a folder that is half deleted must not look like a checkpoint
            gone = folder.with_name(f".del-{folder.name}")
            if gone.exists():
                shutil.rmtree(gone, ignore_errors=True)
            os.rename(folder, gone)  # noqa: PTH104
            doomed.append(gone)
    for gone in doomed:  # outside the fence: deleting gigabytes takes a while
        shutil.rmtree(gone, ignore_errors=True)


def set_aside(folder: Path) -> None:
    """Take a damaged checkpoint out of the way of the next ones, and keep it. Call it inside the fence."""
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
    shutil.rmtree(gone, ignore_errors=True)
