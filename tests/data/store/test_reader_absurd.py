"""Arrays and boxes of absurd sizes: the right elements, or an error that says what is too large."""

import numpy as np
import pytest
import zarr

from rankwise.data.store import BoxReader, BoxRequest, read_meta
from rankwise.errors import ConfigError

LARGE = 2**61
SHAPES = {
    "one long axis": ((LARGE,), (64,)),
    "many chunks along two axes": ((2**35, 2**30), (8, 8)),
    "as many as there can be": ((LARGE,), (1,)),
}


def array(root, shape, chunks, **options):
    return zarr.create_array(root, shape=shape, chunks=chunks, dtype="u2", fill_value=7, overwrite=True, **options)


def request_of(metas, which, starts, shape, **options):
    return BoxRequest(
        arrays=metas, which=np.array(which, np.int64), starts=np.array(starts, np.int64), shape=shape,
        dtype=np.dtype("u2"), **options,
    )  # fmt: skip


def read(reader, request):
    out = np.zeros((len(request), *request.shape), request.dtype)
    (report,) = reader.read([(reader.plan(request), out)])
    assert report.valid.all(), report.errors
    return out


@pytest.mark.parametrize("name", SHAPES)
def test_huge_grids(tmp_path, name):
    """Elements at both ends of grids whose chunks can hardly be numbered, from several such arrays at once."""
    shape, chunks = SHAPES[name]
    for number in range(5):
        made = array(tmp_path / str(number), shape, chunks)
        made[tuple(slice(0, 3) for _ in shape)] = 10 + number
        made[tuple(slice(n - 3, n) for n in shape)] = 20 + number
    metas = tuple(read_meta(str(tmp_path / str(number))) for number in range(5))
    starts = [[0] * len(shape)] * 5 + [[n - 4 for n in shape]] * 5
    with BoxReader(threads=1) as reader:
        out = read(reader, request_of(metas, [*range(5), *range(5)], starts, (4,) * len(shape)))
    near, far = (slice(0, 3),) * len(shape), (slice(1, 4),) * len(shape)
    for number in range(5):
        assert (out[(number, *near)] == 10 + number).all()
        assert (out[(5 + number, *far)] == 20 + number).all()
        assert out[(number, *(3,) * len(shape))] == out[(5 + number, *(0,) * len(shape))] == 7


def test_boxes_far_outside(tmp_path):
    """Boxes a long way off are the padding; farther than numbers reach is refused."""
    array(tmp_path / "a", (8,), (4,))[...] = np.arange(8)
    metas = (read_meta(str(tmp_path / "a")),)
    with BoxReader(threads=1) as reader:
        for pad, low, high in (("fill", 7, 7), ("edge", 0, 7)):
            out = read(reader, request_of(metas, [0, 0], [[-LARGE], [LARGE - 3]], (3,), pad=pad))
            assert out.tolist() == [[low] * 3, [high] * 3]
    for start in (LARGE + 1, -LARGE - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(ConfigError, match="at most 2\\^61"):
            request_of(metas, [0], [[start]], (3,), pad="fill")


def test_nothing_is_asked(tmp_path):
    """No boxes, arrays without elements, and boxes out of them that are padding alone."""
    empty = array(tmp_path / "a", (0, 5), (1, 5))
    assert empty.shape == (0, 5)
    metas = (read_meta(str(tmp_path / "a")),)
    with BoxReader(threads=2) as reader:
        assert read(reader, request_of(metas, [], np.zeros((0, 2)), (2, 2))).shape == (0, 2, 2)
        assert (read(reader, request_of(metas, [0], [[-1, 2]], (2, 4), pad="fill")) == 7).all()
        assert reader.read([]) == ()
    with pytest.raises(ConfigError, match="there are none"):
        request_of(metas, [0], [[-1, 2]], (2, 4), pad="edge")
