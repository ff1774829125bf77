"""The arithmetic of chunks and files."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store import Grid


@st.composite
def grids(draw):
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 20)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 6)) for _ in range(ndim))
    shards = draw(st.none() | st.tuples(*(st.integers(1, 3) for _ in range(ndim))))
    return Grid(shape=shape, chunks=chunks, shards=shards and tuple(c * k for c, k in zip(chunks, shards, strict=True)))


@settings(max_examples=150, deadline=None)
@given(grids())
def test_every_inner_chunk_belongs_to_one_chunk_and_one_file(grid):
    """The chunks together name each inner chunk of the array once, in the file that holds it."""
    named = []
    for chunk in range(grid.num_chunks):
        for file in grid.file_coords(chunk):
            per_file = [f // c for f, c in zip(grid.files, grid.chunks, strict=True)]
            axes = [
                range(f * p + s.start, f * p + s.stop)
                for f, p, s in zip(file, per_file, grid.inside(chunk, file), strict=True)
            ]
            named += list(itertools.product(*axes))
    wanted = itertools.product(*(range(-(-n // c)) for n, c in zip(grid.shape, grid.chunks, strict=True)))
    assert sorted(named) == sorted(wanted)


@settings(max_examples=50, deadline=None)
@given(grids())
def test_rows_tile_axis_0(grid):
    """The rows of the chunks are those of the array, in order, without gap or overlap."""
    rows = [row for chunk in range(grid.num_chunks) for row in range(*grid.rows(chunk))]
    assert rows == list(range(grid.shape[0]))
