"""The files of arrays: facts about them, read once, and open handles."""

from __future__ import annotations

from rankwise.data.store.files.facts import (
    PAUSES_S,
    ArrayCheck,
    FactsCache,
    FileFacts,
    is_temporary,
    retry_failed,
)
from rankwise.data.store.files.handles import (
    HandleCache,
    OpenFile,
    file_limit,
    local_identity,
    local_size,
    system_file_limit,
    warn_few_handles,
)

__all__ = [
    "PAUSES_S",
    "ArrayCheck",
    "FactsCache",
    "FileFacts",
    "HandleCache",
    "OpenFile",
    "file_limit",
    "is_temporary",
    "local_identity",
    "local_size",
    "retry_failed",
    "system_file_limit",
    "warn_few_handles",
]
