"""What has to be installed to read Zarr arrays."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType

from rankwise.errors import MissingExtraError

__all__ = ["load_zarr", "require_codecs"]


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
