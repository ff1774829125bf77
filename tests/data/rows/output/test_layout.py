"""Where rows lie in chunks, and the zeros that fill them."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.rows.output.shards import lay_out, pad_rows, rows_of_size
from rankwise.errors import ConfigError


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    rows_per_chunk=st.integers(1, 12),
    spare=st.integers(0, 300),
)
def test_blocks_begin_at_chunk_edges(lengths, rows_per_chunk, spare):
    """Every block of rows begins at a chunk edge, unless the rows before it have too few free columns for the zeros."""
    lengths = np.array(lengths)
    num_cols = int(lengths.max()) + spare
    layout = lay_out(lengths, num_cols, rows_per_chunk, align=True)
    if not lengths.sum():
        assert layout.pads is None
        return
    stored = lengths + layout.pads
    assert (layout.pads >= 0).all()
    assert (stored <= num_cols).all()
    assert layout.num_elements == stored.sum()
    begins = np.concatenate([[0], np.cumsum(stored)])[:-1]
    for start in range(rows_per_chunk, len(lengths), rows_per_chunk):
        before = slice(start - rows_per_chunk, start)
        unfilled = -(begins[before][0] + lengths[before].sum()) % layout.chunk
        aligned = begins[start] % layout.chunk == 0
        assert aligned or unfilled > (num_cols - lengths[before]).sum()
    assert not layout.pads[(len(lengths) - 1) // rows_per_chunk * rows_per_chunk :].any()  # nothing follows the last


def test_one_long_block_does_not_widen_all_chunks():
    """The size of a chunk is the one with the least to decode; a block that is longer takes several."""
    lengths = np.full(6_400, 100)
    lengths[:64] = 1_000
    layout = lay_out(lengths, 20_000, 64, align=True)
    assert layout.chunk == 6_400
    assert layout.num_elements == lengths.sum()


def test_zeros_cost_little_for_rows_that_vary():
    """Lengths that vary by half around their mean, as those of cells do: a fifth more elements at 64 rows a chunk."""
    lengths = np.random.default_rng(0).gamma(4, 250, 64_000).astype(int)
    layout = lay_out(lengths, 20_000, 64, align=True)
    assert layout.num_elements / lengths.sum() < 1.2


def test_without_alignment_a_chunk_holds_the_mean():
    """The older layout: chunks of as many elements as so many rows have on average, nothing added."""
    lengths = np.array([5, 0, 7, 9, 4, 5])
    layout = lay_out(lengths, 20, 2, align=False)
    assert (layout.chunk, layout.pads, layout.num_elements) == (10, None, 30)


@pytest.mark.parametrize("seed", range(3))
def test_zeros_stand_after_the_elements_in_free_columns(seed):
    """Rows keep their elements and their order; the matrix is the same, and valid."""
    rng = np.random.default_rng(seed)
    matrix = sp.random(20, 30, 0.3, format="csr", random_state=seed, dtype=np.float32)
    lengths = np.diff(matrix.indptr).astype(np.int64)
    pads = np.minimum(rng.integers(0, 9, 20) * (rng.random(20) < 0.5), 30 - lengths)
    data, indices = pad_rows(matrix.data, matrix.indices, lengths, pads, 30)
    ends = np.concatenate([[0], np.cumsum(lengths + pads)])
    padded = sp.csr_matrix((data, indices, ends), shape=(20, 30))
    padded.check_format(full_check=True)
    assert (padded != matrix).nnz == 0
    for row in range(20):
        begin, middle = ends[row], ends[row] + lengths[row]
        np.testing.assert_array_equal(data[begin:middle], matrix[row].data)
        assert not data[middle : ends[row + 1]].any()
        assert len(set(indices[begin : ends[row + 1]])) == lengths[row] + pads[row]


def test_a_number_is_rows_and_a_unit_bytes():
    """In Python as on the command line."""
    assert [rows_of_size(size, "dataset_size", 100.0) for size in (250, "250", " 250 ", "250B", "1KB")] == [
        250, 250, 250, 2, 10,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"dataset_size must be an integer of at least 1, got 0: .* size such as"):
        rows_of_size("0", "dataset_size", 1.0)
