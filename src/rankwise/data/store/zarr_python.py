"""Loads zarr-python, or says what to install; and opens arrays with its own codecs, whatever is configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rankwise._process.forks import fork_gate
from rankwise.errors import MissingExtraError, needs_extra

_KEY = "codec_pipeline.path"
_PLAIN = "zarr.core.codec_pipeline.BatchedCodecPipeline"


# Each holder restores the configuration that it found: overlapping ones would restore each other's, and a child that is
# forked meanwhile would keep a temporary one.
_config_lock = fork_gate()


@contextmanager
def plain_codecs(zarr: Any) -> Iterator[None]:
    """Let arrays opened inside use zarr-python's own codecs: another pipeline may not support them."""
    # Checked under the lock: otherwise another thread's temporary setting would look like the program's own choice, and
    # be restored while arrays are opened here.
    with _config_lock:
        is_plain = zarr.config.get(_KEY) == _PLAIN
    if is_plain:  # nothing is changed then, so no thread has to wait
        yield
        return
    with _config_lock, zarr.config.set({_KEY: _PLAIN}):
        yield


def load_zarr() -> ModuleType:
    """Return the zarr module.

    Raises:
        MissingExtraError: it is not installed.
    """
    with needs_extra("reading Zarr stores needs zarr-python: pip install 'rankwise[data]'"):
        import zarr
    return zarr


def open_document(text: str, *, zarr_format: Any) -> Any:
    """Return the array that the text of a zarr.json or .zarray describes, without chunks.

    Raises:
        MissingExtraError: zarr is not installed.
    """
    zarr = load_zarr()
    name = ".zarray" if zarr_format == 2 else "zarr.json"
    with plain_codecs(zarr):
        content = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(text.encode())
        store = zarr.storage.MemoryStore({name: content})
        return zarr.open_array(store, mode="r", zarr_format=zarr_format)


def require_codecs() -> None:
    """Raise an error if numcodecs is not installed; imports nothing.

    Raises:
        MissingExtraError: it is not installed.
    """
    if find_spec("numcodecs") is None:
        raise MissingExtraError("decoding Zarr arrays needs numcodecs: pip install 'rankwise[data]'")
