"""Which rows of two pieces are put together."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.store.decode.dense_rows import cut_in_two

NUM_ROWS = 6


@st.composite
def cuts(draw):
    """Targets of chunks, by their rows, and the runs of chunks that one thread does."""
    chunks = draw(st.lists(st.lists(st.integers(0, NUM_ROWS - 1), max_size=4), min_size=1, max_size=6))
    edges = sorted(draw(st.sets(st.integers(1, len(chunks)), max_size=3)) | {0, len(chunks)})
    slabs = list(pairwise(edges))
    return chunks, draw(st.permutations(slabs))


@given(cuts())
def test_pairs(given):
    """Two targets of a row, in neighbouring chunks of one thread; for each such pair of chunks one row comes out."""
    chunks, slabs = given
    rows = np.array([row for chunk in chunks for row in chunk], dtype=np.int64)
    bounds = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])]).astype(np.int64)
    owner = np.repeat(np.arange(len(chunks)), np.diff(bounds))
    pieces = np.bincount(rows, minlength=NUM_ROWS)
    one, other = cut_in_two(bounds, rows, np.flatnonzero(pieces[rows] == 2), slabs)
    slab = {chunk: first for first, last in slabs for chunk in range(first, last)}
    wanted = {}
    for row in np.flatnonzero(pieces == 2).tolist():
        first, second = owner[rows == row].tolist()
        if second == first + 1 and slab[first] == slab[second]:
            wanted.setdefault(first, set()).add(row)
    assert sorted(owner[one].tolist()) == sorted(wanted)
    assert np.array_equal(owner[other], owner[one] + 1)
    assert np.array_equal(rows[one], rows[other])
    assert all(row in wanted[chunk] for chunk, row in zip(owner[one].tolist(), rows[one].tolist(), strict=True))
