"""The threads behind a reader."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import pytest

from rankwise.data.store.remote import RemoteFiles, RemoteOptions, RemoteRange, RemoteStats
from rankwise.data.store.remote.client import Client
from rankwise.data.store.stats import Tally
from rankwise.testing.faults import fork_while_held
from rankwise.testing.new_threads import threads_end, threads_since

NOBODY = RemoteRange(url="http://127.0.0.1:9/x", length=4)


def running():
    return threads_since("rankwise-remote")


def client_of(concurrency):
    return Client(RemoteOptions(concurrency=concurrency), Tally(RemoteStats()))


def waiting(options):
    """A reader that waits for a further attempt, and what it was asked for."""
    files = RemoteFiles(options)
    pending = files.start([NOBODY])
    while files.stats.backoff_s == 0:  # counted just before it waits
        threading.Event().wait(0.005)
    return files, pending


def test_no_more_threads_than_tasks_or_than_allowed():
    """Threads start with the work: two tasks need two, ten need the three that are allowed."""
    for num_tasks, num_threads in ((2, 2), (10, 3)):
        gate, client = threading.Event(), client_of(3)
        reads = [client.submit(lambda _, gate=gate: gate.wait(20)) for _ in range(num_tasks)]
        assert len(running()) == num_threads
        gate.set()
        assert all(read.result(20) for read in reads)
        client.close()
        assert threads_end("rankwise-remote")


def test_tasks_that_wait_are_run_when_it_closes():
    """Nobody waits for a task in vain; new ones are refused."""
    gate, client = threading.Event(), client_of(1)
    client.submit(lambda _: gate.wait(20))
    last = client.submit(lambda client: client.is_open)
    client.close()
    gate.set()
    assert last.result(20) is False
    with pytest.raises(RuntimeError, match="shutdown"):
        client.submit(lambda _: None)


def test_a_reader_that_is_forgotten_takes_its_threads_along():
    """Collected like anything else, also by a thread that waits; its threads end, whatever they wait for."""
    files, pending = waiting(RemoteOptions(backoff_s=600, max_backoff_s=600, retry_deadline_s=3600))
    files.itself = files
    del files
    gc.collect()
    [piece] = pending.result()
    assert "not read, because its reader was closed" in str(piece)
    del pending
    assert threads_end("rankwise-remote")


def test_what_no_thread_can_do_is_done_at_once(monkeypatch):
    """The system may have no more threads: the caller reads; and a later read finds a thread."""
    client = client_of(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_to_be_had)
        assert client.submit(lambda _: threading.get_ident()).result(0) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            client.submit(lambda _: 1 // 0).result(0)
    assert client.submit(lambda _: threading.get_ident()).result(20) != threading.get_ident()
    client.close()


def none_to_be_had(_):
    raise RuntimeError("can't start new thread")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("lock", ["files._open()._pool._shutdown_lock", "files._lock"])
def test_a_forked_child_forgets_them_without_a_wait(lock):
    """A thread of the parent had a lock of the reader: the child closes and drops its copy all the same."""
    setup = """
        from rankwise.data.store.remote import RemoteFiles
        files = RemoteFiles()
        files._open().submit(lambda client: None).result()
    """
    assert fork_while_held(setup, lock=lock, child="files.close(); del files; os._exit(7)") == 7


def test_a_python_without_the_hook_for_its_end():
    """The hook is none of the public ones: without it the program waits at its end, but it runs."""
    code = """
        import concurrent.futures.thread, threading
        del threading._register_atexit
        from rankwise.data.store.remote import client
        print(client._ending.is_set())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
