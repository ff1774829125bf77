"""Columns as long as all rows, block by block."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.rows import obs
from rankwise.data.rows.obs import blocks, num_stretches, places_where, row_dtype, taken


@given(num=st.integers(0, 50), block=st.integers(1, 20), seed=st.integers(0, 9))
def test_the_same_as_at_once(num, block, seed):
    """Blocks cover all places; what is taken and found is what NumPy takes and finds, negative places included."""
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obs, "_BLOCK", block)
        assert [place for part in blocks(num) for place in range(part.start, part.stop)] == list(range(num))
        values = rng.integers(0, 100, (7, 2))
        places = rng.integers(-7, 7, num).astype(np.int8)
        assert taken(values, places).tolist() == values[places].tolist()
        holds = rng.random(num) < 0.4
        found = places_where(holds, 1)
    assert found.tolist() == np.flatnonzero(holds).tolist()
    assert found.dtype == np.uint32


def test_the_dtype_of_row_numbers():
    """Numbers of fewer than 2^32 rows, and that of the row after them, fit 4 bytes."""
    assert (row_dtype(2**32 - 1), row_dtype(2**32)) == (np.uint32, np.uint64)


@given(values=st.lists(st.integers(0, 60), min_size=1), width=st.integers(1, 9), block=st.integers(1, 20))
def test_stretches(values, width, block):
    """As many as there are different quotients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obs, "_BLOCK", block)
        found = num_stretches(np.sort(np.array(values, dtype=np.uint32)), width)
    assert found == len({value // width for value in values})


def test_bytes_of_a_place():
    """Taking codes by narrow numbers, and finding places, needs little more memory than what comes out."""
    num = 4_000_000
    codes = np.zeros(num, dtype=np.int8)
    codes[::2] = 1
    for work, most in (
        (lambda: taken(np.arange(5, dtype=np.uint8), codes), 1),
        (lambda: places_where(codes, 1), 2),
    ):
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (most + 0.8) * num  # NumPy alone takes 9 and 5 bytes for each
