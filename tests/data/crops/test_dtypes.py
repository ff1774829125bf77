"""Dtypes by every name that users know."""

import ml_dtypes
import numpy as np
import pytest

from rankwise.data.crops import Dtype, InvalidArgument
from rankwise.data.crops.sample import parse_dtype, resolved_dtype


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("f32", Dtype.F32),
        ("float32", Dtype.F32),
        ("F32", Dtype.F32),
        (Dtype.BF16, Dtype.BF16),
        (int(Dtype.BF16), Dtype.BF16),
        ("bfloat16", Dtype.BF16),
        ("bf16", Dtype.BF16),
        (np.dtype(ml_dtypes.bfloat16), Dtype.BF16),
        (np.float16, Dtype.F16),
        (np.dtype("u2"), Dtype.U16),
        ("native", Dtype.NATIVE),
        ("int64", Dtype.I64),
        (bool, Dtype.BOOL),
    ],
)
def test_a_dtype_has_many_names(given, wanted):
    """Enum, number, short and long name, NumPy dtype: all mean the same."""
    assert parse_dtype(given) is wanted


@pytest.mark.parametrize("given", ["f33", 99, -1, None, 1.5, "complex64", object()])
def test_others_are_refused_with_the_list(given):
    """The message lists what there is."""
    with pytest.raises(InvalidArgument, match="f32, bf16, f16"):
        parse_dtype(given)


def test_every_dtype_resolves():
    """Each has a NumPy dtype; native is that of the arrays."""
    assert resolved_dtype(Dtype.BF16).itemsize == 2
    assert {resolved_dtype(d, np.dtype("i2")).itemsize for d in Dtype} == {1, 2, 4, 8}
    with pytest.raises(InvalidArgument, match="only after an array was opened"):
        resolved_dtype(Dtype.NATIVE)
