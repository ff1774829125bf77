"""zarr-python: what has to be installed for it, and with its own codecs, whatever the program has configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import Any

from rankwise._process.forks import renew_in_children
from rankwise.errors import MissingExtraError

__all__ = ["load_zarr", "plain_codecs", "require_codecs"]

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
    # Asked under the lock: what another thread has set for a moment would pass for the program's own choice, and be
    # put back in the middle of what is opened here.
    with _turns.lock:
        is_plain = zarr.config.get(_KEY) == _PLAIN
    if is_plain:  # nobody changes anything then, so nobody has to wait
        yield
        return
    with _turns.lock, zarr.config.set({_KEY: _PLAIN}):
        yield


def load_zarr() -> ModuleType:
    """Return the zarr module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError("reading Zarr stores needs zarr-python: pip install 'rankwise[data]'") from error
    return zarr


def require_codecs() -> None:
    """Refuse to go on without the decoders of numcodecs; loads nothing.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("numcodecs") is None:
        raise MissingExtraError("decoding Zarr arrays needs numcodecs: pip install 'rankwise[data]'")
