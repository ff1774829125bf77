"""What reading costs and leaves behind: chunks decoded, files opened, indexes read, memory, threads."""

import _thread
import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec, ZstdCodec

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.testing.new_threads import threads_since

DATA = np.random.default_rng(5).integers(0, 60_000, (64, 48)).astype("u2")
LAYOUTS = {
    "fast": {"chunks": (8, 16), "shards": (32, 16), "compressors": ZstdCodec(level=1)},
    "slow": {"chunks": (8, 16), "shards": (32, 16), "compressors": GzipCodec(level=1)},
    "files": {"chunks": (16, 16), "compressors": None, "serializer": BytesCodec(endian="little")},
}
NUM_CHUNKS = {"fast": 24, "slow": 24, "files": 12}
NUM_FILES = {"fast": 6, "slow": 6, "files": 12}


@pytest.fixture(scope="module")
def metas(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("arrays"), {}
    for name, options in LAYOUTS.items():
        zarr.create_array(folder / name, shape=DATA.shape, dtype=DATA.dtype, **options)[...] = DATA
        found[name] = read_meta(str(folder / name))
    return found


def boxes(*metas, num=12, shape=(20, 20)):
    """Boxes here and there, in turn out of each array; every chunk is touched by several."""
    corners = np.stack(np.unravel_index(np.arange(num) * 379 % (45 * 29), (45, 29)), axis=1)
    corners[: len(metas)], corners[len(metas) : 2 * len(metas)] = 0, (44, 28)
    return BoxRequest(
        arrays=metas, which=np.arange(num) % len(metas), starts=corners.astype(np.int64), shape=shape,
        dtype=np.dtype("f4"),
    )  # fmt: skip


def everything(meta):
    return BoxRequest(
        arrays=(meta,),
        which=np.zeros(2, np.int64),
        starts=np.zeros((2, 2), np.int64),
        shape=DATA.shape,
        dtype=DATA.dtype,
    )


def read(reader, request):
    out = np.full((len(request), *request.shape), 7, request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    assert report.valid.all(), report.errors
    for box, (row, column) in enumerate(request.starts.tolist()):
        expected = DATA[row : row + request.shape[0], column : column + request.shape[1]]
        np.testing.assert_array_equal(out[box], expected)
    return report


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_chunk_once_and_each_file_once(metas, name):
    """Two boxes over a whole array: its chunks are decoded once, its files opened once, also over several requests."""
    with BoxReader(threads=2, cache=0) as reader:
        for turn in (1, 2):
            report = read(reader, everything(metas[name]))
            assert report.fast_chunks + report.slow_chunks == NUM_CHUNKS[name]
            assert reader.stats.targets == turn * 2 * NUM_CHUNKS[name]
            assert reader.stats.decoded_bytes == turn * reader.plan(everything(metas[name])).decode_bytes
            assert reader.handles.num_opened == (0 if name == "slow" else NUM_FILES[name])
            assert reader.facts.num_looked_at == NUM_FILES[name]


def test_an_index_is_read_once(metas, monkeypatch):
    """Whatever is asked of a shard, its index comes from disk at the first time only, and again after closing."""
    opened, real = [], Path.open  # how indexes are read; chunks are read through kept handles
    monkeypatch.setattr(Path, "open", lambda path, *rest, **named: opened.append(path) or real(path, *rest, **named))
    with BoxReader(threads=2) as reader:
        for _ in range(3):
            read(reader, boxes(metas["fast"]))
        assert len(opened) == len(set(opened)) == NUM_FILES["fast"]
        reader.close()
        read(reader, boxes(metas["fast"]))
    assert len(opened) == 2 * NUM_FILES["fast"]


def test_a_file_that_many_threads_want_is_opened_few_times(metas):
    """Threads that need the same file at the same time do not open it for each chunk."""
    with BoxReader(threads=3, cache=0, max_open_files=1) as reader:
        read(reader, everything(metas["fast"]))
        assert reader.handles.num_opened <= NUM_CHUNKS["fast"]
        assert len(reader.handles) == 1


@pytest.mark.parametrize("cache", [pytest.param(0, marks=pytest.mark.slow), 3000])
def test_the_steady_state_allocates_nothing_that_grows(metas, cache):
    """Fifty batches leave no more memory in use than they found, with a cache that is off or too small."""
    small = {"shape": (3, 5)}
    requests = [boxes(metas["fast"], metas["files"], num=9, **small), boxes(metas["slow"], num=2, **small)]
    out = {len(request): np.zeros((len(request), *request.shape), request.dtype) for request in requests}
    with BoxReader(threads=2, cache=cache) as reader:

        def batches(num):
            for number in range(num):
                request = requests[number % 5 == 0]
                reader.hint([reader.plan(request)])
                reader.read([(reader.plan(request), out[len(request)])])
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            used = [batches(10), batches(50)]
            while used[-1] - used[-2] >= 8000 and len(used) < 8:  # lists of free objects settle, leaks do not
                used.append(batches(50))
            assert used[-1] - used[-2] < 8000, used
        finally:
            tracemalloc.stop()


def test_threads_share_a_reader(metas):
    """Two threads that read through one reader get their own values, and the counts of both add up."""
    with BoxReader(threads=2, cache=10**5) as reader, ThreadPoolExecutor(2) as pool:
        barrier = threading.Barrier(2)

        def work(names):
            barrier.wait()
            for num in range(6, 26):
                read(reader, boxes(*(metas[name] for name in names), num=num))

        for done in [pool.submit(work, ("fast", "slow")), pool.submit(work, ("files", "fast"))]:
            done.result()
        assert reader.stats.boxes == 2 * sum(range(6, 26))
        assert reader.stats.failed_boxes == 0


def test_closing_while_others_read(metas):
    """A reader that is closed in the middle of reads opens what they need again; none fails."""
    with BoxReader(threads=2, cache=0) as reader, ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: [read(reader, boxes(*metas.values())) for _ in range(25)])
        while not done.done():
            reader.close()
        reports = [*done.result(), read(reader, boxes(*metas.values()))]
    assert len(reports) == 26
    assert all(report.valid.all() for report in reports)


CHILD = """
import pickle, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
reader, request, digest = pickle.load(sys.stdin.buffer)
out = np.zeros((len(request), *request.shape), request.dtype)
(report,) = reader.read([(reader.plan(request), out)])
assert report.valid.all()
print(reader.stats.boxes, out.tobytes() == digest)
"""


def test_a_reader_travels(metas):
    """Pickled in use, it arrives in another process with nothing open and nothing counted, and reads there."""
    request = boxes(*metas.values())
    with BoxReader(threads=2) as reader:
        out = np.zeros((len(request), *request.shape), request.dtype)
        reader.read([(reader.plan(request), out)])
        sent = pickle.dumps((reader, request, out.tobytes()))
    done = subprocess.run([sys.executable, "-c", CHILD], input=sent, capture_output=True, check=False, timeout=120)
    assert done.stdout.decode() == f"{len(request)} True\n", done.stderr.decode()


FORKS = """
import faulthandler, os, pickle, signal, sys, threading, warnings
import numpy as np
warnings.simplefilter("ignore")
faulthandler.register(signal.SIGALRM, chain=True)  # says where it hangs, then ends the process
signal.alarm(90)
reader, requests = pickle.load(sys.stdin.buffer)

def read(request):
    out = np.zeros((len(request), *request.shape), request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    assert report.valid.all(), report.errors
    return out.tobytes()

expected = [read(request) for request in requests]
busy = threading.Event()
ended = threading.Event()

def work():  # locks are held and work is under way whenever the process forks
    while not ended.is_set():
        for request in requests:
            read(request)
        busy.set()

worker = threading.Thread(target=work)
worker.start()
busy.wait()
for _ in range(6):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            status = 0 if [read(request) for request in requests] == expected else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
ended.set()
worker.join()
print("well")
"""


def test_forked_processes_read(metas):
    """A process that is forked in the middle of a read reads on its own, by our decoders and by zarr-python."""
    requests = [boxes(meta, num=4) for meta in metas.values()]
    sent = pickle.dumps((BoxReader(threads=2, cache=0), requests))
    done = subprocess.run([sys.executable, "-c", FORKS], input=sent, capture_output=True, check=False, timeout=120)
    assert done.stdout == b"well\n", done.stderr.decode()[-4000:]


def decoders():
    return threads_since("rankwise-decoder")


def test_an_interrupt_leaves_nothing_stuck(metas, monkeypatch):
    """Control-C in the middle of a read ends it; the reader then works as before, and its threads end with it."""
    pread, waiting = os.pread, threading.Event()

    def interrupting(*arguments):
        if not waiting.is_set():
            waiting.set()
            _thread.interrupt_main()
        return pread(*arguments)

    monkeypatch.setenv("RANKWISE_DECODER", "threads")
    with BoxReader(threads=2, cache=0) as reader:
        read(reader, everything(metas["fast"]))
        with mock.patch.object(os, "pread", interrupting), pytest.raises(KeyboardInterrupt):
            read(reader, everything(metas["fast"]))
        assert waiting.is_set()
        for name in LAYOUTS:
            read(reader, everything(metas[name]))
    assert not decoders()


def open_files(metas):
    """Those of the arrays: others of this process come and go as they like."""
    folder, found = str(Path(metas["fast"].place).parent), []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in between, such as the listing's own
            found.append(str(entry.readlink()))
    return [path for path in found if path.startswith(folder)]


def test_a_reader_that_nobody_holds_leaves_nothing(metas):
    """Never closed, only forgotten: its files are closed and its threads end."""
    gc.collect()
    assert not open_files(metas)
    reader = BoxReader(threads=3, cache=0)
    read(reader, boxes(metas["fast"], metas["files"]))
    mine = decoders()
    assert mine
    assert open_files(metas)
    del reader
    gc.collect()
    for thread in mine:
        thread.join(30)
        assert not thread.is_alive()
    assert not open_files(metas)


def test_metadata_are_parsed_once(metas, monkeypatch):
    """Requests carry parsed metadata: reading never parses a document of an array on the fast path."""
    parsed = mock.Mock(side_effect=json.loads)
    monkeypatch.setattr(json, "loads", parsed)
    with BoxReader(threads=1) as reader:
        read(reader, boxes(metas["fast"], metas["files"]))
    assert parsed.call_count == 0
