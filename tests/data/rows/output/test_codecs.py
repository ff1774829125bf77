"""Codecs as users give them."""

import pytest
import zarr

from rankwise.data.rows.output.shards import codecs_of
from rankwise.errors import ConfigError


def test_one_codec_or_several():
    """Codecs alone or in a list; the name of one is refused with the argument."""
    codec = zarr.codecs.ZstdCodec(level=3)
    assert codecs_of(codec, "compressors") == codecs_of([codec], "compressors") == (codec,)
    assert codecs_of(None, "compressors") is None
    for wrong in ("lz4", ["lz4"], []):
        with pytest.raises(
            ConfigError, match=r"compressors= must be a list .* \[zarr.codecs.ZstdCodec\(level=3\)\]; got"
        ):
            codecs_of(wrong, "compressors")
