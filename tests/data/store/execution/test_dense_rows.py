"""Elements and their columns, slab by slab."""

from pathlib import Path

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest, Runs, Spread, read_meta
from rankwise.data.store.decode.tasks import TWICE

NUM_COLS, NUM_ROWS, CHUNK = 200, 40, 256
UNTOUCHED = 0xA5A5


def write(folder, values, *, chunk=CHUNK):
    array = zarr.create_array(str(folder), shape=values.shape, dtype=values.dtype, chunks=(chunk,))
    array[:] = values
    return str(folder)


class Held:
    """CSR rows on disk whose chunks of elements and columns have one grid."""

    def __init__(self, folder, *, twice=(), chunk=CHUNK):
        self.chunk = chunk
        rng = np.random.default_rng(3)
        self.lengths = rng.integers(0, 60, NUM_ROWS)
        named = [np.sort(rng.choice(NUM_COLS, count, replace=False)) for count in self.lengths]
        for row in twice:
            named[row][1] = named[row][0]
        self.columns = np.concatenate(named).astype(np.uint16)
        self.data = rng.integers(1, 99, len(self.columns)).astype(np.float32)
        self.begin = np.cumsum(self.lengths) - self.lengths
        self.paths = [
            write(folder / name, values, chunk=chunk)
            for name, values in (("data", self.data), ("indices", self.columns))
        ]
        self.truth = np.zeros((NUM_ROWS, NUM_COLS), dtype=np.float32)
        np.add.at(self.truth, (np.repeat(np.arange(NUM_ROWS), self.lengths), self.columns), self.data)

    @property
    def cut(self):
        """Rows that go over the edge of a chunk."""
        last = self.begin + np.maximum(self.lengths, 1) - 1
        return np.flatnonzero(self.begin // self.chunk != last // self.chunk)

    def spread(self, reader, rows):
        """Dense rows, how they came, what was noticed of them, and what lies in the memory for columns."""
        runs, plans = Runs.packed(self.lengths[rows]), []
        which, starts = np.zeros(len(rows), dtype=np.int64), self.begin[rows][:, None]
        for path, dtype in zip(self.paths, (np.float32, np.uint16), strict=True):
            request = BoxRequest(
                arrays=(read_meta(path),), which=which, starts=starts, runs=runs, shape=(1,), dtype=np.dtype(dtype)
            )
            plans.append(reader.plan(request, like=plans[0] if plans else None))
        columns = np.full(runs.num_rows, UNTOUCHED, dtype=np.uint16)
        out = np.full((len(rows), NUM_COLS), np.nan, dtype=np.float32)
        spread = Spread(columns=columns, num_cols=(NUM_COLS,), places=None, width=NUM_COLS)
        reports, states = reader.spread(tuple(plans), out, spread)
        came = [columns[place : place + count] for place, count in zip(runs.places, runs.lengths, strict=True)]
        return out, reports, states, came


@pytest.fixture
def held(tmp_path):
    return Held(tmp_path)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setenv("RANKWISE_DECODER", "kernel")


@pytest.mark.parametrize("chunk", [CHUNK, 25, 7])
def test_rows_of_several_pieces_are_right(tmp_path, chunk):
    """Rows that lie in two chunks or more, and those asked for again."""
    held = Held(tmp_path, chunk=chunk)
    rows = np.random.default_rng(0).permutation(np.tile(np.arange(NUM_ROWS), 2))
    with BoxReader(cache=0, threads=1) as reader:
        out, reports, _, _ = held.spread(reader, rows)
        np.testing.assert_array_equal(out, held.truth[rows])
        alone, _, _, _ = held.spread(reader, np.arange(NUM_ROWS))
    np.testing.assert_array_equal(alone, held.truth)
    assert all(report.valid.all() for report in reports)


def write_over(path, content):
    """In place: a file that is replaced is told as such."""
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("chunk", [1, -1])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_chunk_that_fails_spoils_no_other_row(held, lost, chunk):
    """Rows with a piece in it are lost with it; later reads with the same memory are as ever."""
    chunk %= -(-len(held.data) // CHUNK)
    path = Path(held.paths[lost]) / "c" / str(chunk)
    good = path.read_bytes()
    with BoxReader(cache=0, threads=1) as reader:
        held.spread(reader, np.arange(NUM_ROWS))
        write_over(path, b"\0" * len(good))
        out, reports, _, _ = held.spread(reader, np.arange(NUM_ROWS))
        valid = reports[0].valid & reports[1].valid
        write_over(path, good)
        again, _, _, _ = held.spread(reader, np.arange(NUM_ROWS))
    first, last = chunk * CHUNK, (chunk + 1) * CHUNK
    touched = (held.begin < last) & (held.begin + held.lengths > first) & (held.lengths > 0)
    assert np.array_equal(~valid, touched)
    np.testing.assert_array_equal(out[valid], held.truth[valid])
    np.testing.assert_array_equal(again, held.truth)


def test_every_chunk_is_decoded_once(held):
    """Also where rows lie in two chunks; and not at all once it is in the cache."""
    num_chunks = -(-len(held.data) // CHUNK)
    with BoxReader(cache=2**20, threads=2, keep="all") as reader:
        counts = []
        for _ in range(2):
            out, reports, _, _ = held.spread(reader, np.arange(NUM_ROWS))
            counts.append([(report.fast_chunks, report.cached_chunks) for report in reports])
            np.testing.assert_array_equal(out, held.truth)
    assert counts == [[(num_chunks, 0)] * 2, [(0, num_chunks)] * 2]


def test_a_column_that_comes_twice_is_noticed(tmp_path):
    """In a row of one piece, and in one that is cut; the other rows are right."""
    plain = Held(tmp_path / "plain")
    cut = int(plain.cut[0])
    whole = int(np.flatnonzero((plain.lengths > 9) & ~np.isin(np.arange(NUM_ROWS), plain.cut))[0])
    held = Held(tmp_path / "twice", twice=(cut, whole))
    with BoxReader(cache=0, threads=1) as reader:
        out, _, states, _ = held.spread(reader, np.arange(NUM_ROWS))
    assert np.flatnonzero(states & TWICE).tolist() == sorted([cut, whole])
    others = np.setdiff1d(np.arange(NUM_ROWS), [cut, whole])
    np.testing.assert_array_equal(out[others], held.truth[others])
