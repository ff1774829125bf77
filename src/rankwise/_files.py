"""Files that are the old one or the new one, never half of one, and the folder for those of this user."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Write a file at once: a temporary file beside it, whose name begins with a dot, and a rename.

    Args:
        path: the file.
        content: what it will hold.
        durable: whether it also outlives a power cut: the file is flushed to the disk before, the folder after the
            rename. What processes of one moment tell each other need not be.
        mode: permissions of the file; the umask takes from them.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:  # whose name is the temporary one, or none at all (a full disk)
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
    finally:
        beside.unlink(missing_ok=True)
    if durable:
        fsync_folder(path.parent)


def write_named(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file that the user has named: what a symbolic link points to, or into a device or pipe as it is.

    A rename would put a file in the place of the link, and of /dev/null or /dev/stdout where this user may do that.

    Args:
        path: the file.
        content: what it will hold.
        mode: permissions of a regular file; the umask takes from them.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        write_whole(Path(os.path.realpath(path)), content, durable=False, mode=mode)


def fsync_folder(path: Path) -> None:
    """Make the names inside a folder, those of files that were renamed into it too, survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def user_folder(variable: str, below_home: str) -> Path:
    """Return rankwise's own folder of this user.

    Args:
        variable: variable of the XDG standard that names the folder above it.
        below_home: the folder above it in the home folder, if the variable is not set.

    Raises:
        FileNotFoundError: the user has no home folder, and the variable is not set.
    """
    root = os.environ.get(variable) or os.path.expanduser(f"~/{below_home}")  # noqa: PTH111  (text where none is known)
    if root.startswith("~"):
        raise FileNotFoundError(errno.ENOENT, f"this user has no home folder, set HOME or {variable}", root)
    return Path(root) / "rankwise"
