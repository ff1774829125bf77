"""The threads behind a reader."""

import gc
import os
import threading
import weakref

import pytest

from rankwise.data.store.remote.workers import Workers
from rankwise.testing.faults import fork_while_held
from rankwise.testing.new_threads import threads_since


def running():
    return threads_since("rankwise-remote")


def test_no_more_threads_than_tasks_or_than_allowed():
    """Threads start with the work: two tasks need two, ten need the three that are allowed."""
    for num_tasks, num_threads in ((2, 2), (10, 3)):
        gate, done = threading.Event(), threading.Semaphore(0)
        workers = Workers(3, on_end=lambda: None)
        for _ in range(num_tasks):
            workers.submit(lambda gate=gate, done=done: (gate.wait(20), done.release()))
        assert len(running()) == num_threads
        gate.set()
        for _ in range(num_tasks):
            assert done.acquire(timeout=20)
        workers.close()
        for thread in running():
            thread.join(20)
        assert running() == []


def test_tasks_that_wait_are_run_when_it_closes():
    """Nobody waits for a task in vain; new ones are refused."""
    gate, done = threading.Event(), threading.Semaphore(0)
    workers = Workers(1, on_end=gate.set)
    workers.submit(lambda: gate.wait(20))
    workers.submit(done.release)
    workers.close()
    assert done.acquire(timeout=20)
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(done.release)


def test_a_reader_that_is_forgotten_takes_its_threads_along():
    """Collected like anything else; its threads end and whatever waits in them is told."""
    told = threading.Event()
    workers = Workers(2, on_end=told.set)
    ran = threading.Event()
    workers.submit(ran.set)
    assert ran.wait(20)
    gone = weakref.ref(workers)
    del workers
    gc.collect()
    assert gone() is None
    assert told.is_set()
    for thread in running():
        thread.join(20)
    assert running() == []


def test_a_thread_that_cannot_be_had_is_not_counted(monkeypatch):
    """The system may have no more: the task is refused, and a later one finds a thread."""
    workers, ran = Workers(1, on_end=lambda: None), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_to_be_had)
        with pytest.raises(RuntimeError, match="can't start"):
            workers.submit(lambda: pytest.fail("was refused"))
    workers.submit(ran.set)
    assert len(running()) == 1
    assert ran.wait(20)
    workers.close()


def test_threads_that_are_there_do_what_others_cannot(monkeypatch):
    """A task for which no further thread is to be had waits for those that run, and is not refused."""
    workers, gate, ran = Workers(2, on_end=lambda: None), threading.Event(), threading.Event()
    begun = threading.Event()
    workers.submit(lambda: (begun.set(), gate.wait(20)))
    assert begun.wait(20)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_to_be_had)
        workers.submit(ran.set)
    gate.set()
    assert ran.wait(20)
    workers.close()


def none_to_be_had(_):
    raise RuntimeError("can't start new thread")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_forgets_them_without_a_wait():
    """A thread of the parent had the lock of the queue: the child's copy of a reader goes all the same."""
    setup = """
        from rankwise.data.store.remote.workers import Workers
        workers = Workers(1, on_end=lambda: os._exit(1))
    """
    assert fork_while_held(setup, lock="workers._queue.changed", child="del workers; os._exit(7)") == 7
