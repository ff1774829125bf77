"""Open files, bounded."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rankwise.data.store.files import HandleCache, file_limit, handles
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
        from rankwise.data.store.files import HandleCache

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_opens_files():
    """A thread of the parent had just made a cache of its own."""
    setup = "from rankwise.data.store.files import handles"
    child = "handles.HandleCache(); os._exit(7)"
    assert fork_while_held(setup, lock="handles._CACHES_LOCK", child=child) == 7
