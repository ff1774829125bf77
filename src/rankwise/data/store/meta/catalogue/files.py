"""Write a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from rankwise.errors import DataError

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], content: bytes) -> int:
    """Write a file so that whoever looks sees the old content or the new one; return the number of bytes.

    Raises:
        DataError: it cannot be written.
    """
    target = Path(path).expanduser()
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DataError(f"{target} cannot be written: {error.strerror}") from error
    return len(content)
