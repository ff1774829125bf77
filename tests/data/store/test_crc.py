"""CRC-32C."""

import sys

from rankwise.data.store.shard import crc32c


def test_known_values(monkeypatch):
    """The values of RFC 3720 appendix B.4, with the library and without it."""
    cases = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E, b"123456789": 0xE3069283}
    assert {data: crc32c(data) for data in cases} == cases
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert {data: crc32c(data) for data in cases} == cases
