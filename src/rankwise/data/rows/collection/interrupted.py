"""What a writing that ends early leaves, in words."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from rankwise.data.rows.collection.journal import Journal, work_folder
from rankwise.data.rows.collection.manifest import listed_names
from rankwise.errors import DataError

__all__ = ["clear_vain", "said_where_it_stands", "where_it_stands"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextlib.contextmanager
def said_where_it_stands(folder: Path) -> Iterator[None]:
    """Say of a disk that takes no more what is there, and what to do.

    Raises:
        DataError: the disk is full, or may not be written.
    """
    try:
        yield
    except OSError as error:
        ours = str(error.filename).startswith(str(folder))  # not an input that may not be read
        if error.errno not in _FULL and not (error.errno in _FORBIDDEN and ours):
            raise
        raise DataError(f"the disk does not take what is written: {error}. {where_it_stands(folder)}") from error
    except KeyboardInterrupt as error:
        error.add_note(where_it_stands(folder))
        raise


def where_it_stands(folder: Path) -> str:
    """Say what a collection holds whose writing has ended early."""
    work = work_folder(folder)
    if not (work / Journal.NAME).exists():
        return f"{folder} is as it was, nothing was begun"
    return (
        f"{folder} is as it was. The same call goes on where it was left; deleting {work}, which holds the unfinished "
        "work, gives its space back"
    )


def clear_vain(folder: Path) -> None:
    """Remove a collection that is empty, and what was beside it, if no work is left there; all ranks have ended."""
    work = work_folder(folder)
    if (work / Journal.NAME).exists() or not folder.is_dir() or listed_names(folder):
        return
    for place in (work, folder):
        shutil.rmtree(place, ignore_errors=True)
