"""Many pieces of work, shared out by arithmetic and noted one after the other."""

import re

import numpy as np
import pytest

from rankwise.data.rows.collection import ranks as shared
from rankwise.data.rows.collection.ranks import Marks, Ranks, Task, run_tasks, share_of
from rankwise.errors import DataError, DesyncError
from rankwise.testing.ranks import run_over_store


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


def on_ranks(size, body):
    """Let a body run on so many ranks that write together."""
    return run_over_store(size, lambda world: body(Ranks(world)))


@pytest.mark.parametrize("killed", [0, 25])
def test_each_is_done_once_and_behind_what_it_needs(tmp_path, killed):
    """What an earlier process has noted is kept; progress counts every task that is done, whoever did it."""
    done, seen = [], []
    for number in range(killed):
        Marks(tmp_path / "marks", Ranks()).put(f"t{number}", number)
    marks = Marks(tmp_path / "marks", Ranks())
    run_tasks(chain(40, done), marks, Ranks(), shown=seen.append)
    assert sorted(done) == list(range(killed, 40))
    for number in range(max(9, killed), 40, 10):
        assert all(done.index(k) < done.index(number) for k in range(max(number - 9, killed), number))
    assert sorted(set(seen)) == seen[:1] + sorted(set(seen[1:])) == list(range(killed, 41))
    assert [marks.notes[f"t{number}"] for number in range(40)] == list(range(40))


def looks_for(num, folder):
    """How often names of tasks are looked up."""
    marks, before = Marks(folder, Ranks()), Name.looked
    run_tasks(chain(num, [], name=Name), marks, Ranks(), shown=lambda rows: None)
    return Name.looked - before


def test_choosing_is_linear_in_the_number_of_tasks(tmp_path):
    """Ten times as many tasks take hardly more than ten times as many looks at their names."""
    assert looks_for(1_000, tmp_path / "many") < 12 * looks_for(100, tmp_path / "few")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_equal_by_bytes(size):
    """Every task is in one share, in its order, and no share is larger than another by more than one task."""
    sizes = np.random.default_rng(size).integers(0, 1000, 50).tolist()
    tasks = [Task(name=str(number), run=print, num_bytes=num) for number, num in enumerate(sizes)]
    shares = [share_of(tasks, rank, size) for rank in range(size)]
    assert sorted(int(task.name) for share in shares for task in share) == list(range(50))
    assert all([int(task.name) for task in share] == sorted(int(task.name) for task in share) for share in shares)
    loads = [sum(task.num_bytes for task in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)
    same = [Task(name=str(number), run=print) for number in range(size)]
    assert [len(share_of(same, rank, size)) for rank in range(size)] == [1] * size


@pytest.mark.parametrize("slow_s", [0.0, 1e9])
def test_ranks_share_them(tmp_path, monkeypatch, slow_s):
    """None is done twice, all hear what the others noted, and in rounds of any length the same ones are done."""
    monkeypatch.setattr(shared, "_ROUND_S", slow_s)
    done, shown = [], [[], [], []]

    def body(ranks):
        marks = Marks(tmp_path / "marks", ranks)
        run_tasks(chain(40, done), marks, ranks, shown=shown[ranks.rank].append)
        return marks.notes

    wanted = {f"t{number}": number for number in range(40)}
    assert on_ranks(2, body) == [wanted, wanted]
    assert sorted(done) == list(range(40))
    assert all(rows == sorted(rows) and rows[-1] == 40 for rows in shown[:2])
    assert on_ranks(3, body) == [wanted] * 3  # another number of ranks finds all of it done
    assert len(done) == 40


def test_a_failure_of_one_ends_all(tmp_path):
    """The others hear of it at the end of their round, whatever they do then."""

    def body(ranks):
        def fail():
            raise DataError("a.h5ad cannot be read")

        tasks = [Task(name=f"t{number}", run=fail if number == 1 else int) for number in range(4)]
        with ranks.together(tmp_path / "c.zarr.writing"):
            run_tasks(tasks, Marks(tmp_path / "marks", ranks), ranks, shown=lambda rows: None)

    ends = on_ranks(3, body)
    assert [type(end) for end in ends] == [DesyncError, DataError, DesyncError]
    assert all(str(end).endswith("a.h5ad cannot be read") for end in ends)
    assert not (tmp_path / "c.zarr.writing").exists()


def test_one_that_is_stopped_tells_the_others(tmp_path):
    """Ctrl-C on one rank stays that there, and the others do not wait for it."""

    def body(ranks):
        with ranks.together(tmp_path / "c.zarr.writing"):
            if ranks.rank == 1:
                raise KeyboardInterrupt
            ranks.gather(None)

    def caught(ranks):
        try:
            return body(ranks)
        except KeyboardInterrupt:
            return "stopped"

    first, second = on_ranks(2, caught)
    assert second == "stopped"
    assert re.match("rank 1 failed in .*: WorldError: it was stopped by KeyboardInterrupt", str(first))
