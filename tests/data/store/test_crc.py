"""CRC-32C."""

import sys

import pytest

from rankwise.data.store.shard import crc32c
from rankwise.errors import MissingExtraError


def test_known_values():
    """The values of RFC 3720 appendix B.4."""
    cases = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"123456789": 0xE3069283}
    assert {data: crc32c(data) for data in cases} == cases


def test_without_the_library_the_extra_is_named(monkeypatch):
    """It comes with zarr-python."""
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(MissingExtraError, match=r"rankwise\[data\]"):
        crc32c(b"")
