"""zarr-python's own codecs while something is opened, and the program's own pipeline before and after."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zarr

from rankwise.data.store import zarr_python
from rankwise.data.store.zarr_python import plain_codecs

KEY, PLAIN = "codec_pipeline.path", "zarr.core.codec_pipeline.BatchedCodecPipeline"


def test_another_pipeline_comes_back():
    """Set inside, put back outside, also after an error; nested ones do not disturb each other."""

    def failing():
        with plain_codecs(zarr):
            with plain_codecs(zarr):
                assert zarr.config.get(KEY) == PLAIN
            assert zarr.config.get(KEY) == PLAIN
            raise KeyError

    with zarr.config.set({KEY: "their.Pipeline"}):
        with pytest.raises(KeyError):
            failing()
        assert zarr.config.get(KEY) == "their.Pipeline"


def test_nothing_happens_where_nothing_is_set():
    """With the plain pipeline nobody waits for anybody."""
    with plain_codecs(zarr), ThreadPoolExecutor(1) as pool:

        def inside():
            with plain_codecs(zarr):
                return zarr.config.get(KEY)

        assert pool.submit(inside).result(30) == PLAIN


def test_threads_take_turns():
    """Many threads that open arrays at once leave the pipeline as it was."""
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(50):
            with plain_codecs(zarr):
                assert zarr.config.get(KEY) == PLAIN

    with zarr.config.set({KEY: "their.Pipeline"}):
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for _ in range(4)]:
                done.result()
        assert zarr.config.get(KEY) == "their.Pipeline"


class Door:
    """A lock that tells who asks for it."""

    def __init__(self, asked):
        self.lock, self.asked = threading.RLock(), asked

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_what_another_thread_has_set_is_not_taken_for_the_programs_own(monkeypatch):
    """Who comes while another thread is inside still has the plain codecs when that one has left."""
    arrived, left = threading.Event(), threading.Event()
    monkeypatch.setattr(zarr_python, "_config_lock", Door(arrived))

    def second():
        with plain_codecs(zarr):
            arrived.set()
            assert left.wait(60)
            return zarr.config.get(KEY)

    with zarr.config.set({KEY: "their.Pipeline"}), ThreadPoolExecutor(1) as pool:
        with plain_codecs(zarr):
            seen = pool.submit(second)
            assert arrived.wait(60)
        left.set()
        assert seen.result(60) == PLAIN
