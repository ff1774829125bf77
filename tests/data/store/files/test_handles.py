"""Open files, bounded."""

import os

import pytest

from rankwise.data.store.files import HandleCache, file_limit


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
    cache.forget(str(tmp_path / "a"))
    cache.get(str(tmp_path / "a"))
    assert cache.num_opened == 2


def test_the_limit_leaves_room():
    """A reader takes at most half of what the process may open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 16 <= file_limit() <= max(16, soft // 2)
