"""An epoch's ring of samples, cut into lanes: which run of the ring a lane owns, and which chunks it holds.

Each epoch turns the ring by a keyed offset, cuts it into runs whose lengths differ by at most one, and deals the runs
to the lanes anew. The chunks of a run are its *pieces*: all of `chunk_samples`, but for three that may be short (the
run's first, the ring's last chunk, the run's last). So where a piece starts follows from its number and the deficits of
the short ones before it, and no list of pieces is needed.

The pieces of a lane are shuffled into *slots*, but the two at its edges come last: so the windows of all lanes change
at the same positions, and a cache of lanes x window chunks suffices (with short pieces in any slot the lanes drift
apart, and such a cache decoded 1.1 to 1.7 times as much). The edges are other samples in each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.order.bijection import permute, unpermute
from rankwise.data.order.mixing import WordArray, derive, mix_words

__all__ = ["Grid", "LaneColumns", "lane_columns", "piece_in_slot"]

# Streams keep the uses of one (seed, epoch) apart.
TURN, DEAL, PIECES, WINDOWS = range(1, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The numbers that decide a shuffled order, beside seed and epoch.

    Attributes:
        num_samples: samples of an epoch.
        chunk_samples: neighbouring samples that one chunk holds, 1 to `num_samples`.
        lanes: number of lanes, 1 to `num_samples`.
        window: chunks of a lane that are mixed with each other.
    """

    num_samples: int
    chunk_samples: int
    lanes: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneColumns:
    """One entry per lane; `take` picks the lanes of single positions.

    Attributes:
        start: int64[L], first sample of the lane's run.
        length: int64[L], its samples.
        pieces: int64[L], its pieces.
        piece_key: uint64[L], key of the order of pieces.
        swap: int64[L], 1 where the last piece comes before the first, at the end of the lane.
        window_key: uint64[L], base key of the orders inside windows.
        short_piece: int64[3, L], numbers of the pieces that may be short.
        short_slot: int64[3, L], where the order of pieces puts them.
        deficit: int64[3, L], how many samples they lack.
    """

    start: IntArray
    length: IntArray
    pieces: IntArray
    piece_key: WordArray
    swap: IntArray
    window_key: WordArray
    short_piece: IntArray
    short_slot: IntArray
    deficit: IntArray

    def take(self, lanes: IntArray) -> LaneColumns:
        """Return the columns of the given lanes, in their order."""
        return LaneColumns(
            start=self.start[lanes],
            length=self.length[lanes],
            pieces=self.pieces[lanes],
            piece_key=self.piece_key[lanes],
            swap=self.swap[lanes],
            window_key=self.window_key[lanes],
            short_piece=self.short_piece[:, lanes],
            short_slot=self.short_slot[:, lanes],
            deficit=self.deficit[:, lanes],
        )


@lru_cache(maxsize=16)
def lane_columns(grid: Grid, seed: int, epoch: int) -> LaneColumns:
    """Return the lanes of an epoch. Pure; the last few are kept."""
    start, length = _runs(grid, seed, epoch)
    pieces, short_piece, deficit = _pieces(grid, start, length)
    piece_key = _lane_keys(grid.lanes, derive(seed, epoch, PIECES))
    swap = (piece_key >> np.uint64(63)).astype(np.int64)
    return LaneColumns(
        start=start,
        length=length,
        pieces=pieces,
        piece_key=piece_key,
        swap=swap,
        window_key=_lane_keys(grid.lanes, derive(seed, epoch, WINDOWS)),
        short_piece=short_piece,
        short_slot=_short_slots(short_piece[1], pieces, piece_key, swap),
        deficit=deficit,
    )


def _lane_keys(lanes: int, base: int) -> WordArray:
    return mix_words(np.arange(lanes, dtype=np.uint64) ^ np.uint64(base))


def _runs(grid: Grid, seed: int, epoch: int) -> tuple[IntArray, IntArray]:
    """Return where each lane's run starts on the ring, and how long it is; lane p % L holds position p."""
    lane = np.arange(grid.lanes, dtype=np.int64)
    length = (grid.num_samples - 1 - lane) // grid.lanes + 1
    dealt = permute(lane, grid.lanes, np.uint64(derive(seed, epoch, DEAL)))
    ends = np.cumsum(length[dealt])
    start = np.empty_like(ends)
    # A multiplication instead of a remainder: all turns are equally likely to within 2**-64.
    turn = (derive(seed, epoch, TURN) * grid.num_samples) >> 64
    start[dealt] = (ends - length[dealt] + turn) % grid.num_samples
    return start, length


def _pieces(grid: Grid, start: IntArray, length: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the number of pieces of each run, and number and deficit of the three that may be short."""
    chunk = grid.chunk_samples
    before_wrap = np.minimum(length, grid.num_samples - start)
    after_wrap = length - before_wrap
    first = np.minimum(before_wrap, chunk - start % chunk)
    rest = before_wrap - first
    more, wrapped = -(-rest // chunk), -(-after_wrap // chunk)
    pieces = 1 + more + wrapped
    short_piece = np.stack([np.zeros_like(more), more, pieces - 1])
    # more * chunk - rest is what the last of `more` full chunks lacks, and zero when there is none.
    deficit = np.stack([chunk - first, more * chunk - rest, wrapped * chunk - after_wrap])
    return pieces, short_piece, deficit


def _short_slots(tail: IntArray, pieces: IntArray, piece_key: WordArray, swap: IntArray) -> IntArray:
    """Return the slots of a run's first piece, of the ring's last chunk (piece `tail`), and of its last piece."""
    inner = pieces - 2
    # A run of one piece has one slot, where first and last coincide.
    first, last = np.maximum(inner + swap, 0), np.maximum(inner + 1 - swap, 0)
    inside = (tail > 0) & (tail < pieces - 1)
    shuffled = unpermute(np.where(inside, tail - 1, 0), np.maximum(inner, 1), piece_key)
    at_tail = np.where(inside, shuffled, np.where(tail == 0, first, last))
    return np.stack([first, at_tail, last])


def piece_in_slot(columns: LaneColumns, slot: IntArray) -> IntArray:
    """Return which piece each slot holds: the inner pieces shuffled, then the two at the edges."""
    edge = slot - (columns.pieces - 2)
    shuffled = permute(np.where(edge < 0, slot, 0), np.maximum(columns.pieces - 2, 1), columns.piece_key)
    at_edge = np.where(edge == columns.swap, 0, columns.pieces - 1)
    return np.where(edge < 0, shuffled + 1, at_edge)
