"""Processes that write together find each other, and hear of each other's ends; threads stand for them here."""

import contextlib
import json
import threading

import pytest

from rankwise.data.rows.collection.crew import Crew, Seat
from rankwise.errors import DataError, DesyncError

JOIN_S = 60


def run(work, size, body, held=contextlib.nullcontext):
    """Let each rank run a body; return by rank what it returned or raised."""
    ends = {}

    def one(rank):
        crew = Crew(Seat(rank=rank, size=size, launch="same"), work)
        try:
            with crew.together(held()):
                ends[rank] = body(crew)
        except (DataError, DesyncError) as error:
            ends[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    return [ends[rank] for rank in range(size)]


def leave_failure(work, rank, **facts):
    folder = work / "session-same"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"failed-{rank}").write_text(json.dumps({"error": "DataError: of an earlier attempt", **facts}))


@pytest.mark.parametrize("size", [2, 3])
def test_all_hear_what_the_main_process_made(tmp_path, size):
    """`agree` gives the value of rank 0 to all, and nobody passes `gather` before the others have come."""

    def body(crew):
        value = crew.agree("value", lambda: {"from": crew.rank})
        crew.gather("here")
        return value

    assert run(tmp_path, size, body) == [{"from": 0}] * size


def test_an_error_that_an_earlier_attempt_has_left_ends_nobody(tmp_path):
    """A launch tries again after rank 1 had failed: whoever comes before rank 0 does not take it for news."""
    leave_failure(tmp_path, 1, met=True)
    late = threading.Event()
    check = Crew.check

    def checked(crew):
        check(crew)
        if crew.rank == 2:
            late.set()  # rank 2 has looked at what is there before rank 0 clears it

    class Held:
        def __enter__(self):
            assert late.wait(JOIN_S)

        def __exit__(self, *_):
            pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Crew, "check", checked)
        assert run(tmp_path, 3, lambda crew: crew.agree("value", lambda: 1), Held) == [1, 1, 1]


def test_a_main_process_that_cannot_begin_is_heard(tmp_path):
    """Rank 0 finds the collection held by another job: the others end with its reason, before any has met."""

    class Held:
        def __enter__(self):
            raise DataError("another process writes this collection")

        def __exit__(self, *_):
            pass

    first, *others = run(tmp_path, 3, lambda crew: crew.rank, Held)
    assert str(first) == "another process writes this collection"
    assert [str(other) for other in others] == ["rank 0 failed: DataError: another process writes this collection"] * 2


def test_who_comes_late_hears_that_another_has_failed(tmp_path):
    """Rank 1 fails, rank 0 hears it and deletes the folder: rank 2, busy meanwhile, does not wait for ever."""
    over = threading.Event()

    @contextlib.contextmanager
    def held():
        try:
            yield
        finally:
            for path in (tmp_path / "session-same").iterdir():
                path.unlink()

    def body(crew):
        crew.gather("met")
        if crew.rank == 1:
            raise DataError("an input is gone")
        if crew.rank == 2:
            assert over.wait(JOIN_S)
        try:
            crew.agree("asked", lambda: crew.wait_for(lambda: False, "nothing"))
        finally:
            over.set()

    ends = run(tmp_path, 3, body, held)
    assert [type(end) for end in ends] == [DesyncError, DataError, DesyncError]
    assert str(ends[0]) == "rank 1 failed: DataError: an input is gone"
    assert str(ends[2]) in {
        "rank 0 failed: DesyncError: rank 1 failed: DataError: an input is gone",
        "rank 1 failed: DataError: an input is gone",
    }
