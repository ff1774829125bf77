"""Rows on their way."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.rows.collection.buckets import Buckets, Field, append_record, scan_records
from rankwise.testing.stores.small_rows import random_csr

TEXTS = st.lists(st.none() | st.text(max_size=9), max_size=20)


@given(TEXTS, st.randoms(use_true_random=False))
def test_texts_come_back(texts, random):
    """Packed texts are what they were, missing and empty ones told apart, in any order."""
    field = Field(name="name", kind="text")
    rows = np.array(random.sample(range(len(texts)), len(texts)), dtype=np.int64)
    [parts] = field.pack(np.array(texts, dtype=object), rows, [(0, len(texts))])
    assert field.unpack(parts, np.argsort(rows)).tolist() == texts


def test_half_a_record_is_none(tmp_path):
    """What a process had not finished to append is not seen, wherever it stopped."""
    arrays = [np.arange(5), np.arange(7, dtype="f4").reshape(7, 1)]
    append_record(tmp_path / "r", 3, arrays)
    whole = (tmp_path / "r").read_bytes()
    append_record(tmp_path / "r", 4, arrays)
    both = (tmp_path / "r").read_bytes()
    for cut in range(len(whole), len(both)):
        (tmp_path / "r").write_bytes(both[:cut])
        assert [block for block, _, _ in scan_records(tmp_path / "r", 2)] == [3]
    (tmp_path / "r").write_bytes(both)
    assert [(block, sizes) for block, _, sizes in scan_records(tmp_path / "r", 2)] == [(3, [40, 28]), (4, [40, 28])]


FIELDS = (
    Field(name="X", kind="csr", row_shape=(6,), dtype=np.dtype("f4")),
    Field(name="image", kind="dense", row_shape=(2, 3), dtype=np.dtype("u1")),
    Field(name="name", kind="text"),
)


@pytest.mark.parametrize("seed", range(4))
def test_rows_leave_in_the_order_of_their_places(tmp_path, seed):
    """Whoever added which block, buckets give the rows by place; blocks that do not count are not there."""
    rng = np.random.default_rng(seed)
    rows, image = random_csr(50, 6, seed=seed), rng.integers(0, 9, (50, 2, 3)).astype("u1")
    names = np.array([f"row {row}" if row % 7 else None for row in range(50)], dtype=object)
    places, edges = rng.permutation(50), np.array([0, 9, 30, 50])
    counts = {0: "a", 1: "b", 2: "a", 3: "b", 4: "b"}
    buckets = {piece: Buckets(tmp_path, edges, FIELDS, piece, lambda p, n: counts[n] == p) for piece in "ab"}
    for block, piece in [(0, "b"), (4, "a"), *counts.items()]:
        part = slice(block * 10, block * 10 + 10)
        buckets[piece].add(block, places[part], (rows[part], image[part], names[part]))
    order = np.argsort(places)
    for number, (start, stop) in enumerate([(0, 9), (9, 30), (30, 50)]):
        held, mine = buckets["a"].open(number), order[start:stop]
        assert sorted(held.places.tolist()) == list(range(start, stop))
        assert isinstance(held.rows(0), sp.csr_matrix)
        np.testing.assert_array_equal(held.rows(0).toarray(), rows[mine].toarray())
        np.testing.assert_array_equal(held.lengths(0), np.diff(rows[mine].indptr))
        np.testing.assert_array_equal(held.rows(1), image[mine])
        assert held.rows(2).tolist() == names[mine].tolist()
    buckets["b"].drop(range(3))
    assert len(buckets["a"].open(1).places) == 0


def test_a_block_without_rows_is_done(tmp_path):
    """Elements of rows that are not wanted may leave a portion empty: nothing is written, and its mark is given."""
    buckets = Buckets(tmp_path, np.array([0, 5]), FIELDS[1:2], "a", lambda *_: True)
    none = np.empty(0, dtype=np.int64)
    assert buckets.add(0, none, (np.empty((0, 2, 3), dtype="u1"),)) == "a"
    assert len(buckets.open(0).places) == 0
