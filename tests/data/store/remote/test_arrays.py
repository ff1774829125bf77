"""Zarr arrays written to a real object store come back byte for byte: through indexes and ranges, past faults."""

import itertools

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, ZstdCodec

from rankwise.data.store.remote import ObjectChangedError, RemoteRange, TransferError
from rankwise.errors import DataError

DATA = np.random.default_rng(1).integers(0, 99, (16, 24, 10)).astype("uint16")
MISSING = 2**64 - 1
CHUNKS_PER_SHARD, INDEX_BYTES = (2, 2, 2), 8 * 16 + 4
# not among them: 404, which is how a store says that a shard was never written, and wrong bytes, which codecs must find
FAULTS = ["", "", "503", "500", "reset", "cut", "short", "stall", "drip", "403", "no ranges", "416", "412"]
CODECS = {"zstd": ZstdCodec(), "blosc": BloscCodec(cname="lz4"), "raw": None}


@pytest.fixture(scope="module", params=CODECS)
def written(request, bucket):
    """Metadata of an array of 4 x 3 x 1 shards of 2 x 2 x 2 chunks, of which some were never written."""
    name = f"arrays/{request.param}"
    array = zarr.create_array(
        zarr.storage.ObjectStore(bucket),
        name=name,
        shape=DATA.shape,
        chunks=(2, 4, 5),
        shards=(4, 8, 10),
        dtype=DATA.dtype,
        compressors=CODECS[request.param],
        fill_value=7,
    )
    array[:6, :, :] = DATA[:6]
    array[10:, :16, :5] = DATA[10:, :16, :5]
    return name, array[:], request.param


def decoded(codec, encoded):
    import numcodecs

    if codec == "raw":
        return np.frombuffer(encoded, "<u2")
    decoder = numcodecs.Zstd() if codec == "zstd" else numcodecs.Blosc()
    return np.frombuffer(decoder.decode(bytes(encoded)), "<u2")


def entries(part):
    """(offset, length) of the chunks of a shard from its last bytes; all missing where there is no shard."""
    if part is None:
        return np.full((*CHUNKS_PER_SHARD, 2), MISSING, "u8")
    encoded = bytes(part.data)
    if len(encoded) != INDEX_BYTES:
        raise DataError("the shard is shorter than its index")
    if google_crc32c.value(encoded[:-4]) != int.from_bytes(encoded[-4:], "little"):
        raise DataError("the shard index does not match its checksum")
    return np.frombuffer(encoded[:-4], "<u8").reshape(*CHUNKS_PER_SHARD, 2)


def read(files, written):
    """The array by our own parts: documents, indexes, ranges. DataError where it cannot be had."""
    name, expected, codec = written
    assert files.read_document(f"s3://bucket/{name}/zarr.json") is not None
    shards = list(itertools.product(range(4), range(3), range(1)))
    urls = [f"s3://bucket/{name}/c/{'/'.join(map(str, shard))}" for shard in shards]
    parts = files.read_tails([(url, INDEX_BYTES) for url in urls])
    out, places, wanted = np.full_like(expected, 7), [], []
    for shard, url, part in zip(shards, urls, parts, strict=True):
        if isinstance(part, DataError):
            raise part
        index = entries(part)
        for chunk in itertools.product(*map(range, CHUNKS_PER_SHARD)):
            offset, length = map(int, index[chunk])
            if length != MISSING:
                start = np.array(shard) * (4, 8, 10) + np.array(chunk) * (2, 4, 5)
                places.append(tuple(slice(a, a + n) for a, n in zip(start, (2, 4, 5), strict=True)))
                wanted.append(RemoteRange(url=url, offset=offset, length=length, etag=part.etag))
    for place, piece in zip(places, files.fetch(wanted), strict=True):
        if isinstance(piece, DataError):
            raise piece
        out[place] = decoded(codec, piece).reshape(2, 4, 5)
    return out, wanted


def test_arrays_come_back_byte_for_byte(written, proxy, files_at):
    """Shards and chunks that were never written are the fill value; each shard takes one request for its chunks."""
    files = files_at(proxy.url)
    found, wanted = read(files, written)
    assert (found == written[1]).all()
    num_shards = len({piece.url for piece in wanted})
    assert num_shards == 10
    assert files.stats.requests == 1 + 12 + num_shards
    assert files.stats.retries == 0


def test_arrays_come_back_past_faults(written, proxy, files_at):
    """Half of the requests fail, each time differently: the same bytes, and as many retries as failures."""
    proxy.spoil("503", "", "cut", "500", "", "reset", "short", "", "stall", paths="/c/0/")
    files = files_at(proxy.url, timeout_s=8.0)
    found, _ = read(files, written)
    assert (found == written[1]).all()
    assert files.stats.retries == 6
    assert files.stats.failures == 0


def test_a_flipped_index_is_found(written, proxy, files_at):
    """Wrong bytes of the right length pass the network; the checksum of the index stops them."""
    proxy.spoil("flip", paths="/c/0/0/0")
    with pytest.raises(DataError, match="checksum"):
        read(files_at(proxy.url), written)


def test_a_shard_that_was_written_again_is_refused(written, bucket, proxy, files_at):
    """Its index was read before: the bytes of another version are never decoded with it."""
    import obstore

    name = written[0]
    key = f"{name}/c/0/0/0"
    url = f"s3://bucket/{key}"
    files = files_at(proxy.url)
    part = files.read_tail(url, 68 + 64)
    before = files.read_document(url)
    obstore.put(bucket, key, bytes(len(before)))
    [piece] = files.fetch([RemoteRange(url=url, offset=0, length=8, etag=part.etag)])
    obstore.put(bucket, key, before)
    assert isinstance(piece, ObjectChangedError)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(FAULTS), max_size=30))
def test_any_faults_end_in_the_bytes_or_in_an_error(written, proxy, files_at, faults):
    """Whatever the network does, in any order: the right array or an own error; never a hang, never other bytes."""
    proxy.spoil(*faults)
    files = files_at(proxy.url, timeout_s=0.05, retries=2)
    try:
        found, _ = read(files, written)
    except (DataError, TransferError):
        return
    finally:
        files.close()
    assert (found == written[1]).all()
