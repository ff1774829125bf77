"""Tables of tasks: what does not fit together is refused before compiled code walks over it."""

import numpy as np
import pytest

from rankwise.data.store.decode.tasks import KIND_RAW, ChunkTasks


def tables(**changes):
    """Two chunks of shape (4, 6), three targets, an output of shape (3, 4, 6)."""
    zeros = {name: np.zeros(2, dtype=np.int64) for name in ("fd", "offset", "encoded", "decoded", "keep")}
    return (
        zeros
        | {
            "length": np.full(2, 48),
            "kind": np.full(2, KIND_RAW),
            "fill": np.zeros(1, dtype=np.uint16),
            "chunk_shape": np.array([[4, 6], [4, 6]]),
            "bounds": np.array([0, 1, 3]),
            "src_start": np.array([[0, 0], [1, 2], [3, 5]]),
            "extent": np.array([[4, 6], [3, 4], [1, 1]]),
            "dst_start": np.array([0, 24, 48]),
            "dst_strides": np.array([6, 1]),
        }
        | changes
    )


def test_what_tasks_know_of_themselves():
    """Sizes, the part of each chunk that is needed, and how far into the output the targets reach."""
    tasks = ChunkTasks(**tables())
    assert len(tasks) == 2
    assert tasks.status.tolist() == tasks.detail.tolist() == [0, 0]
    assert tasks.reach == 48
    assert tasks.unfit.tolist() == [False] * 3
    assert tasks.layout.size.tolist() == [48, 48]
    assert tasks.layout.low.tolist() == [0, 2 * (1 * 6 + 2)]
    assert tasks.layout.high.tolist() == [48, 48]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fd": np.zeros(3, dtype=np.int64)}, "offset must be int64"),
        ({"length": np.zeros(2)}, "length must be int64"),
        ({"kind": np.zeros(4, dtype=np.int64)[::2]}, "kind must be int64"),
        ({"scale": np.ones(3)}, "offset_ must be float64"),
        ({"fill": np.zeros(3, dtype=np.uint16)}, "fill must be uint16"),
        ({"bounds": np.array([0, 1, 2])}, "do not cut 3 targets"),
        ({"bounds": np.array([1, 1, 3])}, "do not cut 3 targets"),
        ({"bounds": np.array([0, 4, 3])}, "do not cut 3 targets"),
        ({"src_start": np.array([[0, 0], [1, 3], [3, 5]])}, "leaves its chunk"),
        ({"src_start": np.array([[0, 0], [-1, 2], [3, 5]])}, "leaves its chunk"),
        ({"extent": np.array([[4, 6], [3, 0], [1, 1]])}, "leaves its chunk"),
        ({"dst_start": np.array([0, -1, 48])}, "start >= 0"),
        ({"dst_strides": np.array([6, 2])}, "the last stride 1"),
        ({"dst_strides": np.array([-6, 1])}, "strides >= 0"),
    ],
)
def test_tables_that_do_not_fit(changes, told):
    """A planner's mistake is an error with a name, not a stray write."""
    with pytest.raises(ValueError, match=told):
        ChunkTasks(**tables(**changes))


def test_no_chunks_and_no_targets():
    """Nothing to do is fine."""
    empty = {name: value[:0] for name, value in tables().items() if name not in ("bounds", "dst_strides", "fill")}
    tasks = ChunkTasks(**tables(**empty, bounds=np.zeros(1, dtype=np.int64)))
    assert len(tasks) == 0
    assert tasks.reach == -1
    without = {name: tables()[name][:0] for name in ("src_start", "extent", "dst_start")}
    assert ChunkTasks(**tables(**without, bounds=np.zeros(3, dtype=np.int64))).layout.high.tolist() == [0, 0]
