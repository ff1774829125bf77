"""Dense rows put together in memory that stays in the caches: what NumPy makes of them, byte for byte."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.data.store import Spread
from rankwise.data.store.decode.decoder import Scratch
from rankwise.data.store.decode.kernel import KernelDecoder
from rankwise.data.store.decode.tasks import KIND_RAW, OUTSIDE, ChunkTasks, DenseRows, address_of


@pytest.fixture(scope="module")
def kernel():
    return KernelDecoder()


@pytest.fixture(scope="module")
def scratch():
    """Memory that all cases use one after the other: none may leave anything in it."""
    return Scratch()


def raw_tasks(values, lengths, chunk):
    """Uncompressed chunks in memory, and the pieces of rows in them, each a target; their rows as well."""
    ends = np.cumsum(lengths)
    edges = np.unique(np.concatenate([[0], ends, np.arange(0, ends[-1], chunk), ends[-1:]])).astype(np.int64)
    begin, count = edges[:-1], np.diff(edges)
    num = -(-int(ends[-1]) // chunk)
    padded = np.zeros(num * chunk, dtype=values.dtype)
    padded[: len(values)] = values
    nothing = np.zeros(num, dtype=np.int64)
    tasks = ChunkTasks(
        fd=nothing - 1, offset=nothing, length=np.full(num, chunk * values.itemsize), decoded=nothing, keep=nothing,
        encoded=address_of(padded) + np.arange(num) * chunk * values.itemsize, kind=np.full(num, KIND_RAW),
        fill=np.zeros(1, dtype=values.dtype), chunk_shape=np.full((num, 1), chunk),
        bounds=np.searchsorted(begin // chunk, np.arange(num + 1)).astype(np.int64),
        src_start=(begin % chunk)[:, None], extent=count[:, None], dst_start=begin,
        dst_strides=np.ones(1, dtype=np.int64),
    )  # fmt: skip
    return tasks, np.searchsorted(ends, begin, side="right"), padded


class Case:
    """Rows of random columns and values, as tables for the decoder; and what they are, dense."""

    def __init__(self, rng, *, width, num_cols, element, column, chunk, order="rising", chosen=True):
        most = min(num_cols, 700)
        self.lengths = rng.integers(1, most + 1, 12)
        named = [rng.choice(num_cols, count, replace=False) for count in self.lengths]
        self.columns = np.concatenate([np.sort(row) if order == "rising" else row for row in named]).astype(column)
        self.values = rng.integers(1, 250, len(self.columns)).astype(element)
        self.tasks, self.rows, self.held = raw_tasks(self.values, self.lengths, chunk)
        genes = rng.permutation(num_cols)[:width]
        places = np.full(num_cols, width, dtype=np.int32)
        places[genes] = np.arange(width)
        whole = np.zeros((len(self.lengths), num_cols), dtype=element)
        whole[np.repeat(np.arange(len(self.lengths)), self.lengths), self.columns] = self.values
        self.truth = whole[:, genes] if chosen else whole
        self.spread = Spread(
            columns=self.columns, num_cols=(num_cols,), width=width, places=(places,) if chosen else None
        )

    def dense(self):
        num = len(self.tasks.dst_start)
        return DenseRows(
            spread=self.spread, rows=self.rows, lengths=self.lengths, tables=np.zeros(num, dtype=np.int64),
            marks=np.zeros(num, dtype=np.uint8),
        )  # fmt: skip

    def run(self, kernel, scratch, *, shift=0):
        """Dense rows that begin so many elements behind a line of the caches, and what was noticed."""
        size, element = self.truth.size, self.values.dtype
        block = np.full((size + 64) * element.itemsize + 64, 0xA5, dtype=np.uint8)
        first = -address_of(block) % 64 + shift * element.itemsize
        out = block[first : first + size * element.itemsize].view(element).reshape(self.truth.shape)
        pieces = np.bincount(self.rows, minlength=len(self.lengths))
        out[pieces != 1] = 0
        dense = self.dense()
        kernel.spread(self.tasks, dense, 0, len(self.tasks), out, scratch)
        assert not self.tasks.status.any()
        around = np.concatenate([block[:first], block[first + out.nbytes :]])
        assert (around == 0xA5).all()
        assert not scratch.blank.any()
        return out, dense.marks


def cases(*elements):
    return st.fixed_dictionaries(
        {
            "width": st.sampled_from([1, 3, 16, 63, 64, 500]),
            "element": st.sampled_from(elements),
            "column": st.sampled_from(["u2", "i4"]),
            "chunk": st.sampled_from([64, 1000, 100_000]),
            "order": st.sampled_from(["rising", "any"]),
        }
    )


PLACES = st.tuples(st.integers(0, 63), st.integers(0, 900))


def compare(kernel, scratch, chosen, seed, at):
    case = Case(np.random.default_rng(seed), num_cols=chosen["width"] + at[1], **chosen)
    out, marks = case.run(kernel, scratch, shift=at[0])
    np.testing.assert_array_equal(out, case.truth)
    assert not (marks & OUTSIDE).any()


# for each pair of an element and a column the loop is compiled anew, which takes most of the time
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=cases("u1", "f4"), seed=st.integers(0, 2**32), at=PLACES)
def test_rows_are_those_of_numpy(kernel, scratch, chosen, seed, at):
    """Whatever the width, the place in memory, the order of columns and of chosen genes, and the edges of chunks."""
    compare(kernel, scratch, chosen, seed, at)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=cases("u1", "f2", "f4", "f8"), seed=st.integers(0, 2**32), at=PLACES)
def test_rows_of_all_elements_are_those_of_numpy(kernel, scratch, chosen, seed, at):
    """Of two and eight bytes, too."""
    compare(kernel, scratch, chosen, seed, at)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("width", [65_535, 65_536])
def test_very_wide_rows(kernel, scratch, width, chosen):
    """Places are numbers of 16 bits as long as all fit, that of columns that are left out included; then of 32."""
    case = Case(
        np.random.default_rng(0), width=width, num_cols=width + 500 * chosen, element="f4", column="i4", chunk=5000,
        chosen=chosen,
    )  # fmt: skip
    out, _ = case.run(kernel, scratch)
    assert case.dense().place_dtype == (np.uint16 if width < 65_536 else np.int32)
    np.testing.assert_array_equal(out, case.truth)
