"""Load requests of samplers become rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.rows.loader.requests import order_rows
from rankwise.errors import ConfigError

NUM_ROWS = 40
RUNS = st.lists(st.tuples(st.integers(0, NUM_ROWS), st.integers(0, NUM_ROWS)).map(sorted), max_size=6)


@given(RUNS, st.booleans(), st.data())
def test_rows_are_those_that_splits_name(runs, as_numbers, data):
    """Batch after batch, from runs or numbers, also several times; what no split names is not there."""
    listed = [row for start, stop in runs for row in range(start, stop)]
    places = st.lists(st.integers(0, max(0, len(listed) - 1)), max_size=8 if listed else 0)
    splits = data.draw(st.lists(places, max_size=4))
    requests = np.array(listed, dtype=np.uint16) if as_numbers else [slice(*run) for run in runs]
    order = order_rows({"requests": requests, "splits": splits}, NUM_ROWS)
    assert order.rows.tolist() == [listed[place] for split in splits for place in split]
    assert np.diff(order.edges).tolist() == [len(split) for split in splits]


@pytest.mark.parametrize(
    ("requests", "split", "said"),
    [
        ([slice(0, 4)], np.array([True, False, True, False]), "for a mask use numpy.flatnonzero"),
        ([slice(0, 4)], np.array([0.0, 1.0]), r"integers along one axis .* got float64\[2\]"),
        ([slice(0, 4)], np.array([[0, 1]]), r"got int64\[1, 2\]"),
        ([slice(0, 4)], [4], "have indices 4 to 4 into a request of 4 rows"),
        ([slice(0, 4)], [-1], "have indices -1 to -1"),
        ([slice(-4, 0)], [0], "requested rows -4 to -1, but the loader has 40"),
        ([slice(38, 42)], [0], "requested rows 38 to 41"),
        ([slice(4)], [0], "slices with a start, a stop"),
        ([slice(0, 4, 2)], [0], "and the step 1"),
        ([1, 2], [0], "or a NumPy array of integers; got 1"),
        (np.array([True, False]), [0], r"got bool\[2\]"),
    ],
)
def test_what_cannot_be_meant_is_refused(requests, split, said):
    """Masks, fractions and places that there are not are said, not taken for other rows."""
    with pytest.raises(ConfigError, match=said):
        order_rows({"requests": requests, "splits": [split]}, NUM_ROWS)
