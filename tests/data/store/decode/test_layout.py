"""Axes that are contiguous on both sides are walked as one."""

from types import SimpleNamespace

import numpy as np
import pytest

from rankwise.data.store.decode.tasks import Layout


def laid_out(chunk, targets, out):
    """Layout of regions (start, extent) of one chunk in an output of a shape, elements of 2 bytes."""
    strides = np.array([int(np.prod(out[axis + 1 :])) for axis in range(len(out))], dtype=np.int64)
    tables = SimpleNamespace(
        chunk_shape=np.array([chunk]),
        bounds=np.array([0, len(targets)]),
        src_start=np.array([target[0] for target in targets]),
        extent=np.array([target[1] for target in targets]),
        dst_strides=strides,
        fill=np.zeros(1, dtype=np.int16),
    )
    return Layout.of(tables)


@pytest.mark.parametrize(
    ("chunk", "extents", "out", "merged"),
    [
        ((4, 5, 6), [(4, 5, 6)], (4, 5, 6), [[120]]),
        ((4, 5, 6), [(2, 5, 6)], (4, 5, 6), [[60]]),
        ((4, 5, 6), [(4, 5, 6)], (4, 9, 6), [[4, 30]]),
        ((4, 5, 6), [(4, 5, 6)], (4, 5, 7), [[20, 6]]),
        ((4, 5, 6), [(4, 5, 5)], (4, 5, 6), [[20, 5]]),
        ((4, 5, 6), [(4, 3, 5)], (8, 8, 8), [[4, 3, 5]]),
        ((4, 5, 6), [(4, 5, 6), (4, 3, 6)], (4, 5, 6), [[4, 30], [4, 18]]),
        ((4, 5, 6), [(1, 1, 5), (1, 1, 2)], (8, 8, 8), [[5], [2]]),
        ((4, 1, 6), [(4, 1, 6)], (4, 9, 6), [[4, 6]]),
        ((4, 5, 1), [(4, 5, 1)], (4, 5, 1), [[20]]),
        ((4, 5, 3), [(4, 5, 1)], (4, 5, 1), [[20, 1]]),
        ((7,), [(3,)], (9,), [[3]]),
    ],
)
def test_axes_are_merged(chunk, extents, out, merged):
    """Only where it holds for every target, and never across a gap on either side."""
    layout = laid_out(chunk, [((0,) * len(chunk), extent) for extent in extents], out)
    assert layout.extents.tolist() == merged
    assert layout.src_strides.shape == (1, len(merged[0]))
    assert layout.strides[-1] == 1


def test_the_bytes_that_are_needed():
    """From the first element to the last that any target takes."""
    layout = laid_out((4, 5, 6), [((1, 2, 3), (2, 1, 1)), ((0, 4, 5), (1, 1, 1))], (8, 8, 8))
    assert layout.size.tolist() == [240]
    assert layout.low.tolist() == [2 * (4 * 6 + 5)]
    assert layout.high.tolist() == [2 * (2 * 30 + 2 * 6 + 3 + 1)]
    assert layout.src_first.tolist() == [2 * (30 + 12 + 3), 2 * 29]
