"""Object stores through a real S3-compatible server, and a network before it that fails in every way we know."""

import pickle
import random
import re
import threading

import numpy as np
import obstore
import pytest

from rankwise.data.store.remote import ObjectChangedError, RemoteFiles, RemoteOptions, RemoteRange, TransferError
from rankwise.errors import DataError
from rankwise.testing.patience import until

BODY = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()
URL = "s3://bucket/data/a"


@pytest.fixture
def data(bucket):
    obstore.put(bucket, "data/a", BODY)
    obstore.put(bucket, "data/empty", b"")
    return bucket


def ranges(*spans, url=URL, etag=None):
    return [RemoteRange(url=url, offset=start, length=length, etag=etag) for start, length in spans]


def error_of(files, wanted=None):
    [piece] = files.fetch(wanted or ranges((10, 100)))
    assert isinstance(piece, DataError)
    return piece


def test_bytes_come_back_in_the_order_they_were_asked_for(data, proxy, files_at):
    """Any order, overlaps, repeats, empty ranges, the whole object and one that is not there."""
    wanted = ranges((500, 20), (0, 10), (505, 5), (0, 10), (7, 0), (99_990, 10))
    wanted += [RemoteRange(url=URL), RemoteRange(url="s3://bucket/data/none")]
    pieces = files_at(proxy.url).fetch(wanted)
    expected = [BODY[r.offset : r.offset + r.length] for r in wanted[:-2]]
    assert [bytes(piece) for piece in pieces[:-1]] == [*expected, BODY]
    assert pieces[-1] is None


@pytest.mark.parametrize("fault", ["503", "500", "429", "408", "reset", "cut", "drip", "stall", "short"])
def test_what_passes_is_tried_again(data, proxy, files_at, fault):
    """After two failures the third request brings the bytes; both retries are counted, and nothing else happened."""
    proxy.spoil("503", fault)
    # long enough for an answer of a busy machine, else more would fail than is meant to
    files = files_at(proxy.url, timeout_s=8.0 if fault in ("drip", "stall") else 120.0)
    [piece] = files.fetch(ranges((10, 1000)))
    assert bytes(piece) == BODY[10:1010]
    assert proxy.asked() == [("/bucket/data/a", "bytes=10-1009")] * 3
    stats = files.stats
    assert (stats.requests, stats.retries, stats.failures) == (3, 2, 0)
    assert (stats.wanted_bytes, stats.fetched_bytes) == (1000, 1000)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("503", r"503 Service Unavailable \(SlowDown\).*lower RemoteOptions.concurrency"),
        ("500", "500 Internal Server Error"),
        ("reset", "the connection ended in the middle of the response"),
        ("cut", "the connection ended in the middle of the response"),
        ("stall", "no response in time"),
        ("drip", "no response in time"),
    ],
)
def test_what_does_not_pass_is_given_up_and_explained(data, proxy, files_at, fault, reason):
    """The error names URL, bytes, attempts and the last reason; it is no damage of the data."""
    proxy.spoil(*[fault] * 9)
    error = error_of(files_at(proxy.url, retries=3, timeout_s=0.2 if fault in ("drip", "stall") else 120.0))
    assert isinstance(error, TransferError)
    assert (error.damage, error.attempts, error.url) == (False, 4, URL)
    assert error.args[0].startswith(f"{URL} (bytes 10 to 109): given up after 4 attempts in ")
    assert re.search(reason, str(error))
    until(lambda: len(proxy.requests) >= 4)  # who asks may give up before the proxy has looked
    assert len(proxy.requests) == 4


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("403", "refused the request: 403 Forbidden.*Set keys"),
        ("401", "refused the request: 401"),
        ("400", "refused the request: 400"),
        ("501", "501"),
    ],
)
def test_what_cannot_pass_is_raised_at_once(data, proxy, files_at, fault, reason):
    """No second request for an answer that will not change; it is no damage either."""
    proxy.spoil(fault)
    files = files_at(proxy.url)
    error = error_of(files)
    assert isinstance(error, TransferError)
    assert not error.damage
    assert re.search(reason, str(error))
    assert (files.stats.requests, files.stats.retries, files.stats.failures) == (1, 0, 1)


def test_no_attempt_begins_after_the_deadline(data, proxy, files_at):
    """With a deadline that has passed after the first failure there is no second request, however many are allowed."""
    proxy.spoil(*["stall"] * 9)
    error = error_of(files_at(proxy.url, retries=8, timeout_s=0.2, retry_deadline_s=0.2))
    assert "given up after 1 attempt in" in str(error)
    until(lambda: proxy.requests)  # who asks may give up before the proxy has looked
    assert len(proxy.requests) == 1


def test_one_error_never_loses_the_others(data, proxy, files_at, bucket):
    """A store that refuses one object, and a range past the end of another, leave the rest of the fetch alone."""
    obstore.put(bucket, "data/b", BODY)
    proxy.spoil("403", paths="data/b")
    files = files_at(proxy.url)
    wanted = [*ranges((0, 5)), *ranges((0, 5), url="s3://bucket/data/b"), *ranges((99_000, 1000), (99_500, 501))]
    first, refused, fits, past = files.fetch(wanted)
    assert (bytes(first), bytes(fits)) == (BODY[:5], BODY[99_000:])
    assert isinstance(refused, TransferError)
    assert isinstance(past, ObjectChangedError)
    assert str(past).startswith(f"{URL}: requested bytes 99500 to 100000, but the object has 100000")


def test_ranges_that_begin_past_the_end_are_damage(data, proxy, files_at):
    """An index that points past the end of its object means that the object was cut."""
    error = error_of(files_at(proxy.url), ranges((200_000, 5)))
    assert isinstance(error, ObjectChangedError)
    assert error.damage
    assert "requested bytes 200000 to 200004, but the object is shorter" in str(error)
    assert len(proxy.requests) == 1


def test_missing_is_not_denied_and_not_an_unknown_bucket(data, proxy, files_at):
    """None means that the store said so; what it does not say raises."""
    files = files_at(proxy.url)
    none = "s3://bucket/none"
    assert files.read_document(none) is None
    assert files.size(none) is None
    assert files.read_head(none, 4) is None
    assert files.read_tail(none, 4) is None
    proxy.spoil("403")
    with pytest.raises(TransferError, match=r"none \(the whole object\): the store refused the request: 403 Forbidden"):
        files.read_document(none)
    with pytest.raises(TransferError, match=r"no such bucket or container\. Check its name, the endpoint"):
        files.read_document("s3://no-such-bucket/none")


def test_a_range_of_an_object_that_has_gone_is_an_error(data, proxy, files_at):
    """Who asks for a range knows the object: that it is not there is damage, not a chunk that was never written."""
    error = error_of(files_at(proxy.url), ranges((3, 4), url="s3://bucket/none"))
    assert isinstance(error, ObjectChangedError)
    assert "requested bytes 3 to 6, but the object no longer exists: it was deleted" in str(error)


def test_an_object_that_was_replaced_is_refused(bucket, proxy, files_at):
    """Its version is sent along, so the server refuses before any byte of the new object arrives."""
    obstore.put(bucket, "data/moving", b"old" * 100)
    files = files_at(proxy.url)
    url = "s3://bucket/data/moving"
    _, size, etag = files.read_tail(url, 4)
    assert size == 300
    [before] = files.fetch(ranges((0, 6), url=url, etag=etag))
    obstore.put(bucket, "data/moving", b"new" * 100)
    error = error_of(files, ranges((0, 6), url=url, etag=etag))
    assert bytes(before) == b"oldold"
    assert isinstance(error, ObjectChangedError)
    assert error.damage
    assert f"{url} (bytes 0 to 5): it was replaced after it was opened" in str(error)
    assert files.stats.fetched_bytes == 4 + 6
    assert proxy.requests[-1].headers["if-match"] == etag


def test_neighbours_share_a_request(data, proxy, files_at):
    """Ranges with small gaps are joined up to the cap; the statistics tell what the gaps cost."""
    files = files_at(proxy.url, coalesce_gap_bytes=50, max_read_bytes=1000)
    spans = [(0, 100), (100, 100), (250, 100), (401, 100), (501, 600), (1101, 600), (5000, 3000)]
    pieces = files.fetch(ranges(*spans[::-1]))
    assert [bytes(piece) for piece in pieces[::-1]] == [BODY[start : start + length] for start, length in spans]
    asked = sorted((span for _, span in proxy.asked()), key=lambda span: int(span[6:].partition("-")[0]))
    assert asked == ["bytes=0-349", "bytes=401-1100", "bytes=1101-1700", "bytes=5000-7999"]
    assert (files.stats.requests, files.stats.wanted_bytes, files.stats.fetched_bytes) == (4, 4600, 4650)


def test_objects_take_turns(data, proxy, files_at, bucket):
    """One request at a time shows the order: round the objects, each from its start."""
    for name in "xyz":
        obstore.put(bucket, f"turns/{name}", BODY[:1000])
    files = files_at(proxy.url, concurrency=1, coalesce_gap_bytes=0)
    files.fetch([r for name in "xyz" for r in ranges((0, 5), (100, 5), (200, 5), url=f"s3://bucket/turns/{name}")])
    assert [(path[-1], span) for path, span in proxy.asked()] == [
        (name, span) for span in ("bytes=0-4", "bytes=100-104", "bytes=200-204") for name in "xyz"
    ]


def test_no_more_requests_in_flight_than_allowed(data, proxy, files_at):
    """All that are allowed run at once (the server waits for them), and none more."""
    proxy.gate = threading.Barrier(4)
    files = files_at(proxy.url, concurrency=4, coalesce_gap_bytes=0)
    pieces = files.fetch(ranges(*[(1000 * i, 10) for i in range(12)]))
    assert [bytes(piece) for piece in pieces] == [BODY[1000 * i : 1000 * i + 10] for i in range(12)]
    assert proxy.most_in_flight == 4


def test_an_index_at_the_end_takes_one_request(data, proxy, files_at):
    """Bytes, size and version of the object come together; also for many objects, and for one that is too short."""
    files = files_at(proxy.url)
    part = files.read_tail(URL, 16)
    assert (bytes(part.data), part.size) == (BODY[-16:], 100_000)
    assert proxy.asked() == [("/bucket/data/a", "bytes=-16")]
    assert bytes(files.read_tail(URL, 200_000).data) == BODY
    empty = files.read_tail("s3://bucket/data/empty", 4)
    assert (bytes(empty.data), empty.size) == (b"", 0)
    proxy.spoil("403", paths="none")
    head, refused, tail = files.read_tails([(URL, 1), ("s3://bucket/none", 1), (URL, 2)])
    assert (bytes(head.data), bytes(tail.data)) == (BODY[-1:], BODY[-2:])
    assert isinstance(refused, TransferError)


def test_an_index_at_the_start_takes_one_request(data, proxy, files_at):
    """The same from the other side."""
    files = files_at(proxy.url)
    part, none, empty = files.read_heads([(URL, 16), ("s3://bucket/none", 4), ("s3://bucket/data/empty", 4)])
    assert (bytes(part.data), part.size, none) == (BODY[:16], 100_000, None)
    assert (bytes(empty.data), empty.size) == (b"", 0)
    assert files.size(URL) == (100_000, part.etag)


def test_listings_tell_folders_from_objects(bucket, proxy, files_at):
    """One level at a time, with URLs that can be read; nothing there is an empty listing."""
    for name in ("zarr.json", "a/zarr.json", "b c/zarr.json"):
        obstore.put(bucket, f"tree/{name}", b"{}")
    files = files_at(proxy.url)
    found = files.list_prefix("s3://bucket/tree/")
    assert found.folders == ("s3://bucket/tree/a", "s3://bucket/tree/b c")
    assert found.objects == ("s3://bucket/tree/zarr.json",)
    assert files.read_document(f"{found.folders[1]}/zarr.json") == b"{}"
    assert files.list_prefix("s3://bucket/nothing").folders == ()
    proxy.spoil("503")
    assert files.list_prefix("s3://bucket/tree/a").objects == ("s3://bucket/tree/a/zarr.json",)


@pytest.mark.parametrize("name", ["a b", "a#b", "a%20b", "a?b", "a+b", "\u00fc/\u00e9", "[1]", "{x}", "a&b=c", "a'b"])
def test_any_name_means_itself(bucket, files_at, proxy, name):
    """Names that mean something in URLs are taken as they stand: no object is missed for its name."""
    obstore.put(bucket, f"names/{name}", name.encode())
    assert files_at(proxy.url).read_document(f"s3://bucket/names/{name}") == name.encode()


def test_closing_gives_up_what_waits_and_reading_opens_anew(data, proxy, files_at):
    """A request that waits for its next attempt ends when the reader is closed, and not with the deadline."""
    files = files_at(proxy.url, backoff_s=600, max_backoff_s=600)
    proxy.spoil("503")
    pending = files.start(ranges((0, 5)))
    while files.stats.backoff_s == 0:  # counted just before it waits
        threading.Event().wait(0.005)
    files.close()
    [piece] = pending.result()
    assert isinstance(piece, TransferError)
    assert "not read, because its reader was closed" in str(piece)
    assert bytes(files.fetch(ranges((0, 5)))[0]) == BODY[:5]


def test_pieces_can_be_taken_as_they_arrive(data, proxy, files_at):
    """Each once, while others are still missing."""
    proxy.gate = threading.Event()
    proxy.gate.set()
    files = files_at(proxy.url, coalesce_gap_bytes=0)
    pending = files.start(ranges((0, 5), (100, 5), (7, 0)))
    taken = {index: bytes(piece) for index, piece in pending}
    assert taken == {0: BODY[:5], 1: BODY[100:105], 2: b""}
    assert [bytes(piece) for piece in pending.result()] == [taken[0], taken[1], taken[2]]


def test_a_copy_in_another_process_reads_the_same(data, proxy, files_at):
    """Readers travel as their options and connect anew."""
    files = files_at(proxy.url)
    copy = pickle.loads(pickle.dumps(files))
    assert bytes(copy.fetch(ranges((0, 5)))[0]) == BODY[:5]
    assert (files.stats.requests, copy.stats.requests) == (0, 1)
    copy.close()


def test_waiting_leaves_random_numbers_alone(data, proxy, files_at):
    """Jitter has its own generator: a retry must not change the augmentation of a sample."""
    proxy.spoil("503", "503")
    random.seed(1)
    before = random.getstate()
    files_at(proxy.url).read_document(URL)
    assert random.getstate() == before


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environment_is_enough(data, proxy, monkeypatch, name):
    """Endpoint and keys where every other tool looks for them; a reader without options finds them."""
    monkeypatch.setenv(name, proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with RemoteFiles() as files:
        assert files.read_document(URL) == BODY
    assert "from the environment" in proxy.requests[0].headers["authorization"]


def test_what_the_environment_lacks_can_be_mended(data, proxy, monkeypatch):
    """The same reader finds an endpoint that is corrected after a failure."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with RemoteFiles(RemoteOptions(retries=0)) as files:
        with pytest.raises(TransferError, match="no connection"):
            files.read_document(URL)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert files.read_document(URL) == BODY


def test_secrets_stay_out_of_messages(data, proxy, files_at):
    """Neither the options nor an error show a key."""
    proxy.spoil("403")
    files = files_at(proxy.url, store={"secret_access_key": "hush"})
    assert "hush" not in repr(files.options) + str(error_of(files))
