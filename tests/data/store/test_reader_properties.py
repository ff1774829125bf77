"""`BoxReader` gives the bytes that zarr-python gives, whatever the arrays, boxes, dtypes, caches and threads."""

import os
import random
import shutil
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rankwise.data.store import BoxReader, BoxRequest, ChunkCache, read_meta
from rankwise.errors import ConfigError
from rankwise.testing.stores.any_arrays import DTYPES, UnwritableError, write_any
from rankwise.testing.stores.plain_boxes import read_plainly

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(code) for code in ("f2", "f4", "f8")] + [BFLOAT16]
# zarr-python says of some codecs that they are in no specification
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:zarr", "ignore::UserWarning:numcodecs")


def written(rng, root, num, ndim):
    """Metadata of arrays of any kind, mostly of any dtype each."""
    dtypes = DTYPES if rng.random() < 0.7 else (rng.choice(DTYPES),)
    for number in range(num):
        write_any(rng, root / str(number), ndim=ndim, dtypes=dtypes)
    return tuple(read_meta(str(root / str(number))) for number in range(num))


def out_dtype(rng, metas):
    """A dtype that all of the arrays can come out as, by what a plan of no boxes says."""
    choices = [*(meta.dtype for meta in metas), *FLOATS, *DTYPES]
    ndim = metas[0].ndim
    boxes = {"which": np.zeros(0, np.int64), "starts": np.zeros((0, ndim), np.int64), "shape": (1,) * ndim}
    rng.shuffle(choices)
    for dtype in choices:
        try:
            with BoxReader(threads=1, cache=0) as reader:
                reader.plan(BoxRequest(arrays=metas, dtype=dtype, **boxes))
        except ConfigError:
            continue
        return dtype
    raise AssertionError("complex128 takes everything")


def any_request(rng, metas):
    """Boxes of one shape, inside or sticking out, scaled or not."""
    plain = np.random.default_rng(rng.getrandbits(32))
    num, pad = rng.randint(0, 6), rng.choice((None, None, "fill", "edge", "reflect"))
    which = plain.integers(0, len(metas), num)
    smallest = np.min([meta.shape for meta in metas], axis=0)
    shape = tuple(rng.randint(1, int(size) if pad is None else int(size) + 4) for size in smallest)
    sizes = np.array([meta.shape for meta in metas])[which].reshape(num, len(shape))
    low, high = (0 * sizes, sizes - shape) if pad is None else (0 * sizes - 6, sizes + 5)
    starts = plain.integers(low, high + 1).astype(np.int64)
    dtype, scaling = out_dtype(rng, metas), {}
    if dtype in FLOATS and all(meta.dtype.kind != "c" for meta in metas) and rng.random() < 0.3:
        scaling = {"scale": plain.normal(size=len(metas)), "offset": plain.normal(size=len(metas))}
    return BoxRequest(arrays=metas, which=which, starts=starts, shape=shape, dtype=dtype, pad=pad, **scaling)


def as_bits(values, request):
    """Bytes to compare; which of the NaNs comes out of arithmetic with them is nobody's promise."""
    if request.scale is not None:
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    return values.tobytes()


def expected_of(request):
    expected = np.zeros((len(request), *request.shape), request.dtype)
    return expected, read_plainly(request, expected)


def check(reader, requests, answers):
    """Read all at once and compare box by box."""
    outs = [np.full((len(request), *request.shape), 77).astype(request.dtype) for request in requests]
    reports = reader.read([(reader.plan(request), out) for request, out in zip(requests, outs, strict=True)])
    for request, out, report, (expected, plainly) in zip(requests, outs, reports, answers, strict=True):
        assert report.valid.tolist() == plainly.valid.tolist(), (report.errors, plainly.errors)
        assert not any(error.damage for error in report.errors)
        assert out.shape == expected.shape
        for box in np.flatnonzero(report.valid).tolist():
            place = f"{reader.decoder}, box {box} of {request}"
            assert as_bits(out[box], request) == as_bits(expected[box], request), place


def reader_of(rng, decoder, shared):
    """A reader with a decoder, and a cache of its own or one that others fill too."""
    reader = BoxReader(cache=rng.choice((0, 500, 10**6, shared)), threads=rng.randint(1, 3))
    with mock.patch.dict(os.environ, {"RANKWISE_DECODER": decoder}):
        assert reader.decoder == decoder
    return reader


def compare(rng, root):
    """One case: arrays of any kind, a few requests at once, both decoders, twice each."""
    ndim = rng.randint(1, 4)
    metas = written(rng, root, rng.randint(1, 3), ndim)
    requests = [any_request(rng, metas) for _ in range(rng.randint(1, 2))]
    answers = [expected_of(request) for request in requests]
    shared = ChunkCache(rng.choice((300, 10**6)))
    for decoder in ("kernel", "threads"):
        with reader_of(rng, decoder, shared) as reader:
            for _ in range(2):
                check(reader, requests, answers)
    return len(requests)


def compare_drawn(factory, rng):
    root = factory.mktemp("any")
    try:
        return compare(rng, root)
    except UnwritableError:
        assume(False)
    finally:
        shutil.rmtree(root, ignore_errors=True)  # a write that was refused may still be ending


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_boxes_are_those_of_zarr(tmp_path_factory, rng):
    """Any arrays and boxes: the same bytes and the same refusals as zarr-python, from both decoders."""
    assert compare_drawn(tmp_path_factory, rng) in {1, 2}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_boxes_are_those_of_zarr_at_length(tmp_path_factory, rng):
    """The same, for thousands of cases."""
    assert compare_drawn(tmp_path_factory, rng) in {1, 2}


def test_the_cases_reach_every_path(tmp_path):
    """What is drawn covers all kinds of codecs, shards, versions and dtypes; none of the other tests is empty."""
    kinds, formats, dtypes, sharded = set(), set(), set(), set()
    for seed in range(80):
        rng = random.Random(seed)
        try:
            write_any(rng, tmp_path / str(seed), ndim=rng.randint(1, 4))
        except UnwritableError:
            continue
        meta = read_meta(str(tmp_path / str(seed)))
        kinds.add(meta.codec.kind)
        formats.add(meta.zarr_format)
        dtypes.add(meta.dtype)
        sharded.add(meta.index is not None)
    assert kinds == {"raw", "zstd", "blosc", "lz4", "zarr"}
    assert (formats, sharded, dtypes) == ({2, 3}, {True, False}, set(DTYPES))
