"""Threads that read: a fair part of the cores, and a crew in which the caller works too."""

import os
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.samples import ArraySource
from rankwise.data.store import BoxReader
from rankwise.data.store.execution import threads
from rankwise.data.store.execution.threads import WorkCrew, reading_threads


@pytest.mark.parametrize(
    ("mask", "machine", "ranks", "wanted"),
    [
        (8, 8, None, 8),  # one process has all
        (8, 8, 4, 2),  # four ranks that may use the same cores share them
        (2, 8, 4, 2),  # each rank was bound to cores of its own
        (3, 4, 2, 1),  # bound, but not to cores that are all its own
        (1, 4, 8, 1),  # never none
    ],
)
def test_ranks_of_a_machine_share_its_cores(monkeypatch, mask, machine, ranks, wanted):
    """The cores this rank may use, divided among the ranks of the machine unless they are its own."""
    monkeypatch.setattr(threads, "cpu_mask", lambda: set(range(mask)))
    monkeypatch.setattr(threads.os, "cpu_count", lambda: machine)
    monkeypatch.setattr(threads, "usable_cores", lambda cores: cores)
    launched = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    if ranks is not None:
        for name, value in {**launched, "LOCAL_WORLD_SIZE": str(ranks)}.items():
            monkeypatch.setenv(name, value)
    assert reading_threads() == wanted


def test_a_rank_is_told_its_part(monkeypatch):
    """What the launcher counted for this rank holds, within the cores that it may use; nonsense is passed over."""
    monkeypatch.setattr(threads, "cpu_mask", lambda: set(range(8)))
    monkeypatch.setattr(threads, "usable_cores", lambda cores: cores)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 8)
    for told, wanted in (("3", 3), ("64", 8), ("many", 8), ("0", 8)):
        monkeypatch.setenv("RANKWISE_CORES", told)
        assert reading_threads() == wanted


HALF = {
    "a leftover size": {"WORLD_SIZE": "8"},
    "Lightning's own launcher": {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    "Kubeflow": {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    "nonsense": {"RANK": "5", "WORLD_SIZE": "2", "LOCAL_RANK": "x", "MASTER_ADDR": "h", "MASTER_PORT": "y"},
}


@pytest.mark.parametrize("variables", HALF.values(), ids=list(HALF))
def test_reading_never_depends_on_the_launcher(monkeypatch, variables):
    """Arrays are opened and read whatever a launcher left in the environment."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with BoxReader() as reader:
        assert 1 <= reader.num_threads <= len(os.sched_getaffinity(0))
    assert ArraySource({"x": np.arange(3)})[2]["x"] == 2


@pytest.mark.parametrize("num_threads", [1, 3])
def test_every_task_runs_once_and_the_caller_helps(num_threads):
    """With one thread the caller does it all; with more each task still runs once."""
    done = []
    crew = WorkCrew(num_threads)
    crew.run([lambda n=n: done.append((n, threading.current_thread())) for n in range(20)])
    crew.close()
    assert sorted(n for n, _ in done) == list(range(20))
    assert num_threads > 1 or {thread for _, thread in done} == {threading.current_thread()}


def test_the_first_error_stops_what_has_not_begun():
    """It is raised when nothing runs any more."""
    begun = []

    def task(number):
        begun.append(number)
        if number == 2:
            raise OSError("gone")

    crew = WorkCrew(1)
    with pytest.raises(OSError, match="gone"):
        crew.run([lambda n=n: task(n) for n in range(9)])
    assert begun == [0, 1, 2]
    crew.close()


def test_cores_are_shared_among_workers(monkeypatch):
    """All workers together read with the threads that this process would, unless it was told how many."""
    third = LoaderWorker(number=0, count=3, salt=1)
    monkeypatch.setattr("rankwise._process.loader_worker.current_worker", lambda: third)
    assert [WorkCrew(cores, shared=True).num_threads for cores in (1, 3, 8)] == [1, 1, 2]
    assert WorkCrew(8).num_threads == 8


def test_no_task_runs_on_after_its_run(monkeypatch):
    """A thread that works for somebody else takes what no new thread could be started for: that is waited for, too."""
    crew, busy = WorkCrew(3), threading.Barrier(3)
    freed, begun, go_on, ended, over = (threading.Event() for _ in range(5))

    def of_the_other():
        busy.wait(60)
        (over if threading.current_thread() is other else freed).wait(60)

    other = threading.Thread(target=lambda: crew.run([of_the_other] * 2))
    other.start()
    busy.wait(60)  # the caller and a helper of the other run

    def first():
        freed.set()
        assert begun.wait(60)  # the helper has nothing left to do there, and takes the second

    def second():
        begun.set()
        go_on.wait(60)
        ended.set()

    def none_to_be_had(_):
        raise RuntimeError("can't start new thread")

    def waited_for(helper, timeout=None):
        go_on.set()
        return outcome(helper, timeout)

    outcome = Future.exception
    monkeypatch.setattr(Future, "exception", waited_for)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_to_be_had)
        crew.run([first, second])
    had_ended = ended.is_set()
    go_on.set()
    over.set()
    other.join(60)
    crew.close()
    assert had_ended
