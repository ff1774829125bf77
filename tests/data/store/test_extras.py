"""What has to be installed is named."""

import sys

import pytest

from rankwise.data.store import load_zarr, require_codecs
from rankwise.errors import MissingExtraError


@pytest.mark.parametrize(("module", "call"), [("zarr", load_zarr), ("numcodecs", require_codecs)])
def test_what_is_not_installed_is_named(monkeypatch, module, call):
    """The message says what to install; nothing is said where it is there."""
    call()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"rankwise\[data\]"):
        call()
