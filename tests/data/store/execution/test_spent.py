"""Chunks that are used up are not kept where the next epoch would not find them."""

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.data.store.cache import mostly_used

ROWS, CHUNK, COLS = 64, 8, 4


@pytest.fixture(scope="module")
def meta(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spent") / "a.zarr"
    zarr.create_array(folder, data=np.arange(ROWS * COLS, dtype="i4").reshape(ROWS, COLS), chunks=(CHUNK, COLS))
    return read_meta(str(folder))


def rows_of(meta, rows):
    rows = np.asarray(rows)
    return BoxRequest(
        arrays=(meta,),
        which=np.zeros(len(rows), np.int64),
        starts=np.stack([rows, np.zeros_like(rows)], axis=1),
        shape=(1, COLS),
        dtype=np.dtype("i4"),
    )


def read(reader, request):
    out = np.empty(request.out_shape, request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    assert report.valid.all()
    assert out[:, 0, 0].tolist() == (request.starts[:, 0] * COLS).tolist()
    return report.fast_chunks


def test_seven_eighths_count_as_all(meta):
    """Of each chunk it is told whether its different rows make that many; a row asked for many times is one row."""
    with BoxReader(threads=1) as reader:
        plan = reader.plan(rows_of(meta, [*range(8), *range(8, 15), *range(16, 22), *[24] * 8, *[32, 33] * 4]))
        by_chunk = dict(zip(plan.chunks.number.tolist(), mostly_used(plan).tolist(), strict=True))
    assert [by_chunk[number] for number in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(("cache", "kept", "again"), [(ROWS * COLS * 4, 8, 0), (ROWS * COLS * 4 - 1, 1, 7)])
def test_what_is_used_up_is_kept_where_all_fits(meta, cache, kept, again):
    """A cache that holds the whole array keeps it for the next epoch; a smaller one keeps what is left to be used."""
    order = np.random.default_rng(0).permutation([*range(56), 60])
    with BoxReader(threads=2, cache=cache, keep="all") as reader:
        assert read(reader, rows_of(meta, order)) == 8
        assert len(reader.cache) == kept
        assert read(reader, rows_of(meta, order)) == again


def test_chunks_that_repeat_are_kept_whole(meta):
    """Of crops, which overlap, a chunk that is used up may come back at once: those readers keep what comes again."""
    with BoxReader(threads=2, cache=ROWS * COLS * 4 - 1, keep="repeats") as reader:
        assert [read(reader, rows_of(meta, np.arange(CHUNK))) for _ in range(3)] == [1, 1, 0]


def test_arrays_count_once_behind_a_close(meta):
    """A closed reader gives arrays other numbers: that makes no second array of one, and what fits in is kept again."""
    with BoxReader(threads=2, cache=ROWS * COLS * 4, keep="all") as reader:
        for _ in range(3):
            assert [read(reader, rows_of(meta, np.arange(ROWS))) for _ in range(2)] == [8, 0]
            reader.close()
