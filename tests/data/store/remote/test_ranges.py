"""Joining ranges: every range is brought, by few requests, within the limits."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store.remote.files import JoinedRange, RemoteRange, interleave, join_ranges
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
    joined_ranges = join_ranges(wanted, gap_bytes=gap, max_bytes=cap)
    members = sorted(index for joined in joined_ranges for index in joined.members)
    assert members == [index for index, piece in enumerate(wanted) if piece.length != 0]
    for joined in joined_ranges:
        for index in joined.members:
            piece = wanted[index]
            assert (joined.url, joined.etag) == (piece.url, piece.etag)
            assert (joined.stop is None) == (piece.length is None)
            assert joined.start <= piece.offset
            assert joined.stop is None or piece.offset + piece.length <= joined.stop


@settings(max_examples=300, deadline=None)
@given(st.lists(ranges, max_size=30), st.integers(0, 30), st.integers(1, 100))
def test_requests_stay_within_the_limits(wanted, gap, cap):
    """No gap is larger, no joined request longer than allowed; and two that could be one are one."""
    joined_ranges = join_ranges(wanted, gap_bytes=gap, max_bytes=cap)
    for joined in (joined for joined in joined_ranges if joined.stop is not None):
        reached = joined.start
        for index in joined.members:
            assert wanted[index].offset - reached <= gap
            reached = max(reached, wanted[index].offset + wanted[index].length)
        assert reached == joined.stop
        longest = max(wanted[index].length for index in joined.members)
        assert joined.stop - joined.start <= max(cap, longest)
    for joined, following in itertools.pairwise(joined_ranges):
        same = (joined.url, joined.etag) == (following.url, following.etag)
        if same and joined.stop is not None and following.stop is not None:
            assert following.start - joined.stop > gap or following.stop - joined.start > cap


def test_objects_take_turns_each_in_its_own_order():
    """First the first of each, then the second of each, ...; an object with more goes on alone."""
    joined = [JoinedRange(url=url, etag=None, start=start, stop=start + 1) for url in "ab" for start in (0, 5)]
    joined.append(JoinedRange(url="b", etag=None, start=9, stop=10))
    assert [(one.url, one.start) for one in interleave(joined)] == [
        ("a", 0),
        ("b", 0),
        ("a", 5),
        ("b", 5),
        ("b", 9),
    ]


@pytest.mark.parametrize("fields", [{"offset": -1, "length": 2}, {"length": -1}, {"offset": 4}])
def test_impossible_ranges_are_refused(fields):
    """A range names its place or means the whole object."""
    with pytest.raises(ConfigError, match="s3://b/x: a range needs offset >= 0"):
        RemoteRange(url="s3://b/x", **fields)
