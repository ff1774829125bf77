"""Cuts an epoch's ring of samples into lanes, a lane into windows; maps positions to samples, for a step or a share."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from rankwise.data.contract import IntArray, ListedIds
from rankwise.data.order.permutation import WordArray, derive, mix_words, permute

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
        return LaneColumns(**{name: getattr(self, name)[..., lanes] for name in self.__dataclass_fields__})


@lru_cache(maxsize=16)
def lane_columns(grid: Grid, seed: int, epoch: int) -> LaneColumns:
    """Return the lanes of an epoch. Pure; the most recent results are cached."""
    start, length = _runs(grid, seed, epoch)
    pieces, short_piece, deficit = _pieces(grid, start, length)
    lane = np.arange(grid.lanes, dtype=np.uint64)
    piece_key = mix_words(lane ^ np.uint64(derive(seed, epoch, PIECES)))
    swap = (piece_key >> np.uint64(63)).astype(np.int64)
    return LaneColumns(
        start=start,
        length=length,
        pieces=pieces,
        piece_key=piece_key,
        swap=swap,
        window_key=mix_words(lane ^ np.uint64(derive(seed, epoch, WINDOWS))),
        short_piece=short_piece,
        short_slot=_short_slots(short_piece[1], pieces, piece_key, swap),
        deficit=deficit,
    )


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
    shuffled = permute(np.where(inside, tail - 1, 0), np.maximum(inner, 1), piece_key, backward=True)
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
    place = index
    if grid.window * grid.chunk_samples > 1:  # permute each place within its window
        window, start = _locate(grid, columns, index, slots=grid.window)
        size = slot_start(grid, columns, np.minimum((window + 1) * grid.window, columns.pieces)) - start
        key = mix_words(window.astype(np.uint64) ^ columns.window_key)
        place = start + permute(index - start, size, key)
    if grid.chunk_samples == 1:
        offset = permute(place, columns.length, columns.piece_key)
    else:
        slot, begin = _locate(grid, columns, place, slots=1)
        piece = piece_in_slot(columns, slot)
        offset = place - begin + piece * grid.chunk_samples - missing_before(columns, columns.short_piece, piece)
    sample = columns.start + offset
    return sample - grid.num_samples * (sample >= grid.num_samples)  # the ring goes on at its beginning


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
        return lane_samples(grid, columns, np.arange(low, high, dtype=np.int64)[:, None])
    rows = np.empty((high - low, grid.lanes), dtype=np.int64)
    inner_cuts = range((low // window_samples + 1) * window_samples, high, window_samples)
    for begin, end in itertools.pairwise((low, *inner_cuts, high)):
        rows[begin - low : end - low] = _inside_window(grid, columns, begin, end)
    return rows


def _inside_window(grid: Grid, columns: LaneColumns, low: int, high: int) -> IntArray:
    """Return rows within one window, from a table for lanes whose window is full; other lanes compute each sample."""
    # full: a window of full chunks only, with full chunks only before it
    window_samples = grid.window * grid.chunk_samples
    first_slot = np.full_like(columns.pieces, low // window_samples * grid.window)
    start = slot_start(grid, columns, first_slot)
    end = slot_start(grid, columns, np.minimum(first_slot + grid.window, columns.pieces))
    full = (start == first_slot * grid.chunk_samples) & (end == start + window_samples)
    if full.all():
        return _in_full_window(grid, columns, low, high)
    rows = np.empty((high - low, grid.lanes), dtype=np.int64)
    for lanes, compute in ((np.flatnonzero(full), True), (np.flatnonzero(~full), False)):
        if len(lanes) and compute:
            rows[:, lanes] = _in_full_window(grid, columns.take(lanes), low, high)
        elif len(lanes):
            rows[:, lanes] = lane_samples(grid, columns.take(lanes), np.arange(low, high, dtype=np.int64)[:, None])
    return rows


def _in_full_window(grid: Grid, columns: LaneColumns, low: int, high: int) -> IntArray:
    window_samples = grid.window * grid.chunk_samples
    window = low // window_samples
    key = mix_words(np.uint64(window) ^ columns.window_key)
    index = np.arange(low, high, dtype=np.int64)[:, None]
    place = permute(index - window * window_samples, window_samples, key)
    slot = place // grid.chunk_samples
    # For each slot, the offset from a place in the window to its place on the ring.
    table_slot = np.arange(grid.window, dtype=np.int64)[:, None]
    piece = piece_in_slot(columns, table_slot + window * grid.window)
    shift = (piece - table_slot) * grid.chunk_samples - missing_before(columns, columns.short_piece, piece)
    shift += columns.start
    num_lanes = len(columns.start)
    sample: IntArray = shift.ravel()[slot * num_lanes + np.arange(num_lanes)] + place
    return sample - grid.num_samples * (sample >= grid.num_samples)


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
    size = max(1, BLOCK // grid.lanes) * grid.lanes
    found = np.empty(count, dtype=np.int64)
    for number in range(start // size, (start + count - 1) // size + 1):
        begin, end = max(start, number * size), min(start + count, (number + 1) * size)
        block = _block(grid, seed, epoch, number)
        found[begin - start : end - start] = block[begin - number * size : end - number * size]
    return found


@lru_cache(maxsize=8)
def _block(grid: Grid, seed: int, epoch: int, number: int) -> IntArray:
    """Return a block of consecutive positions: one row per place, one column per lane, so no lookup is needed."""
    columns = lane_columns(grid, seed, epoch)
    rows = max(1, BLOCK // grid.lanes)
    low = number * rows
    whole = min(low + rows, grid.num_samples // grid.lanes)
    block = rows_of_samples(grid, columns, low, whole).ravel()
    left = grid.num_samples - whole * grid.lanes
    if whole < low + rows and left:
        place = np.full(left, whole, dtype=np.int64)
        block = np.concatenate([block, lane_samples(grid, columns.take(np.arange(left)), place)])
    block.setflags(write=False)
    return block


# Number of samples of a share that are computed together, over several steps: enough to amortise a NumPy call, few
# enough for a start within a millisecond.
SHARE_BLOCK = 1 << 11
# One id of a share costs as much as this many ids of consecutive positions: up to this many ranks, computing the
# whole step costs no more than a share.
ALONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderIds:
    """Implements the contract's `StepIds`. Pure and small, so each batch can carry a pickled copy.

    Attributes:
        grid: the parameters of the order.
        seed: of the order.
        epoch: of the step.
        start: first position of the step.
        count: real samples of the step.
        size: number of samples with padding.
        batch_size: of the order; decides which steps follow.
        shuffled: False if sample p is at position p.
    """

    grid: Grid
    seed: int
    epoch: int
    start: int
    count: int
    size: int
    batch_size: int
    shuffled: bool

    def listed(self) -> tuple[IntArray, IntArray]:
        """Return all ids and their lanes, padding last."""
        places: IntArray = np.arange(self.start, self.start + self.count, dtype=np.int64)
        lanes, ids = places % self.grid.lanes, places
        if self.shuffled:
            ids = run_of_samples(self.grid, self.seed, self.epoch, self.start, self.count)
        if self.size > self.count:
            # Pad with repeats of the step's own samples, each in the lane of its original: no extra reads.
            ids, lanes = np.resize(ids, self.size), np.resize(lanes, self.size)
        return ids, lanes

    def run(self, low: int, high: int) -> tuple[IntArray, IntArray]:
        """Return offsets and ids of the run [low, high) of the step, sorted by lane."""
        if self.size > self.count:  # only the last step of an epoch can be padded
            ids, their_lanes = self.listed()
            return ListedIds(ids=ids, lanes=their_lanes).run(low, high)
        if self.shuffled and (high - low) * ALONE < self.count == self.batch_size:
            # After a resume with another batch size steps may begin anywhere, so blocks of steps are counted from the
            # first position that a step of this size can have.
            number, origin = divmod(self.start, self.batch_size)
            steps = max(1, SHARE_BLOCK // max(1, high - low))
            block = replace(self, start=origin + number // steps * steps * self.batch_size)
            offsets, found = _share_block(block, steps, low, high)
            return offsets[number % steps].copy(), found[number % steps].copy()
        lanes = self.grid.lanes
        offsets = _offsets(lanes, self.start % lanes, self.count, low, high)
        if not self.shuffled:
            return offsets, self.start + offsets
        return offsets, run_of_samples(self.grid, self.seed, self.epoch, self.start, self.count)[offsets]


@lru_cache(maxsize=16)  # steps of one size begin in few different lanes, most often in one
def _offsets(lanes: int, first_lane: int, count: int, low: int, high: int) -> IntArray:
    """Return the offsets of the run [low, high) of a step sorted by lane, without sorting it; read-only.

    Args:
        lanes: of the order.
        first_lane: lane of the step's first position.
        count: samples of the step.
        low: first index of the run.
        high: index after its last.
    """
    found: IntArray = np.arange(low, high, dtype=np.int64)
    if lanes > 1:
        first = (np.arange(lanes, dtype=np.int64) - first_lane) % lanes  # offset of each lane's first position
        sizes = (count - 1 - first) // lanes + 1  # zero for lanes that begin after the end of the step
        ends = np.cumsum(sizes)
        lane = np.searchsorted(ends, found, side="right")
        found = first[lane] + (found - (ends - sizes)[lane]) * lanes
    found.flags.writeable = False
    return found


@lru_cache(maxsize=8)
def _share_block(step: OrderIds, most: int, low: int, high: int) -> tuple[IntArray, IntArray]:
    """Return offsets and ids of one rank's share, for up to `most` full steps from `step` on, int64[steps, high - low].

    Loops ask for steps in sequence; computing several together makes each id cheap.
    """
    grid, size = step.grid, step.batch_size
    steps = min(most, (grid.num_samples - step.start) // size)
    starts = step.start + size * np.arange(steps, dtype=np.int64)
    first_lanes = (starts % grid.lanes).tolist()  # all equal if the batch size is a multiple of the lanes
    offsets = np.stack([_offsets(grid.lanes, first_lane, size, low, high) for first_lane in first_lanes])
    ids = samples_at(grid, step.seed, step.epoch, (starts[:, None] + offsets).ravel()).reshape(offsets.shape)
    return offsets, ids
