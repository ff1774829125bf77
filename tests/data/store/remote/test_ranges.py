"""Joining ranges: every range is brought, by few requests, within the limits."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store.remote.parts import RemoteRange, Run, join_ranges, take_turns
from rankwise.errors import ConfigError

ranges = st.builds(
    lambda url, etag, offset, length: RemoteRange(
        url=url, etag=etag, offset=0 if length is None else offset, length=length
    ),
    st.sampled_from(["s3://b/x", "s3://b/y"]),
    st.sampled_from([None, '"1"', '"2"']),
    st.integers(0, 300),
    st.none() | st.integers(0, 60),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ranges, max_size=30), st.integers(0, 30), st.integers(1, 100))
def test_every_range_is_inside_one_request_of_its_version(wanted, gap, cap):
    """Each but the empty ones belongs to exactly one request, which spans it, of its object and version."""
    runs = join_ranges(wanted, gap_bytes=gap, max_bytes=cap)
    members = sorted(index for run in runs for index in run.members)
    assert members == [index for index, piece in enumerate(wanted) if piece.length != 0]
    for run in runs:
        for index in run.members:
            piece = wanted[index]
            assert (run.url, run.etag) == (piece.url, piece.etag)
            assert (run.stop is None) == (piece.length is None)
            assert run.start <= piece.offset
            assert run.stop is None or piece.offset + piece.length <= run.stop


@settings(max_examples=300, deadline=None)
@given(st.lists(ranges, max_size=30), st.integers(0, 30), st.integers(1, 100))
def test_requests_stay_within_the_limits(wanted, gap, cap):
    """No gap is larger, no joined request longer than allowed; and two that could be one are one."""
    runs = join_ranges(wanted, gap_bytes=gap, max_bytes=cap)
    for run in (run for run in runs if run.stop is not None):
        reached = run.start
        for index in run.members:
            assert wanted[index].offset - reached <= gap
            reached = max(reached, wanted[index].offset + wanted[index].length)
        assert reached == run.stop
        longest = max(wanted[index].length for index in run.members)
        assert run.stop - run.start <= max(cap, longest)
    for run, following in itertools.pairwise(runs):
        same = (run.url, run.etag) == (following.url, following.etag)
        if same and run.stop is not None and following.stop is not None:
            assert following.start - run.stop > gap or following.stop - run.start > cap


def test_objects_take_turns_each_in_its_own_order():
    """First the first of each, then the second of each, ...; an object with more goes on alone."""
    runs = [Run(url=url, etag=None, start=start, stop=start + 1) for url in "ab" for start in (0, 5)]
    runs.append(Run(url="b", etag=None, start=9, stop=10))
    assert [(run.url, run.start) for run in take_turns(runs)] == [("a", 0), ("b", 0), ("a", 5), ("b", 5), ("b", 9)]


@pytest.mark.parametrize("fields", [{"offset": -1, "length": 2}, {"length": -1}, {"offset": 4}])
def test_impossible_ranges_are_refused(fields):
    """A range names its place or means the whole object."""
    with pytest.raises(ConfigError, match="s3://b/x: a range needs offset >= 0"):
        RemoteRange(url="s3://b/x", **fields)
