"""How chunks are dealt out to threads."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.store.execution.threads import cut_slabs


@given(
    st.lists(st.integers(0, 5), max_size=80).map(sorted),
    st.sampled_from([1, 1000, 2**18, 2**24]),
    st.integers(1, 8),
    st.sampled_from([0, 2**20, 2**40]),
)
def test_every_chunk_is_in_one_slab(files, chunk_bytes, threads, work_bytes):
    """Whatever the files, sizes and threads: slabs are disjoint and complete, and bounded."""
    slabs = cut_slabs(np.array(files, np.int64), chunk_bytes, threads, work_bytes=work_bytes)
    taken = [at for first, last in slabs for at in range(first, last)]
    assert sorted(taken) == list(range(len(files)))
    assert all((last - first) * chunk_bytes <= 16 * 2**20 or last - first == 1 for first, last in slabs)


def test_long_files_take_turns():
    """Runs of several long files alternate, each file in its own order."""
    slabs = cut_slabs(np.repeat([0, 1], 8), 2**22, 1, work_bytes=2**40)
    assert slabs == [(0, 4), (8, 12), (4, 8), (12, 16)]


def test_short_files_share_a_slab():
    """An array of one file per chunk is not dealt out chunk by chunk."""
    assert cut_slabs(np.arange(12), 1000, 2, work_bytes=2**40) == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 12)]
    assert cut_slabs(np.arange(12), 1000, 1, work_bytes=2**40) == [(0, 12)]


def test_little_work_is_left_to_one_thread():
    """Waking another thread for a few kilobytes costs more than it saves; a slab is worth a quarter of a MiB."""
    assert cut_slabs(np.arange(64), 2048, 2, work_bytes=100_000) == [(0, 64)]
    assert len(cut_slabs(np.arange(64), 2048, 2, work_bytes=2**20)) == 4
    assert len(cut_slabs(np.arange(64), 2048, 2, work_bytes=2**40)) == 8
    assert len(cut_slabs(np.arange(64), 2048, 2, work_bytes=6 * 2**24)) == 6


def test_slabs_of_few_files():
    """A slab holds all of its files open: many short files are divided, a few long ones are not."""
    assert cut_slabs(np.arange(12), 1000, 1, work_bytes=2**40, most_files=5) == [(0, 5), (5, 10), (10, 12)]
    assert cut_slabs(np.repeat([0, 1], 6), 1000, 1, work_bytes=2**40, most_files=2) == [(0, 12)]
