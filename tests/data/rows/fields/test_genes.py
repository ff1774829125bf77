"""From what a user calls genes to columns."""

import numpy as np
import pytest

from rankwise.data.rows.fields.variables import chosen_genes
from rankwise.errors import ConfigError

NAMES = ("CD3", "CD4", "CD8", "CD8", "CD19")


@pytest.mark.parametrize(
    ("genes", "columns"),
    [(["CD19", "CD3"], [4, 0]), ([3, "CD4"], [3, 1]), (np.array([4, 2], dtype=np.uint8), [4, 2]), (range(5), range(5))],
)
def test_columns_come_in_the_order_asked_for(genes, columns):
    """By name or number, of any type."""
    assert chosen_genes(list(genes), len(NAMES), lambda: NAMES).tolist() == list(columns)


@pytest.mark.parametrize(
    ("genes", "said"),
    [
        ([True, False], "for a mask use numpy.flatnonzero"),
        (np.array([True, False, True, False, False]), "for a mask use numpy.flatnonzero"),
        ([1.0], "a list of names or numbers"),
        ([1, "CD4"], "1 variables more than once, the first is number 1"),
        ([5], r"numbers from 0 to 4; got \[5\]"),
        ([-1], r"got \[-1\]"),
        ([], "none at all"),
        (["CD8"], "several variables are named 'CD8'"),
        (["CD20"], "1 names that do not exist, such as"),
    ],
)
def test_what_cannot_be_meant_is_refused(genes, said):
    """Masks are no numbers, and no column comes twice or from the end."""
    with pytest.raises(ConfigError, match=said):
        chosen_genes(genes, len(NAMES), lambda: NAMES)
