"""The files of arrays: what is in them, told once, and handles to read them with."""

from __future__ import annotations

from rankwise.data.store.files.facts import FileAddress, FileBook, FileFacts
from rankwise.data.store.files.handles import HandleCache, OpenFile, file_limit, local_identity, local_size
from rankwise.data.store.files.saying import say_few_handles, system_file_limit
from rankwise.data.store.files.standing import Standing
from rankwise.data.store.files.trying import PAUSES_S, is_passing

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
]
