"""Cuts an epoch's ring of samples into lanes, a lane into windows, and maps positions to samples."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rankwise.data.contract import IntArray
from rankwise.data.order.permutation import WordArray, derive, mix_words, permute, unpermute

__all__ = [
    "Grid",
    "LaneColumns",
    "lane_columns",
    "lane_samples",
    "missing_before",
    "on_ring",
    "piece_in_slot",
    "rows_of_samples",
    "run_of_samples",
    "samples_at",
    "slot_start",
]

# Stream numbers: they give each use of one (seed, epoch) a separate key.
TURN, DEAL, PIECES, WINDOWS = range(1, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The parameters of a shuffled order, besides seed and epoch.

    Attributes:
        num_samples: samples of an epoch.
        chunk_samples: number of neighbouring samples in one chunk, 1 to `num_samples`.
        lanes: number of lanes, 1 to `num_samples`.
        window: number of chunks of a lane that are mixed together.
    """

    num_samples: int
    chunk_samples: int
    lanes: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneColumns:
    """Arrays with one entry per lane; `take` selects the lanes of given positions.

    Attributes:
        start: int64[L], first sample of the lane's run.
        length: int64[L], number of samples.
        pieces: int64[L], number of pieces (the parts of chunks that lie in the run).
        piece_key: uint64[L], key for shuffling the pieces.
        swap: int64[L], 1 if the last piece comes before the first one, at the end of the lane.
        window_key: uint64[L], base key for shuffling inside windows.
        short_piece: int64[3, L], numbers of the pieces that may be short.
        short_slot: int64[3, L], slots of these pieces after shuffling.
        deficit: int64[3, L], number of samples that these pieces lack.
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
    """Return the lanes of an epoch. Pure; the most recent results are cached."""
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
    """Return the start of each lane's run on the ring, and its length; lane p % L holds position p."""
    lane = np.arange(grid.lanes, dtype=np.int64)
    length = (grid.num_samples - 1 - lane) // grid.lanes + 1
    dealt = permute(lane, grid.lanes, np.uint64(derive(seed, epoch, DEAL)))
    ends = np.cumsum(length[dealt])
    start = np.empty_like(ends)
    # Multiply and shift instead of taking a remainder: all turns are equally likely to within 2**-64.
    turn = (derive(seed, epoch, TURN) * grid.num_samples) >> 64
    start[dealt] = (ends - length[dealt] + turn) % grid.num_samples
    return start, length


def _pieces(grid: Grid, start: IntArray, length: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the number of pieces of each run, and number and deficit of the three pieces that may be short."""
    chunk = grid.chunk_samples
    before_wrap = np.minimum(length, grid.num_samples - start)
    after_wrap = length - before_wrap
    first = np.minimum(before_wrap, chunk - start % chunk)
    rest = before_wrap - first
    more, wrapped = -(-rest // chunk), -(-after_wrap // chunk)
    pieces = 1 + more + wrapped
    short_piece = np.stack([np.zeros_like(more), more, pieces - 1])
    # more * chunk - rest: what the last of `more` chunks lacks; zero if there is none.
    deficit = np.stack([chunk - first, more * chunk - rest, wrapped * chunk - after_wrap])
    return pieces, short_piece, deficit


def _short_slots(tail: IntArray, pieces: IntArray, piece_key: WordArray, swap: IntArray) -> IntArray:
    """Return the slots of a run's first piece, of the ring's last chunk (piece `tail`), and of its last piece."""
    inner = pieces - 2
    # A run of one piece has one slot for first and last piece.
    first, last = np.maximum(inner + swap, 0), np.maximum(inner + 1 - swap, 0)
    inside = (tail > 0) & (tail < pieces - 1)
    shuffled = unpermute(np.where(inside, tail - 1, 0), np.maximum(inner, 1), piece_key)
    at_tail = np.where(inside, shuffled, np.where(tail == 0, first, last))
    return np.stack([first, at_tail, last])


def piece_in_slot(columns: LaneColumns, slot: IntArray) -> IntArray:
    """Return the piece in each slot: first the inner pieces, shuffled, then the two pieces at the edges."""
    edge = slot - (columns.pieces - 2)
    shuffled = permute(np.where(edge < 0, slot, 0), np.maximum(columns.pieces - 2, 1), columns.piece_key)
    at_edge = np.where(edge == columns.swap, 0, columns.pieces - 1)
    return np.where(edge < 0, shuffled + 1, at_edge)


def lane_samples(grid: Grid, columns: LaneColumns, index: IntArray) -> IntArray:
    """Return the samples at given places of lanes, int64 of the broadcast shape.

    Args:
        grid: the numbers of the order.
        columns: the lane of each place; broadcasts against `index`.
        index: int64, place inside the lane, from 0.
    """
    place = _mix_window(grid, columns, index) if grid.window * grid.chunk_samples > 1 else index
    if grid.chunk_samples == 1:
        return on_ring(grid, columns.start + permute(place, columns.length, columns.piece_key))
    slot, begin = _locate(grid, columns, place, slots=1)
    piece = piece_in_slot(columns, slot)
    offset = place - begin + piece * grid.chunk_samples - missing_before(columns, columns.short_piece, piece)
    return on_ring(grid, columns.start + offset)


def on_ring(grid: Grid, sample: IntArray) -> IntArray:
    """Wrap sample numbers beyond the ring's end around to its beginning."""
    return sample - grid.num_samples * (sample >= grid.num_samples)


def _mix_window(grid: Grid, columns: LaneColumns, index: IntArray) -> IntArray:
    """Permute each place within its window."""
    window, start = _locate(grid, columns, index, slots=grid.window)
    size = slot_start(grid, columns, np.minimum((window + 1) * grid.window, columns.pieces)) - start
    key = mix_words(window.astype(np.uint64) ^ columns.window_key)
    return start + permute(index - start, size, key)


def _locate(grid: Grid, columns: LaneColumns, place: IntArray, *, slots: int) -> tuple[IntArray, IntArray]:
    """Return the group of `slots` slots that holds each place, and the place where this group starts."""
    group = place // (slots * grid.chunk_samples)
    group, _ = np.broadcast_arrays(group, columns.start)
    # Short pieces move later groups forward, by less than three chunks in total: at most three corrections.
    while True:
        following = slot_start(grid, columns, np.minimum((group + 1) * slots, columns.pieces))
        behind = following <= place
        if not behind.any():
            return group, slot_start(grid, columns, group * slots)
        group = group + behind


def slot_start(grid: Grid, columns: LaneColumns, slot: IntArray) -> IntArray:
    """Return the place where a slot starts; the slot after the last one starts at the lane's length."""
    return slot * grid.chunk_samples - missing_before(columns, columns.short_slot, slot)


def missing_before(columns: LaneColumns, short: IntArray, number: IntArray) -> IntArray:
    """Return how many samples are missing in the short pieces before `number`."""
    lacking: IntArray = columns.deficit[0] * (short[0] < number)
    lacking += columns.deficit[1] * (short[1] < number)
    lacking += columns.deficit[2] * (short[2] < number)
    return lacking


# With fewer samples in a window over all lanes, building its table costs more than it saves.
LEAST = 1024


def rows_of_samples(grid: Grid, columns: LaneColumns, low: int, high: int) -> IntArray:
    """Return the samples at places [low, high) of all lanes, int64[high - low, L]. All lanes must reach `high`."""
    window_samples = grid.window * grid.chunk_samples
    tabled = grid.chunk_samples > 1 and grid.window <= high - low and window_samples * grid.lanes >= LEAST
    if not tabled:
        return lane_samples(grid, columns, _column(low, high))
    inner_cuts = range((low // window_samples + 1) * window_samples, high, window_samples)
    parts = [_inside_window(grid, columns, *span) for span in itertools.pairwise((low, *inner_cuts, high))]
    return np.concatenate(parts)


def _column(low: int, high: int) -> IntArray:
    return np.arange(low, high, dtype=np.int64)[:, None]


def _inside_window(grid: Grid, columns: LaneColumns, low: int, high: int) -> IntArray:
    """Return rows within one window, from a table for lanes whose window is full; other lanes compute each sample."""
    full = _has_full_window(grid, columns, low)
    if full.all():
        return _in_full_window(grid, columns, low, high)
    rows = np.empty((high - low, grid.lanes), dtype=np.int64)
    for lanes, compute in ((np.flatnonzero(full), True), (np.flatnonzero(~full), False)):
        if len(lanes) and compute:
            rows[:, lanes] = _in_full_window(grid, columns.take(lanes), low, high)
        elif len(lanes):
            rows[:, lanes] = lane_samples(grid, columns.take(lanes), _column(low, high))
    return rows


def _has_full_window(grid: Grid, columns: LaneColumns, place: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return the lanes whose window at this place has only full chunks, with only full chunks before it."""
    window_samples = grid.window * grid.chunk_samples
    first_slot = np.full_like(columns.pieces, place // window_samples * grid.window)
    start = slot_start(grid, columns, first_slot)
    end = slot_start(grid, columns, np.minimum(first_slot + grid.window, columns.pieces))
    full = (start == first_slot * grid.chunk_samples) & (end == start + window_samples)
    return np.asarray(full, dtype=np.bool_)


def _in_full_window(grid: Grid, columns: LaneColumns, low: int, high: int) -> IntArray:
    window_samples = grid.window * grid.chunk_samples
    window = low // window_samples
    key = mix_words(np.uint64(window) ^ columns.window_key)
    place = permute(_column(low, high) - window * window_samples, window_samples, key)
    slot = place // grid.chunk_samples
    # For each slot, the offset from a place in the window to its place on the ring.
    table_slot = np.arange(grid.window, dtype=np.int64)[:, None]
    piece = piece_in_slot(columns, table_slot + window * grid.window)
    shift = (piece - table_slot) * grid.chunk_samples - missing_before(columns, columns.short_piece, piece)
    shift += columns.start
    num_lanes = len(columns.start)
    return on_ring(grid, shift.ravel()[slot * num_lanes + np.arange(num_lanes)] + place)


# Large enough to amortise a NumPy call, small enough for the CPU cache and for a start within a millisecond.
BLOCK = 1 << 13


def samples_at(grid: Grid, seed: int, epoch: int, positions: IntArray) -> IntArray:
    """Return the samples at any positions of an epoch, int64[len(positions)]."""
    columns = lane_columns(grid, seed, epoch)
    found = np.empty(len(positions), dtype=np.int64)
    for low in range(0, len(positions), BLOCK):
        part = positions[low : low + BLOCK]
        found[low : low + BLOCK] = lane_samples(grid, columns.take(part % grid.lanes), part // grid.lanes)
    return found


def run_of_samples(grid: Grid, seed: int, epoch: int, start: int, count: int) -> IntArray:
    """Return the samples at the positions [start, start + count), int64[count]."""
    size = _block_size(grid)
    low, high = start // size, (start + count - 1) // size
    blocks = [_block(grid, seed, epoch, number) for number in range(low, high + 1)]
    run = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    begin = start - low * size
    return run[begin : begin + count].copy()


def _block_size(grid: Grid) -> int:
    return max(1, BLOCK // grid.lanes) * grid.lanes


@lru_cache(maxsize=8)
def _block(grid: Grid, seed: int, epoch: int, number: int) -> IntArray:
    """Return a block of consecutive positions: one row per place, one column per lane, so no lookup is needed."""
    columns = lane_columns(grid, seed, epoch)
    rows = _block_size(grid) // grid.lanes
    low = number * rows
    whole = min(low + rows, grid.num_samples // grid.lanes)
    block = rows_of_samples(grid, columns, low, whole).ravel()
    left = grid.num_samples - whole * grid.lanes
    if whole < low + rows and left:
        place = np.full(left, whole, dtype=np.int64)
        block = np.concatenate([block, lane_samples(grid, columns.take(np.arange(left)), place)])
    block.setflags(write=False)
    return block
