"""The files of arrays: facts about them, read once, and open handles."""

from __future__ import annotations

from rankwise.data.store.files.facts import (
    PAUSES_S,
    FileAddress,
    FileBook,
    FileFacts,
    Standing,
    is_passing,
    try_again,
)
from rankwise.data.store.files.handles import (
    HandleCache,
    OpenFile,
    file_limit,
    local_identity,
    local_size,
    say_few_handles,
    system_file_limit,
)

__all__ = [
    "PAUSES_S",
    "FileAddress",
    "FileBook",
    "FileFacts",
    "HandleCache",
    "OpenFile",
    "Standing",
    "file_limit",
    "is_passing",
    "local_identity",
    "local_size",
    "say_few_handles",
    "system_file_limit",
    "try_again",
]
