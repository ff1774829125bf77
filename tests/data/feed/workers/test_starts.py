"""Where passes of a loader begin in workers of a DataLoader: one answer for all of a pass, whenever they ask."""

import copy
import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise._process.loader_worker import LoaderWorker
from rankwise.data.feed.workers.starts import PassStarts, _attach

ORDER = 4711


def starts(epoch=0, position=0):
    return PassStarts(epoch, position, ORDER)


class File:
    """What spawning hands a file over in."""

    def __init__(self, mine):
        self.number = mine._file

    def detach(self):
        return os.dup(self.number)


def workers_of(mine, count, *, salt, first):
    """The workers of one DataLoader, as they are when they are started: what they hold, and who they are."""
    mine.publish_from_now_on()  # as before a process is started
    return [
        (_attach(mine._owner, File(mine), mine._published), LoaderWorker(number=n, count=count, salt=salt, first=first))
        for n in range(count)
    ]


def places(started, **options):
    """Where each worker begins a pass."""
    found = [held.begin(worker, repeats=options.get("repeats", False)) for held, worker in started]
    return [(start.epoch, start.position) for start in found]


def test_each_pass_is_the_next_epoch_unless_something_was_said():
    """Epochs count on for workers that begin anew, for those that stay, and without any; one that was named comes."""
    mine = starts()
    assert places(workers_of(mine, 2, salt=5, first=1)) == [(0, 0)] * 2
    stay = workers_of(mine, 3, salt=6, first=3)
    assert [places(stay) for _ in range(2)] == [[(1, 0)] * 3, [(2, 0)] * 3]
    assert mine.begun() == (2, 0)
    assert mine.begin(None, repeats=False).epoch == 3
    mine.publish(1, 40, ORDER)
    assert mine.begun() is None
    assert [places(stay), places(stay)] == [[(1, 40)] * 3, [(2, 0)] * 3]
    mine.publish(2, 0, ORDER)  # once more, as it was asked for
    assert places(workers_of(mine, 1, salt=7, first=9)) == [(2, 0)]


def test_what_is_said_during_a_pass_is_about_its_steps():
    """A worker that is late, because the first step of another is in use already, begins where the others did."""
    mine = starts()
    stay = workers_of(mine, 3, salt=6, first=3)
    for _ in range(2):
        first, *late = stay
        begin = places([first])
        mine.publish(begin[0][0], 8, ORDER)
        assert places(late) == begin * 2
        mine.publish(begin[0][0] + 1, 0, ORDER)
    assert begin == [(1, 0)]


def test_workers_that_were_started_have_what_was_said_before():
    """What is said afterwards is for the next pass, although no worker has begun; they do not undo it either."""
    mine = starts()
    started = workers_of(mine, 2, salt=5, first=1)
    mine.publish(7, 0, ORDER)
    assert places(workers_of(mine, 2, salt=8, first=3)) == [(7, 0)] * 2
    assert places(started) == [(0, 0)] * 2
    assert places(workers_of(mine, 2, salt=9, first=5)) == [(8, 0)] * 2


def test_the_same_seed_of_torch_again_is_another_pass():
    """Workers are told apart by when they were started, too: also where some of the earlier ones never began."""
    mine = starts()
    assert places(workers_of(mine, 4, salt=5, first=1)[:1]) == [(0, 0)]
    assert places(workers_of(mine, 4, salt=5, first=5)[::-1]) == [(1, 0)] * 4


def test_passes_that_are_the_same_in_every_epoch_stay():
    """Held-out data in stored order: the epoch stays, as without workers."""
    mine = starts(epoch=2)
    for salt in (1, 2):
        assert places(workers_of(mine, 2, salt=salt, first=2 * salt), repeats=True) == [(2, 0)] * 2


@given(
    events=st.lists(
        st.one_of(
            st.tuples(st.just("say"), st.integers(0, 5), st.sampled_from([0, 0, 10])),
            st.tuples(st.just("anew"), st.integers(1, 4), st.integers(0, 1)),
            st.tuples(st.just("stay"), st.just(0), st.just(0)),
        ),
        max_size=12,
    ),
    rng=st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_any_course_of_events(events, rng):
    """Workers of a pass agree in whatever order they come, with marks between them; nothing is shown twice unasked."""
    mine, wanted, begun, process = starts(), (0, 0), True, 1
    stay = workers_of(mine, 3, salt=99, first=1000)
    places(stay)
    for what, number, extra in events:
        if what == "say":
            mine.publish(number, extra, ORDER)
            wanted, begun = (number, extra), False
            continue
        group = stay if what == "stay" else workers_of(mine, number, salt=extra, first=process)
        process += len(group)
        wanted, begun = ((wanted[0] + 1, 0) if begun else wanted), True
        rng.shuffle(group)
        assert places(group[:1]) == [wanted]
        shown = wanted
        if rng.random() < 0.5:  # its first step is in use, and marked
            wanted, begun = (shown[0], shown[1] + 1), False
            mine.publish(*wanted, ORDER)
        assert places(group[1:]) == [shown] * (len(group) - 1)


def test_damage_is_counted_over_all_workers():
    """A limit holds for all together."""
    mine = starts()
    (one, _), (other, _) = workers_of(mine, 2, salt=1, first=1)
    assert [one.count_damaged(3), other.count_damaged(3), one.count_damaged(3), other.count_damaged(3)] == [
        1,
        2,
        3,
        None,
    ]


def test_copies_have_memory_of_their_own():
    """Only processes that are started for it share it; a copy starts where this one stands."""
    mine = starts(epoch=4)
    for other in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        other.publish(9, 0, ORDER)
        assert mine.begin(None, repeats=False).epoch >= 4
        assert other.begin(None, repeats=False) == mine._published._replace(serial=1, epoch=9)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_who_speaks_in_a_forked_process_speaks_for_himself():
    """Ranks that got one loader from a common parent do not tell each other."""
    mine = starts()
    child = os.fork()
    if not child:
        mine.publish(5, 0, ORDER)
        os._exit(0 if mine.begin(None, repeats=False).epoch == 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert mine.begin(None, repeats=False).epoch == 0
