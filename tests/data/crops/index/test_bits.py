"""Very many chosen things, one bit each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.crops.index.cells import BitTable


@given(st.lists(st.integers(0, 700), max_size=5), st.floats(0, 1), st.integers(0, 99))
def test_the_nth_set_bit_is_found(lengths, density, seed):
    """The n-th set bit is where it is, in whatever parts the bits came."""
    rng = np.random.default_rng(seed)
    parts = [rng.random(length) < density for length in lengths]
    table = BitTable.of(parts)
    every = np.concatenate([np.zeros(0, dtype=bool), *parts])
    set_bits = np.flatnonzero(every)
    assert table.num_set == len(set_bits)
    if len(set_bits):
        np.testing.assert_array_equal(table.select(np.arange(len(set_bits))), set_bits)
