"""Numbers along a curve through a grid of tiles."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.crops.index.lattice import num_blocks, tiles_on_curve

grids = st.integers(1, 4).flatmap(
    lambda axes: st.tuples(
        st.lists(st.integers(1, 8), min_size=axes, max_size=axes),
        st.lists(st.integers(1, 6), min_size=axes, max_size=axes),
    )
)


def walk(counts, block):
    counts = np.array(counts)
    total = int(counts.prod())
    return tiles_on_curve(np.arange(total), np.broadcast_to(counts, (total, len(counts))), np.array(block))


@given(grids)
def test_every_tile_has_one_number(grid):
    """The numbers below the product of the counts are the tiles of the grid, each once."""
    counts, block = grid
    found = np.ravel_multi_index(tuple(walk(counts, block).T), counts)
    assert sorted(found.tolist()) == list(range(int(np.prod(counts))))


@given(grids)
def test_a_block_is_walked_before_the_next(grid):
    """Consecutive numbers stay inside one box that is no larger than a block, and move on to a neighbouring one."""
    counts, block = grid
    tiles, segments = walk(counts, block), [-(-c // b) for c, b in zip(counts, block, strict=True)]
    smallest = int(np.prod([c // s for c, s in zip(counts, segments, strict=True)]))
    largest = int(np.prod([-(-c // s) for c, s in zip(counts, segments, strict=True)]))
    # any run as long as the smallest block touches at most two blocks, so it spans at most two of them per axis
    for low in range(0, len(tiles) - smallest, max(1, smallest)):
        run = tiles[low : low + smallest]
        spans = run.max(axis=0) - run.min(axis=0) + 1
        assert (spans <= 2 * np.array(block)).all()
    assert num_blocks(np.array([counts]), np.array(block)) * largest >= len(tiles)


@given(grids)
def test_blocks_that_follow_each_other_touch(grid):
    """With blocks of one tile every step goes to a neighbour, whatever the counts: even ones, odd ones, mixed."""
    counts, _ = grid
    steps = np.abs(np.diff(walk(counts, [1] * len(counts)), axis=0)).sum(axis=1)
    assert (steps == 1).all()


def test_grids_of_several_images_go_together():
    """Numbers of different grids are placed by their own counts."""
    counts = np.array([[2, 3], [1, 1], [5, 4]])
    block = np.array([2, 2])
    mixed = tiles_on_curve(np.array([4, 0, 17]), counts, block)
    for number, grid, coords in zip([4, 0, 17], counts, mixed, strict=True):
        np.testing.assert_array_equal(walk(grid, block)[number], coords)


def test_a_huge_grid_costs_nothing():
    """A grid of 10^15 tiles is walked without a table; numbers do not overflow."""
    counts = np.array([[100_000, 100_000, 100_000]])
    last = tiles_on_curve(np.array([10**15 - 1]), counts, np.array([4, 4, 4]))
    assert ((last >= 0) & (last < 100_000)).all()
