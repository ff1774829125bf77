"""Outputs that are larger than caches are written past them: the same bytes as through them, and none besides."""

import numpy as np
import pytest

from rankwise.data.store.decode import Scratch
from rankwise.data.store.decode import kernel as kernel_module
from rankwise.data.store.decode.tasks import OK, OUT_OF_RANGE
from rankwise.errors import DataError

CASTS = [("u1", "u1", None), ("f4", "f4", None), ("u2", "f4", None), ("u2", "f4", (3.0, 0.5)), ("f4", "i4", None)]


@pytest.fixture
def eager(monkeypatch):
    """Every output is streamed, however small it is."""
    monkeypatch.setattr(kernel_module, "_LARGE_BYTES", 0)
    monkeypatch.setattr(kernel_module, "_LONG_BYTES", 0)


def random_work(make_work, encoder, rng, cast):
    stored, wanted, scaling = cast
    ndim = int(rng.integers(1, 4))
    shape = tuple(rng.integers(1, [300, 40, 12][ndim - 1], ndim).tolist())
    values = rng.integers(0, 200, (3, *shape)).astype(stored)
    targets = []
    for chunk in range(3):
        for _ in range(rng.integers(0, 4)):
            extent = [int(rng.integers(1, size + 1)) for size in shape]
            corners = [
                [int(rng.integers(0, size - far + 1)) for size, far in zip(shape, extent, strict=True)]
                for _ in range(2)
            ]
            targets.append((chunk, *[tuple(corner) for corner in (corners[0], extent, corners[1])]))
    return make_work(
        values=list(values),
        frames=[encoder(value, "blosc") for value in values],
        kinds=["blosc"] * 3,
        targets=targets,
        shape=shape,
        wanted=np.dtype(wanted),
        ways=["memory"] * 3,
        scaling=None if scaling is None else [scaling] * len(targets),
    )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("cast", CASTS)
def test_any_regions_come_out_as_numpy_places_them(make_work, encoder, kernel, cast):
    """Rows of any length and alignment, of one to three axes: inside a region what NumPy gives, outside nothing."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        work = random_work(make_work, encoder, rng, cast)
        tasks, out = work.run(kernel)
        assert (tasks.status == OK).all()
        np.testing.assert_array_equal(out.view(np.uint8), work.expected().view(np.uint8))


@pytest.mark.usefixtures("eager")
def test_values_that_do_not_fit_are_still_found(make_simple, kernel):
    """A row with a value that does not fit an integer dtype is told."""
    values = np.full((4, 300), 7, dtype=np.float32)
    values[2, 299] = 3e9
    work = make_simple(values, wanted="i4")
    with pytest.raises(DataError):
        work.expected()
    tasks, _ = work.run(kernel)
    assert tasks.status.tolist() == [OUT_OF_RANGE]


@pytest.mark.parametrize("wanted", ["u2", "f4"])
def test_large_outputs_of_long_rows_are_streamed(make_work, kernel, wanted):
    """Two million elements in rows of 1,100: same values; casts go through a row's memory, small outputs do not."""
    values = np.random.default_rng(0).integers(0, 2**16, (2_000, 1_101), dtype=np.uint16)
    for count, streams in ((2_000, True), (20, False)):
        targets = [(0, (row, 1), (1, 1_100), (0, 0)) for row in range(count)]
        work = make_work(
            values=[values], frames=[values.tobytes()], kinds=["raw"], targets=targets, shape=(1, 1_100),
            wanted=np.dtype(wanted), ways=["memory"],
        )  # fmt: skip
        tasks, out = work.tasks(), work.empty()
        with Scratch() as scratch:
            kernel.run(tasks, 0, 1, out, scratch)
            assert (len(scratch.stage) > 0) == (streams and wanted == "f4")
        np.testing.assert_array_equal(out[:, 0], values[:count, 1:].astype(wanted))
