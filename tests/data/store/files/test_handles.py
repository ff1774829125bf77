"""Open files, bounded."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rankwise.data.store.files import handles
from rankwise.data.store.files.handles import HandleCache, file_limit
from rankwise.testing.faults import fork_while_held


def test_the_least_recently_used_is_closed(tmp_path):
    """At most `capacity` files stay open; one that somebody still reads is closed when he is done."""
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
    cache = HandleCache(2)
    first = cache.get(str(tmp_path / "a"))
    cache.get(str(tmp_path / "b"))
    cache.get(str(tmp_path / "c"))
    assert len(cache) == 2
    assert os.pread(first.fd, 1, 0) == b"a"
    fd = first.fd
    del first
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_handle_is_shared(tmp_path):
    """Asking twice opens once."""
    (tmp_path / "a").write_bytes(b"a")
    cache = HandleCache(2)
    assert cache.get(str(tmp_path / "a")) is cache.get(str(tmp_path / "a"))
    assert cache.num_opened == 1
    cache.discard(str(tmp_path / "a"))
    cache.get(str(tmp_path / "a"))
    assert cache.num_opened == 2


def test_two_threads_open_a_file_once(tmp_path, monkeypatch):
    """A thread that asks for a file which another is opening waits for it and shares what it opened."""
    (tmp_path / "a").write_bytes(b"a")
    both_open, cache = threading.Barrier(2), HandleCache(2)

    class Slow(handles.OpenFile):
        def __init__(self, path):
            with contextlib.suppress(threading.BrokenBarrierError):
                both_open.wait(0.3)  # two that open at the same time meet here
            super().__init__(path)

    monkeypatch.setattr(handles, "OpenFile", Slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(cache.get, [str(tmp_path / "a")] * 2)
    assert first is second
    assert cache.num_opened == 1


def test_a_file_that_is_not_there_is_said_to_all(tmp_path):
    """An error in opening leaves nothing held: the next who asks gets the same error, or the file once it is there."""
    cache = HandleCache(2)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            cache.get(str(tmp_path / "a"))
    (tmp_path / "a").write_bytes(b"a")
    assert os.pread(cache.get(str(tmp_path / "a")).fd, 1, 0) == b"a"


def test_the_limit_leaves_room():
    """A reader takes at most half of what the process may open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 16 <= file_limit() <= max(16, soft // 2)


def test_readers_share_the_limit_of_the_process(tmp_path):
    """Several readers may together reach the limit of open files: files that nobody reads are closed, not refused."""
    script = textwrap.dedent("""
        import os, resource, sys
        from rankwise.data.store.files.handles import HandleCache

        paths = [os.path.join(sys.argv[1], str(number)) for number in range(60)]
        for path in paths:
            open(path, "x").close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        caches = [HandleCache(50) for _ in range(3)]
        for cache in caches * 2:
            for path in paths:
                assert os.fstat(cache.get(path).fd).st_size == 0
        assert 1 <= min(map(len, caches))  # those that are closed are the least recently used ones
        kept = [cache.get(path) for cache in caches[:1] for path in paths[:20]]
        assert len({handle.fd for handle in kept}) == 20
    """)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_batch_of_more_files_than_the_process_may_open(tmp_path):
    """A reader opens no more files at a time than it may; told to open more, it reads them later one by one."""
    script = textwrap.dedent("""
        import os, resource, sys
        import numpy as np, zarr
        from rankwise.data.store import BoxReader, BoxRequest, read_meta

        place = sys.argv[1] + "/a.zarr"
        values = np.arange(900, dtype="i4").reshape(300, 3)
        zarr.create_array(place, shape=(300, 3), chunks=(1, 3), dtype="i4")[:] = values
        starts = np.stack([np.arange(300), np.zeros(300, dtype=np.int64)], axis=1)
        request = BoxRequest(
            arrays=(read_meta(place),), which=np.zeros(300, dtype=np.int64), starts=starts, shape=(1, 3),
            dtype=np.dtype("i4"),
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        def read(reader):
            out = np.zeros((300, 1, 3), dtype="i4")
            (report,) = reader.read([(reader.plan(request), out)])
            return report, out

        for most, threads in ((None, 3), (1000, 1)):
            reader = BoxReader(cache=0, threads=threads, max_open_files=most)
            report, out = read(reader)
            assert report.valid.all() and np.array_equal(out[:, 0], values), report.errors[:1]
            assert (reader.stats.retries > 0) == (most is not None)
            reader.close()
        held = [open(os.devnull) for _ in range(100 - len(os.listdir("/proc/self/fd")))]
        print(read(BoxReader(cache=0, threads=1))[0].errors[0].error)
    """)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Too many open files, this process may open 100: raise that (ulimit -n 4096)" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_opens_files():
    """A thread of the parent had just made a cache of its own."""
    setup = "from rankwise.data.store.files import handles"
    child = "handles.HandleCache(); os._exit(7)"
    assert fork_while_held(setup, lock="handles._CACHES_LOCK", child=child) == 7
