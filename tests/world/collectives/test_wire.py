"""What travels in a reduction: encoding, folding and decoding against NumPy's own arithmetic, without ranks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankwise.errors import ConfigError, WorldError
from rankwise.world.collectives.tree import flatten
from rankwise.world.collectives.wire import check_leaf, decode, encode, fold, pack, unpack

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]


def reduced(values, op):
    leaves = [flatten(value)[0] for value in values]
    for leaf in leaves:
        check_leaf(leaf, op)
    return decode(fold([encode(leaf, op) for leaf in leaves], op), leaves[0], op, len(leaves))


@st.composite
def rank_arrays(draw, dtypes):
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    return draw(st.lists(hnp.arrays(dtype, shape), min_size=1, max_size=4))


@given(rank_arrays(INTEGERS), st.sampled_from(["sum", "min", "max"]))
def test_integers_reduce_as_in_numpy(arrays, op):
    """Every integer dtype, unsigned 64 bits too, wraps and orders as NumPy's own reduction in that dtype."""
    ufunc = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    wanted = ufunc.reduce(np.stack(arrays), axis=0, **({"dtype": arrays[0].dtype} if op == "sum" else {}))
    found = reduced(arrays, op)
    assert found.dtype == arrays[0].dtype
    np.testing.assert_array_equal(found, wanted)


@given(rank_arrays(FLOATS), st.sampled_from(["min", "max"]))
def test_floats_order_as_in_numpy(arrays, op):
    """Minimum and maximum are NumPy's, infinities and NaN included: a NaN on one rank is never lost."""
    wanted = {"min": np.minimum, "max": np.maximum}[op].reduce(np.stack(arrays), axis=0)
    found = reduced(arrays, op)
    assert found.dtype == arrays[0].dtype
    np.testing.assert_array_equal(found, wanted)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_python_integers_are_exact(values):
    """Sums and means of Python integers are exact; a sum beyond 64 bits is an error, not a wrapped number."""
    assert reduced(values, "mean") == sum(values) / len(values)
    assert reduced(values, "min") == min(values)
    if -(2**63) <= sum(values) < 2**63:
        assert reduced(values, "sum") == sum(values)
    else:
        with pytest.raises(WorldError, match="does not fit in 64 bits"):
            reduced(values, "sum")


def test_kinds_come_back():
    """Python numbers stay Python numbers; a sum of booleans counts, as in Python, NumPy and torch."""
    assert reduced([True, True, False], "sum") == 2
    assert reduced([True, False], "max") is True
    assert reduced([True, False], "mean") == 0.5
    assert reduced([1.5, 2.5], "sum") == 4.0
    assert reduced([1j, 2 + 1j], "sum") == 2 + 2j
    assert type(reduced([np.float32(1), np.float32(2)], "mean")) is np.float32
    assert math.isnan(reduced([math.nan, 1.0], "min"))
    assert reduced([torch.tensor([True, False])] * 3, "sum").tolist() == [3, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    """Small half-precision sums are added up in float32: 256 + 1 + 1 is 258, where step by step it stays 256."""
    parts = [torch.tensor([value], dtype=dtype) for value in (2048.0 if dtype == torch.float16 else 256.0, 1.0, 1.0)]
    assert reduced(parts, "sum").item() == parts[0].item() + 2
    assert reduced(parts, "max").dtype == dtype


@pytest.mark.parametrize(
    ("value", "op", "message"),
    [
        (torch.ones(2, dtype=torch.int32), "mean", "no mean in its own dtype"),
        (np.ones(2, bool), "mean", "no mean in its own dtype"),
        (1j, "max", "complex numbers are not ordered"),
        (torch.zeros(1).to(torch.float8_e4m3fn), "sum", "convert it to float32"),
    ],
)
def test_what_has_no_meaning_is_refused(value, op, message):
    """An integer mean would silently round, a complex maximum does not exist."""
    with pytest.raises(ConfigError, match=message):
        reduced([value, value], op)


@given(st.lists(st.tuples(st.sampled_from([torch.float32, torch.int64, torch.uint8]), st.integers(0, 4)), max_size=6))
def test_packing_joins_by_dtype_and_gives_back(specs):
    """One buffer per dtype; every leaf finds its own part again; the buffers are copies."""
    flats = [torch.arange(length).to(dtype) + i for i, (dtype, length) in enumerate(specs)]
    parcel = pack(flats)
    assert len(parcel.buffers) == len({dtype for dtype, _ in specs})
    for flat, part in zip(flats, unpack(parcel, parcel.buffers), strict=True):
        assert torch.equal(flat, part)
    for buffer in parcel.buffers:
        buffer.zero_()
    assert all(
        torch.equal(flat, torch.arange(n).to(d) + i) for i, (flat, (d, n)) in enumerate(zip(flats, specs, strict=True))
    )
