"""zarr-python over our requests: the same data, retries, counts and errors."""

import asyncio
import contextlib
import threading

import numpy as np
import obstore
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.codecs import GzipCodec
from zarr.core.buffer import default_buffer_prototype

from rankwise.data.store import BoxReader, BoxRequest, StoredNodes, read_meta
from rankwise.data.store.remote import (
    ObjectChangedError,
    RemoteFiles,
    RemoteOptions,
    RemoteStats,
    TransferError,
    memory_store,
)
from rankwise.data.store.remote.client import Client
from rankwise.data.store.remote.zarr_view import ZarrView
from rankwise.data.store.stats import Tally

DATA = np.arange(7 * 9, dtype="i4").reshape(7, 9)
PROTOTYPE = default_buffer_prototype()


@pytest.fixture
def written(bucket):
    zarr.create_array(
        zarr.storage.ObjectStore(bucket),
        name="view/slow",
        data=DATA,
        chunks=(2, 3),
        shards=(4, 9),
        compressors=GzipCodec(),
        overwrite=True,
    )
    return "s3://bucket/view/slow"


def test_arrays_are_read_past_faults(written, proxy, files_at):
    """Whole chunks and parts of shards; the retries are ours and counted."""
    files = files_at(proxy.url)
    array = zarr.open_array(files.zarr_store(written), mode="r")
    proxy.spoil("503", "", "cut", paths="/c/")
    assert (array[:] == DATA).all()
    assert (array[1:3, 2:5] == DATA[1:3, 2:5]).all()
    assert files.stats.retries == 2


def test_trouble_with_the_store_is_not_a_missing_chunk(written, proxy, files_at):
    """A bucket that is not there, a refusal and a server that is down raise: none of them is a fill value."""
    array = zarr.open_array(files_at(proxy.url, retries=0).zarr_store(written), mode="r")
    for fault in ("403", "500"):
        proxy.spoil(*[fault] * 20, paths="/c/")
        with pytest.raises(TransferError) as caught:
            array[:]
        assert not caught.value.damage
    with pytest.raises(TransferError, match="no such bucket"):
        zarr.open_array(files_at(proxy.url).zarr_store("s3://no-such-bucket/a"), mode="r")


def get(store, key, wanted=None):
    found = asyncio.run(store.get(key, PROTOTYPE, wanted))
    return None if found is None else found.to_bytes()


def test_parts_of_objects():
    """From the start, from the end, from the middle; past the end is an error, not fewer bytes."""
    obstore.put(memory_store("memory://parts"), "a/b", b"0123456789")
    with RemoteFiles() as files:
        store = files.zarr_store("memory://parts/a")
        assert get(store, "b") == b"0123456789"
        assert get(store, "b", RangeByteRequest(2, 5)) == b"234"
        assert get(store, "b", OffsetByteRequest(7)) == b"789"
        assert get(store, "b", SuffixByteRequest(2)) == b"89"
        assert get(store, "c") is None
        assert get(store, "c", RangeByteRequest(2, 5)) is None
        for wanted in (RangeByteRequest(8, 12), RangeByteRequest(10, 12), OffsetByteRequest(11)):
            with pytest.raises(ObjectChangedError, match="truncated or replaced"):
                get(store, "b", wanted)


def test_listings_and_refusals():
    """What a store has to be able to do; nothing can be written."""
    memory = memory_store("memory://listing")
    for key in ("g/zarr.json", "g/a/zarr.json", "g/a/c/0", "h"):
        obstore.put(memory, key, b"{}")

    async def collect(names):
        return sorted([name async for name in names])

    with RemoteFiles() as files:
        store = files.zarr_store("memory://listing")
        assert asyncio.run(collect(store.list())) == ["g/a/c/0", "g/a/zarr.json", "g/zarr.json", "h"]
        assert asyncio.run(collect(store.list_prefix("g/a"))) == ["g/a/c/0", "g/a/zarr.json"]
        assert asyncio.run(collect(store.list_dir("g/"))) == ["a", "zarr.json"]
        assert asyncio.run(store.exists("h"))
        assert not asyncio.run(store.exists("g"))
        assert store == files.zarr_store("memory://listing/")
        assert store != files.zarr_store("memory://other")
        with pytest.raises(ValueError, match=r"opened for reading|read-only"):
            asyncio.run(store.set("x", PROTOTYPE.buffer.from_bytes(b"x")))
        with pytest.raises(ValueError, match="h was neither written nor deleted"):
            asyncio.run(store.delete("h"))


def test_boxes_know_trouble_from_damage_on_this_way_too(written, proxy, files_at):
    """A refused chunk of a codec that only zarr-python decodes is no damage; the message says who refused what."""
    files = files_at(proxy.url)
    meta = read_meta(written, nodes=StoredNodes(files))
    request = BoxRequest(
        arrays=(meta,), which=np.zeros(2, "i8"), starts=np.array([[0, 0], [4, 0]]), shape=(2, 3), dtype=np.dtype("i4")
    )
    out = np.zeros((2, 2, 3), "i4")
    with BoxReader(remote=files.options, cache=0) as reader:
        plan = reader.plan(request)
        proxy.spoil(*["403"] * 20, paths="/c/0/0")
        [report] = reader.read([(plan, out)])
    assert report.slow_chunks > 0
    assert report.valid.tolist() == [False, True]
    assert (out[1] == DATA[4:6, :3]).all()
    [error] = report.errors
    assert not error.damage
    assert f"{written}/c/0/0" in str(error.error)
    assert "the store refused the request: 403 Forbidden" in str(error.error)


def test_a_read_that_was_cancelled_is_not_done():
    """Its task finds nobody to tell, and ends like any other."""
    client, gate, read = Client(RemoteOptions(concurrency=1), Tally(RemoteStats())), threading.Event(), []
    view = ZarrView("memory://cancelled", lambda: client)

    async def cancelled():
        client.submit(lambda _: gate.wait(20))
        reading = asyncio.create_task(view._on_thread(read.append))
        await asyncio.sleep(0)  # it has asked by then
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        gate.set()
        return reading.cancelled()

    assert asyncio.run(cancelled())
    assert client.submit(lambda _: len(read)).result(20) == 0
    client.close()
