"""Boxes cut at the edges of chunks: every element exactly once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store.plan.grids import expand


@st.composite
def boxes(draw):
    ndim = draw(st.integers(1, 4))
    num = draw(st.integers(0, 5))
    low = np.array([[draw(st.integers(0, 20)) for _ in range(ndim)] for _ in range(num)], np.int64).reshape(num, ndim)
    size = np.array([[draw(st.integers(0, 9)) for _ in range(ndim)] for _ in range(num)], np.int64).reshape(num, ndim)
    chunk = np.array([[draw(st.integers(1, 6)) for _ in range(ndim)] for _ in range(num)], np.int64).reshape(num, ndim)
    return low, low + size, chunk


@settings(max_examples=150, deadline=None)
@given(boxes())
def test_pieces_cover_each_element_once(drawn):
    """The pieces of a box are disjoint, lie in their chunk, and together are the box."""
    low, high, chunk = drawn
    pieces = expand(low, high, chunk)
    for box in range(len(low)):
        seen = set()
        for at in np.flatnonzero(pieces.box == box):
            assert (pieces.src_start[at] >= 0).all()
            assert (pieces.src_start[at] + pieces.extent[at] <= chunk[box]).all()
            assert (pieces.begin[at] == pieces.coords[at] * chunk[box] + pieces.src_start[at]).all()
            for element in np.ndindex(*pieces.extent[at]):
                place = tuple(pieces.begin[at] + element)
                assert place not in seen
                seen.add(place)
        assert seen == {tuple(low[box] + e) for e in np.ndindex(*(high[box] - low[box]))}


def test_pieces_come_in_the_order_of_chunks():
    """Box by box, and inside a box in C order of the chunks."""
    pieces = expand(np.array([[1, 1]]), np.array([[5, 5]]), np.array([[4, 4]]))
    assert pieces.coords.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
