"""Tasks in the background, one after the other."""

import threading

import pytest

from rankwise.data.rows.loader.worker import SerialWorker
from rankwise.testing.new_threads import threads_since


def threads():
    return threads_since("rankwise-rows")


def test_tasks_follow_each_other():
    """Never two at once, in the order in which they came; then the thread ends, and another begins for new ones."""
    worker, done = SerialWorker(), []
    for _ in range(2):
        futures = [worker.submit(lambda number=number: done.append(number) or number) for number in range(50)]
        assert [future.result(20) for future in futures] == list(range(50))
        for thread in threads():
            thread.join(20)
        assert not threads()
    assert done == [*range(50), *range(50)]


def test_errors_are_raised_where_results_are_asked_for():
    """The tasks after one that fails are done all the same; one that was cancelled is not."""
    worker, gate, done = SerialWorker(), threading.Event(), []
    first = worker.submit(lambda: gate.wait(20))
    failing = worker.submit(lambda: 1 // 0)
    cancelled = worker.submit(lambda: done.append("cancelled"))
    last = worker.submit(lambda: "done")
    assert cancelled.cancel()
    gate.set()
    assert first.result(20)
    with pytest.raises(ZeroDivisionError):
        failing.result(20)
    assert last.result(20) == "done"
    assert not done


def test_without_more_threads_who_asks_does_the_work(monkeypatch):
    """At the end of the interpreter, or at the limit of the system, nobody waits for a thread that never began."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    worker = SerialWorker()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert worker.submit(threading.current_thread).result(0) is threading.current_thread()
    assert worker.submit(threading.current_thread).result(20) is not threading.current_thread()
