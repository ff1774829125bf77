from unittest import mock

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rankwise.data.order import lanes as rows
from rankwise.data.order.lanes import Grid, lane_columns, lane_samples


@given(
    size=st.integers(1, 20_000),
    chunk=st.integers(1, 40),
    lanes=st.integers(1, 20),
    window=st.integers(1, 12),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_rows_are_what_single_places_are(size, chunk, lanes, window, data):
    """The table's short cut gives the same samples as `lane_samples`, on any rows of any grid."""
    assume(size >= lanes)
    grid = Grid(num_samples=size, chunk_samples=min(chunk, size), lanes=lanes, window=window)
    columns = lane_columns(grid, 5, data.draw(st.integers(0, 99)))
    low = data.draw(st.integers(0, size // lanes))
    high = data.draw(st.integers(low, min(size // lanes, low + 1500)))
    with mock.patch.object(rows, "LEAST", 1):
        found = rows.rows_of_samples(grid, columns, low, high)
    assert found.shape == (high - low, lanes)
    assert np.array_equal(found, lane_samples(grid, columns, np.arange(low, high)[:, None]))


def test_most_rows_take_the_short_cut():
    """On an ordinary grid with a ragged tail nearly all rows are looked up; else the test above would show nothing."""
    grid = Grid(num_samples=200_001, chunk_samples=16, lanes=8, window=16)
    columns = lane_columns(grid, 5, 0)
    with mock.patch.object(rows, "lane_samples", wraps=lane_samples) as single:
        rows.rows_of_samples(grid, columns, 0, 25_000)
    computed = sum(len(call.args[1].start) * len(call.args[2]) for call in single.call_args_list)
    assert 0 < computed < 0.2 * 200_000
