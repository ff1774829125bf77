"""Names of codecs."""

import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from rankwise.data.crops.audit.costs import codec_name
from rankwise.data.store import read_meta


@pytest.mark.parametrize(
    ("compressor", "name"),
    [
        (ZstdCodec(level=3), "zstd-3"),
        (BloscCodec(cname="lz4", clevel=5), "blosc-lz4"),
        (GzipCodec(level=1), "gzip"),
        (None, "none"),
    ],
)
@pytest.mark.parametrize("shards", [None, (16, 32, 32)])
def test_version_3(write, compressor, name, shards):
    """The name is that of the compressor of the inner chunks."""
    assert codec_name(read_meta(write(compressors=compressor, shards=shards))) == name


def test_version_2(tmp_path):
    """The same for the older format."""
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="u1", zarr_format=2)
    assert codec_name(read_meta(tmp_path / "a")).startswith("zstd")
