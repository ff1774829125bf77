"""Whole rows are planned by compiled loops: the plan that NumPy makes, table by table."""

from dataclasses import fields

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.data.store import BoxReader, BoxRequest, Runs, read_meta
from rankwise.data.store.plan import planner, rows

SHAPES = {1: [(200,), (90,)], 2: [(60, 5), (41, 5)], 3: [(50, 2, 3), (33, 2, 3)]}


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """For each number of axes two arrays with other chunks; some of these were never written."""
    folder, made = tmp_path_factory.mktemp("arrays"), {}
    for ndim, shapes in SHAPES.items():
        made[ndim] = []
        for number, shape in enumerate(shapes):
            chunk = (7, 16)[number]
            uri = str(folder / f"{ndim}{number}.zarr")
            array = zarr.create_array(
                uri, shape=shape, dtype="f4", chunks=(chunk, *shape[1:]), fill_value=2,
                shards=(3 * chunk, *shape[1:]) if number == 0 else None,
            )  # fmt: skip
            array[: shape[0] // 2] = 1
            array[-4:] = 3
            made[ndim].append(read_meta(uri))
    return made


@st.composite
def requests(draw, arrays):
    ndim, in_runs = draw(st.sampled_from(sorted(arrays))), draw(st.booleans())
    metas, count = tuple(arrays[ndim]), draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    which, extent = rng.integers(0, 2, count), 1 if in_runs else draw(st.integers(1, 20))
    sizes = np.array([meta.shape[0] for meta in metas])[which]
    lengths = rng.integers(0, 25, count) if in_runs else np.full(count, extent)
    starts = np.zeros((count, ndim), dtype=np.int64)
    starts[:, 0] = rng.integers(0, sizes - lengths + 1)
    runs = Runs.packed(lengths, rng.permutation(count) if draw(st.booleans()) else None) if in_runs else None
    return BoxRequest(
        arrays=metas, which=which, starts=starts, shape=(extent, *metas[0].shape[1:]), dtype=np.dtype("f4"), runs=runs
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_plans_are_those_of_numpy(arrays, data):
    """Rows and runs of any length, several arrays at once, in any order: the same chunks, bytes and targets."""
    request = data.draw(requests(arrays))
    with BoxReader(cache=0) as reader, pytest.MonkeyPatch.context() as patch:
        assert rows.cut_rows(request) is not None or len(request) < 8
        found = reader.plan(request)
        patch.setattr(planner, "cut_rows", lambda _: None)
        wanted = reader.plan(request)
    for table in ("chunks", "targets"):
        for column in fields(getattr(wanted, table)):
            one, other = (getattr(getattr(plan, table), column.name) for plan in (found, wanted))
            np.testing.assert_array_equal(one, other, err_msg=column.name)
            assert one.dtype == other.dtype
            assert one.flags.c_contiguous
    assert [facts.path for facts in found.files] == [facts.path for facts in wanted.files]
    assert (found.read_bytes, found.decode_bytes) == (wanted.read_bytes, wanted.decode_bytes)
    assert not found.filled.any()


def test_only_whole_rows_are_cut(arrays):
    """Parts of rows, padding, and few rows of an array of many chunks are left to NumPy."""
    whole = {"which": np.zeros(40, dtype=np.int64), "dtype": np.dtype("f4"), "arrays": (arrays[2][0],)}
    starts = np.zeros((40, 2), dtype=np.int64)
    assert rows.cut_rows(BoxRequest(**whole, starts=starts, shape=(1, 5))) is not None
    assert rows.cut_rows(BoxRequest(**whole, starts=starts, shape=(1, 4))) is None
    assert rows.cut_rows(BoxRequest(**whole, starts=starts, shape=(1, 5), pad="fill")) is None
    one = BoxRequest(**{**whole, "which": whole["which"][:1]}, starts=starts[:1], shape=(1, 5))
    assert rows.cut_rows(one) is None


def test_without_compilation_numpy_plans(arrays, monkeypatch):
    """Right answers do not need numba."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    rows._loops.cache_clear()
    starts, which = np.zeros((40, 1), dtype=np.int64), np.zeros(40, dtype=np.int64)
    request = BoxRequest(arrays=(arrays[1][0],), which=which, starts=starts, shape=(1,), dtype=np.dtype("f4"))
    try:
        assert rows.cut_rows(request) is None
        with BoxReader(cache=0) as reader:
            assert reader.plan(request).num_chunks == 1
    finally:
        rows._loops.cache_clear()
