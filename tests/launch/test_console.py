"""The supervisor's console where no thread is to be had for it."""

import os
import threading

import pytest

from rankwise.launch.local.console import _Outlet


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def none_to_be_had(_):
    raise RuntimeError("can't start new thread")


def test_without_a_thread_all_is_written_at_the_end(pipe, monkeypatch):
    """The system has no more threads: the supervisor goes on, and what waits comes with the last flush."""
    outlet, (reads, writes) = _Outlet(), pipe
    monkeypatch.setattr(threading.Thread, "start", none_to_be_had)
    outlet.put(writes, b"one\n")
    outlet.put(writes, b"two\n")
    outlet.flush()
    assert os.read(reads, 100) == b"one\ntwo\n"


def test_a_thread_is_tried_for_again(pipe, monkeypatch):
    """The next line finds one, which writes what waited, too."""
    outlet, (reads, writes) = _Outlet(), pipe
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_to_be_had)
        outlet.put(writes, b"one\n")
    outlet.put(writes, b"two\n")
    outlet.flush()
    assert os.read(reads, 100) == b"one\ntwo\n"
