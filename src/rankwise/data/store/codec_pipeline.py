"""zarr-python with its own codecs, whatever pipeline the program has configured for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from rankwise.data.store.forks import renew_in_children

__all__ = ["plain_codecs"]

_KEY = "codec_pipeline.path"
_PLAIN = "zarr.core.codec_pipeline.BatchedCodecPipeline"


class _Turns:
    """One at a time: each puts back what it found, so overlapping ones would put back each other's."""

    def __init__(self) -> None:
        self.lock = RLock()
        renew_in_children(self)

    def renew(self) -> None:
        self.lock = RLock()


_turns = _Turns()


@contextmanager
def plain_codecs(zarr: Any) -> Iterator[None]:
    """Arrays that are opened meanwhile use zarr-python's own codecs: another pipeline may refuse what they know."""
    if zarr.config.get(_KEY) == _PLAIN:
        yield
        return
    with _turns.lock, zarr.config.set({_KEY: _PLAIN}):
        yield
