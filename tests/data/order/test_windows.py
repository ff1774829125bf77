"""Lanes, pieces and windows against a slow reference that builds every list."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.order.lanes import Grid, LaneColumns, lane_columns, run_of_samples, samples_at
from rankwise.data.order.permutation import mix_words, permute


@st.composite
def grids(draw, most=700):
    size = draw(st.integers(1, most))
    return Grid(
        num_samples=size,
        chunk_samples=draw(st.integers(1, min(size, draw(st.sampled_from([1, 4, 40, most]))))),
        lanes=draw(st.integers(1, min(size, 70))),
        window=draw(st.integers(1, 30)),
    )


def shuffled_pieces(pieces, key, *, edges_last):
    """All pieces shuffled; or the inner ones, and then the two at the edges in either order."""
    if not edges_last:
        return [pieces[i] for i in permute(np.arange(len(pieces)), len(pieces), key)]
    inner, edges = pieces[1:-1], pieces[:1] + pieces[1:][-1:]
    order = permute(np.arange(len(inner)), max(1, len(inner)), key)
    return [inner[i] for i in order] + (edges[::-1] if int(key) >> 63 else edges)


def slow_lane(grid: Grid, columns: LaneColumns, lane: int) -> list[int]:
    """The samples of a lane in order: walk its run, cut it at chunk borders, shuffle pieces, then windows."""
    run = [(int(columns.start[lane]) + i) % grid.num_samples for i in range(int(columns.length[lane]))]
    pieces: list[list[int]] = []
    for i, sample in enumerate(run):
        if i == 0 or sample % grid.chunk_samples == 0:
            pieces.append([])
        pieces[-1].append(sample)
    slots = shuffled_pieces(pieces, columns.piece_key[lane], edges_last=grid.chunk_samples > 1)
    out = []
    for window, low in enumerate(range(0, len(slots), grid.window)):
        flat = [sample for slot in slots[low : low + grid.window] for sample in slot]
        if grid.window * grid.chunk_samples > 1:
            key = mix_words(np.array([window], dtype=np.uint64) ^ columns.window_key[lane])
            flat = [flat[i] for i in permute(np.arange(len(flat)), len(flat), key)]
        out += flat
    return out


@given(
    grid=grids(), seed=st.integers(-5, 2**70), epoch=st.integers(0, 10**6), shuffler=st.randoms(use_true_random=False)
)
@settings(max_examples=40, deadline=None)
def test_random_access_equals_the_slow_reference(grid, seed, epoch, shuffler):
    """Position p is place p // L of lane p % L, for any grid; single positions and runs agree; each sample once."""
    columns = lane_columns(grid, seed, epoch)
    lanes = [slow_lane(grid, columns, lane) for lane in range(grid.lanes)]
    wanted = [lanes[p % grid.lanes][p // grid.lanes] for p in range(grid.num_samples)]
    assert sorted(wanted) == list(range(grid.num_samples))
    positions = list(range(grid.num_samples))
    shuffler.shuffle(positions)
    assert samples_at(grid, seed, epoch, np.array(positions)).tolist() == [wanted[p] for p in positions]
    start = shuffler.randrange(grid.num_samples)
    assert run_of_samples(grid, seed, epoch, start, grid.num_samples - start).tolist() == wanted[start:]


@given(grid=grids(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_lanes_are_cut_by_count(grid, seed):
    """The runs of the lanes tile the ring; their lengths differ by at most one."""
    columns = lane_columns(grid, seed, 0)
    assert columns.length.max() - columns.length.min() <= 1
    covered = np.concatenate(
        [
            (start + np.arange(length)) % grid.num_samples
            for start, length in zip(columns.start, columns.length, strict=True)
        ]
    )
    assert np.array_equal(np.sort(covered), np.arange(grid.num_samples))


def test_blocks_join_without_a_seam():
    """Runs that begin, end or lie across the borders of cached blocks hold the same samples as single positions."""
    grid = Grid(num_samples=40_003, chunk_samples=7, lanes=48, window=5)
    every = samples_at(grid, 1, 2, np.arange(grid.num_samples))
    assert np.array_equal(np.sort(every), np.arange(grid.num_samples))
    for start, count in ((0, 40_003), (8159, 2), (8160, 1), (8161, 20_000), (40_002, 1), (16_319, 8162)):
        assert np.array_equal(run_of_samples(grid, 1, 2, start, count), every[start : start + count])


def test_a_billion_samples_and_beyond():
    """Huge epochs are addressed without overflow: of 10^18 samples, positions all over are inside and distinct."""
    grid = Grid(num_samples=10**18 + 7, chunk_samples=12_345, lanes=64, window=16)
    positions = np.concatenate([np.arange(500), np.arange(500) + 5 * 10**17, grid.num_samples - 1 - np.arange(500)])
    found = samples_at(grid, 3, 1, positions)
    assert found.min() >= 0
    assert found.max() < grid.num_samples
    assert len(np.unique(found)) == len(found)


def decodes(chunks, capacity):
    """How often chunks are loaded into a cache that forgets the least recently used of `capacity`."""
    cache: dict[int, None] = {}
    loads = 0
    for chunk in chunks:
        if chunk in cache:
            del cache[chunk]
        else:
            loads += 1
            if len(cache) == capacity:
                del cache[next(iter(cache))]
        cache[chunk] = None
    return loads


def test_each_chunk_is_decoded_about_once():
    """Locality: with L x W cached chunks an epoch decodes each chunk once, but for those that a lane's border cuts."""
    size, chunk, lanes, window = 60_000, 20, 12, 8
    order = Order(size, batch_size=96, chunk_samples=chunk, lanes=lanes, window=window)
    chunks = (order.ids(np.arange(size), 0) // chunk).tolist()
    num_chunks = size // chunk
    assert num_chunks <= decodes(chunks, lanes * window) <= num_chunks * 1.02 + lanes
    # A plain shuffle with the same cache decodes nearly a chunk per sample: the counts can tell the difference.
    shuffled = (np.random.default_rng(0).permutation(size) // chunk).tolist()
    assert decodes(shuffled, lanes * window) > 15 * num_chunks


def test_a_window_touches_few_chunks():
    """Locality: the samples that one lane shows during one window come from at most `window` pieces."""
    size, chunk, lanes, window = 20_000, 16, 4, 5
    order = Order(size, batch_size=64, chunk_samples=chunk, lanes=lanes, window=window)
    ids = order.ids(np.arange(size), 3)
    for lane in range(lanes):
        mine = ids[lane::lanes] // chunk
        run = mine[: window * chunk]
        assert len(np.unique(run)) <= 2 * window
        visits = [np.flatnonzero(mine == number) for number in np.unique(mine)]
        # A chunk is visited within one window; only the chunk that the ring's turn cuts in two may come twice.
        spread = [visit[-1] - visit[0] < window * chunk for visit in visits]
        assert sum(not fits for fits in spread) <= 1


def test_no_sample_is_tied_to_a_lane():
    """Over epochs each sample meets all lanes about equally often, and its place in a lane varies."""
    size, lanes, epochs = 600, 8, 300
    order = Order(size, batch_size=32, chunk_samples=10, lanes=lanes, window=3)
    met = np.zeros((size, lanes), dtype=int)
    places = np.zeros((epochs, 3), dtype=int)
    for epoch in range(epochs):
        ids = order.ids(np.arange(size), epoch)
        met[ids, np.arange(size) % lanes] += 1
        places[epoch] = [int(np.flatnonzero(ids == sample)[0]) // lanes for sample in (0, 1, size // 2)]
    assert met.min() > 0.4 * epochs / lanes
    assert met.max() < 1.9 * epochs / lanes
    for column in places.T:
        assert abs(column.mean() - 37) < 5
        assert len(np.unique(column)) > 70


def test_a_lane_is_not_tied_to_a_region():
    """Each epoch turns the cut and deals the runs anew."""
    grid = Grid(num_samples=10_000, chunk_samples=10, lanes=8, window=4)
    starts = np.stack([lane_columns(grid, 5, epoch).start for epoch in range(200)])
    assert len(np.unique(starts)) > 1300
    ring_orders = {tuple((row := np.argsort(start))[(np.arange(8) + row.argmin()) % 8]) for start in starts}
    assert len(ring_orders) > 150
    region = starts * 8 // 10_000
    assert all(len(np.unique(region[:, lane])) == 8 for lane in range(8))


def test_every_permutation_has_a_key_of_its_own():
    """Orders of pieces and orders inside windows never share a key, over lanes, epochs and seeds."""
    grid = Grid(num_samples=10_000, chunk_samples=10, lanes=8, window=4)
    columns = [lane_columns(grid, seed, epoch) for seed in range(10) for epoch in range(10)]
    keys = np.concatenate([each.piece_key for each in columns] + [each.window_key for each in columns])
    assert len(np.unique(keys)) == len(keys) == 10 * 10 * 2 * 8
