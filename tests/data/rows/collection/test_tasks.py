"""Many pieces of work, chosen and noted one after the other."""

import os
import threading

import pytest

from rankwise.data.rows.collection.crew import Crew, Marks, Seat, Task, work_off
from rankwise.data.rows.collection.crew import tasks as queueing
from rankwise.data.rows.collection.crew import tasks as tasks_of_crew
from rankwise.errors import DesyncError


class Name(str):
    """Counts how often it is compared or looked up."""

    __slots__ = ()
    looked = 0

    def __hash__(self):
        Name.looked += 1
        return str.__hash__(self)


def chain(num, done, *, name=str):
    """Tasks of which each tenth needs the nine before it, in a list that begins with those that need others."""

    def task(number):
        needs = tuple(name(f"t{k}") for k in range(number - 9, number)) if number % 10 == 9 else ()
        return Task(name=name(f"t{number}"), run=lambda: done.append(number) or number, needs=needs, rows=1)

    return [task(number) for number in sorted(range(num), key=lambda number: number % 10 != 9)]


@pytest.mark.parametrize("killed", [0, 25])
def test_each_is_done_once_and_behind_what_it_needs(tmp_path, killed):
    """What an earlier process has noted is kept; progress counts every task that is done, whoever did it."""
    done, seen = [], []
    for number in range(killed):
        Marks(tmp_path / "marks", shared=False).put(f"t{number}", number)
    marks, crew = Marks(tmp_path / "marks", shared=False), Crew(Seat(rank=0, size=1, launch="a"), tmp_path)
    work_off(chain(40, done), marks, crew, shown=seen.append)
    assert sorted(done) == list(range(killed, 40))
    for number in range(max(9, killed), 40, 10):
        assert all(done.index(k) < done.index(number) for k in range(max(number - 9, killed), number))
    assert seen == list(range(killed, 41))
    assert [marks.note(f"t{number}") for number in range(40)] == list(range(40))


def looks_for(num, folder, monkeypatch):
    """How often names of tasks are looked up, and the marks are listed, by one of two processes."""
    listed, listdir = [], os.listdir
    crew = Crew(Seat(rank=0, size=2, launch="a"), folder)
    crew.folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
        patch.setattr(tasks_of_crew, "_LOOK_S", 3600.0)
        before = Name.looked
        work_off(chain(num, [], name=Name), Marks(folder / "marks", shared=True), crew, shown=lambda rows: None)
        return Name.looked - before, sum(str(path).endswith("marks") for path in listed)


def test_choosing_is_linear_in_the_number_of_tasks(tmp_path, monkeypatch):
    """Ten times as many tasks take ten times as many looks at their names, and no more listings of the marks."""
    few, few_listed = looks_for(100, tmp_path / "few", monkeypatch)
    many, many_listed = looks_for(1_000, tmp_path / "many", monkeypatch)
    assert few_listed == many_listed == 2
    assert many < 10.5 * few


def test_processes_share_them(tmp_path):
    """None is done twice, and one that waits for another's goes on when that is done."""
    done, crews = [], [Crew(Seat(rank=rank, size=2, launch="a"), tmp_path) for rank in range(2)]
    crews[0].folder.mkdir(parents=True)
    waits = threading.Event()

    def slow():
        assert waits.wait(60)
        done.append("slow")

    def list_for(rank):
        marks = Marks(tmp_path / "marks", shared=True)
        first = Task(name="slow", run=slow)
        return [first, Task(name="last", needs=("slow",), run=lambda: done.append(f"last by {rank}"))], marks

    def other():
        pieces, marks = list_for(1)
        work_off(pieces, marks, crews[1], shown=lambda rows: None)

    pieces, marks = list_for(0)
    thread = threading.Thread(target=lambda: work_off(pieces, marks, crews[0], shown=lambda rows: None))
    second = threading.Thread(target=other)
    thread.start()
    second.start()
    waits.set()
    thread.join(60)
    second.join(60)
    assert done[0] == "slow"
    assert done[1:] in (["last by 0"], ["last by 1"])


def test_the_failure_of_another_ends_it(tmp_path):
    """It is looked at before each task."""
    crew, done = Crew(Seat(rank=0, size=2, launch="a"), tmp_path), []
    crew.folder.mkdir(parents=True)

    def fail():
        done.append(0)
        (crew.folder / "failed-1").write_text('{"error": "OSError: disk full", "met": true}')

    pieces = [Task(name="a", run=fail), Task(name="b", run=lambda: done.append(1))]
    with pytest.raises(DesyncError, match="rank 1 failed: OSError: disk full"):
        work_off(pieces, Marks(tmp_path / "marks", shared=True), crew, shown=lambda rows: None)
    assert done == [0]


def test_tasks_of_other_lists_are_no_matter(tmp_path):
    """Marks of all steps lie in one folder."""
    queue = queueing.TaskQueue(chain(3, []))
    queue.settle(["t0", "else", "t0"])
    assert (queue.num_left, queue.num_rows, [task.name for task in queue]) == (2, 1.0, ["t1", "t2"])
