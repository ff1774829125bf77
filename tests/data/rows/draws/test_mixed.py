"""Collections in one stream."""

import numpy as np
import pytest

from rankwise.data.rows.draws.row_draws import RowDraws
from rankwise.data.rows.draws.weights import DrawOptions, RowWeights
from rankwise.errors import ConfigError

EDGES = np.array([0, 1000, 1300])


def mixed(num, shares=(0.5, 0.5), edges=EDGES, **options):
    base = {"lanes": 8, "block_rows": 10, "window": 3}
    made = DrawOptions(num_samples=num, mix=shares, **{**base, **options})
    return RowDraws(options=made, weights=made.weights, edges=edges)


def test_each_collection_is_shown_before_it_begins_again():
    """In whole rows of lanes the numbers of a collection count up: all its rows, then all again in another order."""
    rows = mixed(1200).rows(np.arange(1200), seed=1, epoch=0)
    small, large = rows[rows >= 1000], rows[rows < 1000]
    assert (len(small), len(large)) == (600, 600)
    assert np.bincount(small - 1000).tolist() == [2] * 300
    assert np.bincount(large).max() == 1
    first, second = small[:300].tolist(), small[300:].tolist()
    assert len(set(first)) > 290  # lanes are a row apart at the seam
    assert first != second


def test_neighbours_come_together():
    """What a lane of the stream shows next lies in few chunks at a time: a window's."""
    rows = mixed(1000, lanes=4).rows(np.arange(1000), seed=1, epoch=0)
    lane = rows[::4]
    large = lane[lane < 1000][:24]
    assert len(set((large // 10).tolist())) <= 6  # 24 of 30 rows of a window of 3 chunks, and its neighbours'


def test_it_is_pure_and_keyed():
    """A sample depends on seed, epoch and its number."""
    draws = mixed(900)
    rows = draws.rows(np.arange(900), seed=1, epoch=2)
    assert draws.rows(np.array([890, 5]), seed=1, epoch=2).tolist() == rows[[890, 5]].tolist()
    for seed, epoch in ((1, 3), (2, 2)):
        assert draws.rows(np.arange(900), seed=seed, epoch=epoch).tolist() != rows.tolist()
    assert draws.fingerprint != mixed(900, shares=(0.4, 0.6)).fingerprint


@pytest.mark.parametrize("together", [1, 5])
def test_weights_hold_inside_each_collection(together):
    """Shares of the mix, and inside a collection each row as likely as its weight; neighbours come together."""
    values = np.ones(1300, dtype="f4")
    values[:500], values[1000:1100] = 3, 0
    drawn = {"weights": RowWeights(values), "together": together, "block_rows": 50}
    rows = mixed(20_000, shares=(0.25, 0.75), **drawn).rows(np.arange(20_000), seed=4, epoch=0)
    assert abs(np.count_nonzero(rows < 1000) - 5000) <= 4
    assert not np.isin(rows, np.arange(1000, 1100)).any()
    assert abs(np.mean(rows[rows < 1000] < 500) - 0.75) < 0.03
    if together == 5:
        lane = rows[::8]
        runs = lane[lane >= 1000] // 50
        assert np.mean(runs[1:] == runs[:-1]) > 0.6


def test_what_cannot_be_mixed():
    """As many shares as collections, rows in each, and numbers that fit."""
    for options, said in (
        ({"shares": (1, 1, 1)}, "one share for each of 2 collections"),
        ({"num": 2**31 + 1}, "at most 2147479552 samples"),
    ):
        with pytest.raises(ConfigError, match=said):
            mixed(**{"num": 10, **options})
    with pytest.raises(ConfigError, match="rows of every collection"):
        mixed(5, shares=(1, 1), edges=np.array([0, 5, 5]))
