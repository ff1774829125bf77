"""`Take`: dtypes by name."""

import numpy as np
import pytest

from rankwise.data.crops.index import Take
from rankwise.errors import ConfigError

STORED = np.dtype("u2")


@pytest.mark.parametrize(
    ("wanted", "dtype"),
    [
        ("f32", "float32"),
        ("f16", "float16"),
        ("i8", "int8"),
        ("u8", "uint8"),
        ("bf16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("int64", "int64"),
        ("u1", "uint8"),
        ("<f4", "float32"),
        (np.float64, "float64"),
        (np.dtype("i4"), "int32"),
        (bool, "bool"),
        (None, "uint16"),
    ],
)
def test_dtypes_are_those_of_the_configuration(wanted, dtype):
    """The same words mean the same in `Take` and in `Config`; NumPy's own are understood as well."""
    assert Take(dtype=wanted).chosen_dtype(STORED).name == dtype


@pytest.mark.parametrize("wrong", ["f31", "native", "image"])
def test_other_words_are_refused_at_once(wrong):
    """A word that is no dtype is an error of construction, with those there are."""
    with pytest.raises(ConfigError, match="dtype"):
        Take(dtype=wrong)
