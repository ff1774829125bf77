"""Expected numbers of blocks: the closed forms against counting every origin."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.crops.audit.costs import (
    expected_blocks,
    expected_distinct,
    expected_whole_blocks,
    fewest_blocks,
    touch_chances,
)

AXES = st.tuples(st.integers(1, 60), st.integers(1, 70), st.integers(1, 70))


def touched(size, block, window):
    """For every origin the set of blocks, one by one."""
    window = min(window, size)
    return [{place // block for place in range(s, s + window)} for s in range(size - window + 1)]


@given(AXES)
def test_expected_blocks_is_exact(axis):
    """The closed form equals the mean over every origin, to the last digit."""
    sets = touched(*axis)
    assert expected_blocks(*axis) == Fraction(sum(map(len, sets)), len(sets))


@given(AXES)
def test_fewest_blocks(axis):
    """No origin touches fewer, and origin 0 touches no more."""
    counts = [len(blocks) for blocks in touched(*axis)]
    assert fewest_blocks(*axis) == min(counts) == counts[0]


@given(AXES)
def test_blocks_that_are_cut_off_count_less(axis):
    """A block that reaches past the axis counts by its part inside, exactly."""
    size, block, _ = axis
    parts = [Fraction(min(block, size - first), block) for first in range(0, size, block)]
    sets = touched(*axis)
    assert expected_whole_blocks(*axis) == sum(sum(parts[one] for one in blocks) for blocks in sets) / len(sets)


@given(AXES)
def test_chances_are_those_of_every_block(axis):
    """Each block's chance is the share of the origins that touch it; blocks of one chance are counted together."""
    sets = touched(*axis)
    num_blocks = -(-axis[0] // axis[1])
    each = sorted(sum(block in blocks for blocks in sets) / len(sets) for block in range(num_blocks))
    chances, counts = touch_chances(*axis)
    assert np.repeat(chances, counts.astype(int)).tolist() == pytest.approx(each)
    assert float(chances @ counts) == pytest.approx(float(expected_blocks(*axis)))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_distinct_blocks_of_several_boxes(axes, draws, num_arrays):
    """Blocks that several boxes share count once: equal to the mean over every combination of boxes."""
    boxes = [
        {(array, *block) for block in itertools.product(*blocks)}
        for array in range(num_arrays)
        for blocks in itertools.product(*(touched(*axis) for axis in axes))
    ]
    unions = [len(set().union(*chosen)) for chosen in itertools.product(boxes, repeat=draws)]
    one_array = expected_distinct(*zip(*axes, strict=True), draws=draws, share=1 / num_arrays)
    assert num_arrays * one_array == pytest.approx(sum(unions) / len(unions))


def test_a_long_axis_costs_no_time():
    """Arithmetic, not enumeration: an axis of 10^15 elements is as quick as a short one."""
    assert expected_blocks(10**15, 64, 128) == pytest.approx(float(Fraction(128 + 63, 64)))


def test_one_box_of_the_default_data_set():
    """The known case: crops of 128^3 out of 512^3 with chunks of 32x64x64 touch 44.2 chunks."""
    assert math.prod(map(float, (expected_blocks(512, c, 128) for c in (32, 64, 64)))) == pytest.approx(44.2, abs=0.1)
