"""Parts of a stream by share."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwise.data.rows.draws.row_draws import MOST_POSITIONS, Interleave
from rankwise.errors import ConfigError


@settings(max_examples=40, deadline=None)
@example(shares=[1, 1, 13, 38, 22, 37], lanes=45, offset=0, first=0, size=452)  # 46 numbers are still to come
@given(
    shares=st.lists(st.integers(1, 50), min_size=2, max_size=6),
    lanes=st.integers(1, 70),
    offset=st.integers(0, 2**32 - 1),
    first=st.integers(0, 3000),
    size=st.integers(1, 3000),
)
def test_any_run_holds_the_shares(shares, lanes, offset, first, size):
    """Any run of positions has of every part what its share says, within a few; numbers repeat nowhere."""
    part, number = Interleave(shares, lanes).find(np.arange(first + size), offset)
    levels = int(np.ceil(np.log2(len(shares))))
    for which, share in enumerate(shares):
        count = np.count_nonzero(part[first:] == which)
        assert abs(count - size * share / sum(shares)) <= 10 * levels
        mine = number[part == which]
        assert len(set(mine.tolist())) == len(mine)
        # each halving holds back at most what is missing before it and the rest of a row
        assert len(mine) == 0 or mine.max() < len(mine) + levels * lanes


def test_whole_rows_leave_no_gap_and_keep_their_lanes():
    """After whole rows of lanes a half has brought its first numbers, all of them; a lane's numbers share a lane."""
    lanes = 16
    part, number = Interleave([0.3, 0.7], lanes).find(np.arange(50 * lanes), 12345)
    for which in (0, 1):
        mine = number[part == which]
        assert sorted(mine.tolist()) == list(range(len(mine)))
        for lane in range(lanes):
            held = number[(part == which) & (np.arange(50 * lanes) % lanes == lane)]
            assert len(set((held % lanes).tolist())) == 1


@settings(max_examples=40, deadline=None)
@given(
    shares=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    lanes=st.integers(1, 64),
    offset=st.integers(0, 2**32 - 1),
    first=st.integers(0, 40),
    rows=st.integers(1, 40),
)
def test_whole_rows_hold_two_shares_to_one(shares, lanes, offset, first, rows):
    """Two parts of any whole rows are at most one off."""
    part, _ = Interleave(shares, lanes).find(np.arange(first * lanes, (first + rows) * lanes), offset)
    assert abs(np.count_nonzero(part == 0) - rows * lanes * shares[0] / sum(shares)) <= 1.001


def test_it_is_pure():
    """What a position is does not depend on the others that are asked for."""
    mix = Interleave([1, 2, 3], 8)
    part, number = mix.find(np.arange(1000), 7)
    for at in ([999, 3], [500]):
        assert [found.tolist() for found in mix.find(np.array(at), 7)] == [part[at].tolist(), number[at].tolist()]
    assert mix.find(np.arange(1000), 1 << 30)[0].tolist() != part.tolist()


@pytest.mark.parametrize("shares", [[1.0], [1, 0], [1, -1], [1, float("nan")]])
def test_shares_make_sense(shares):
    """One part, nothing of a part, or less."""
    with pytest.raises(ConfigError, match="a share above 0 for each of several collections"):
        Interleave(shares, 4)


def test_the_last_positions_are_right():
    """Nothing runs over at the end of the longest epoch: shares hold there too."""
    last = np.arange(MOST_POSITIONS - 6400, MOST_POSITIONS)
    part, number = Interleave([0.9, 0.1], 64).find(last, 2**32 - 1)
    assert abs(np.count_nonzero(part == 0) - 5760) <= 1
    assert abs(number[part == 0].max() / MOST_POSITIONS - 0.9) < 1e-6
