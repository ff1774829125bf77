"""Metadata kept in memory."""

import os
import time

import pytest
import zarr

from rankwise.data.store import read_meta
from rankwise.data.store.meta.parser import MetaCache
from rankwise.testing.faults import fork_while_held

HOUR_NS = 3600 * 10**9


class Reads:
    """Reads metadata and counts."""

    def __init__(self):
        self.places = []

    def __call__(self, place):
        self.places.append(place)
        return read_meta(place) if "://" not in place else f"meta of {place}"


@pytest.fixture(params=[2, 3])
def array(request, tmp_path):
    """An array whose documents are an hour old."""
    zarr.create_array(tmp_path / "a", shape=(8,), chunks=(2,), dtype="u1", zarr_format=request.param)
    age(tmp_path / "a", HOUR_NS)
    return tmp_path / "a"


def age(folder, by_ns):
    for path in folder.iterdir():
        if path.is_file():
            before = path.stat().st_mtime_ns
            os.utime(path, ns=(before - by_ns, before - by_ns))


def test_an_array_is_parsed_once(array):
    """Asking again touches no document."""
    kept, reads = MetaCache(), Reads()
    assert kept.get(str(array), reads) is kept.get(str(array), reads)
    assert len(reads.places) == 1


def test_a_document_that_changed_is_read_again(array):
    """Another time of any document that decides counts as a change."""
    kept, reads = MetaCache(), Reads()
    kept.get(str(array), reads)
    age(array, HOUR_NS)
    kept.get(str(array), reads)
    assert len(reads.places) == 2


def test_a_document_that_appears_is_seen(array):
    """A document that was not there before, and goes before the others, is read."""
    if (array / "zarr.json").exists():
        (array / "zarr.json").rename(array / "away")
        zarr.create_array(array, shape=(8,), chunks=(2,), dtype="u1", zarr_format=2)
        (array / "away").rename(array / "later")
    else:
        zarr.create_array(array.parent / "b", shape=(9,), chunks=(2,), dtype="u1")
        (array.parent / "b" / "zarr.json").rename(array / "later")
    age(array, HOUR_NS)
    kept, reads = MetaCache(), Reads()
    assert kept.get(str(array), reads).zarr_format == 2
    (array / "later").rename(array / "zarr.json")
    assert kept.get(str(array), reads).zarr_format == 3


def test_what_has_just_been_written_is_not_trusted(array):
    """A file may change twice within one tick of its clock, so a fresh one is read again."""
    age(array, -HOUR_NS)
    kept, reads = MetaCache(), Reads()
    kept.get(str(array), reads)
    kept.get(str(array), reads)
    assert len(reads.places) == 2


def test_a_url_expires():
    """A remote array is asked again after a minute."""
    now = [time.time_ns()]
    kept, reads = MetaCache(clock=lambda: now[0]), Reads()
    for passed_s, asked in ((0, 1), (59, 1), (2, 2)):
        now[0] += passed_s * 10**9
        kept.get("memory://x/a", reads)
        assert len(reads.places) == asked


def test_only_so_many_are_kept():
    """The oldest go when there are more than the capacity."""
    kept, reads = MetaCache(capacity=2), Reads()
    for name in "abcab":
        kept.get(f"memory://x/{name}", reads)
    assert [place[-1] for place in reads.places] == ["a", "b", "c", "a", "b"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_while_a_thread_looks_something_up_goes_on():
    """The thread is not there to give the lock back: the child has one of its own."""
    setup = "from rankwise.data.store.meta.parser import MetaCache; kept = MetaCache()"
    child = 'os._exit(kept.get("mem://a", lambda place: len(place)))'
    assert fork_while_held(setup, lock="kept._lock", child=child) == 7
