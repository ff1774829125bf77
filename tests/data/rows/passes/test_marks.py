"""Epochs that reach processes which were started before."""

import copy
import multiprocessing
import pickle

import pytest

from rankwise.data.rows import passes
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.passes import EpochMark


def test_a_forked_process_sees_what_is_chosen_later():
    """It sees the epoch and how often one was chosen; what it chooses itself stays with it."""
    mark = EpochMark()
    here, there = multiprocessing.Pipe()
    go = multiprocessing.get_context("fork").Event()

    def look():
        go.wait(30)
        seen = mark.read()
        mark.choose(99)
        there.send((seen, mark.read()))

    child = multiprocessing.get_context("fork").Process(target=look)
    child.start()
    assert mark.choose(5) == 1
    assert mark.choose(7) == 2
    go.set()
    assert here.recv() == ((2, 7), (3, 99))
    child.join()
    assert mark.read() == (2, 7)


def test_a_forked_process_tells_that_it_began_a_pass():
    """The one that started it sees it."""
    mark = EpochMark()
    child = multiprocessing.get_context("fork").Process(target=mark.note_pass)
    child.start()
    child.join()
    assert mark.num_passes == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda mark: pickle.loads(pickle.dumps(mark))])
def test_copies_are_on_their_own(copied):
    """They begin with what was known, and tell nobody."""
    mark = EpochMark()
    mark.choose(4)
    other = copied(mark)
    other.choose(5)
    assert (mark.read(), other.read()) == ((1, 4), (2, 5))


def test_first_use():
    """The first salt since the epoch was chosen is the first use, as often as it is asked; others are not."""
    mark = EpochMark()
    assert [mark.is_first_use(salt) for salt in (3, 3, 4, 3)] == [True, True, False, True]
    mark.choose(0)
    assert [mark.is_first_use(salt) for salt in (4, 3)] == [True, False]


def test_without_memory_to_share_there_is_no_mark(monkeypatch):
    """A sampler works all the same: only workers that stay would miss it."""

    def full(*_):
        raise OSError(28, "No space left on device")

    class Rows(Sampler):
        def _sample(self, n_obs):
            yield {"requests": [slice(0, n_obs)], "splits": []}

    monkeypatch.setattr(passes.EpochMark, "_allocate", full)
    sampler = Rows()
    sampler.share_epoch()
    sampler.set_epoch(3)
    assert len(list(sampler.sample(5))) == 1
    assert sampler.epoch == 4
