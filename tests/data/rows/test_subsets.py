"""Some of the rows, and parts of a split."""

import logging
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from rankwise.data.order import SplitRule
from rankwise.data.rows.obs import RowGroups, chosen_rows, part_of_groups, part_of_rows, places_where
from rankwise.errors import ConfigError

LOG = logging.getLogger("rankwise.rows")


def test_masks_and_lists():
    """Rows come sorted and small."""
    assert chosen_rows([4, 1, 2], 5).tolist() == [1, 2, 4]
    assert chosen_rows(np.array([True, False, True]), 3).tolist() == [0, 2]
    assert chosen_rows([0], 5).dtype == np.uint32


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([True], r"a mask of rows must have the shape \[3\]"),
        ([1.5], "a mask or a list of integers"),
        ([], "selects none of 3 rows"),
        ([False] * 3, "selects none of 3 rows"),
        ([0, 3], "numbers from 0 to 2, got numbers from 0 to 3"),
        ([-1], "got numbers from -1"),
        ([1, 1], "duplicate numbers"),
    ],
)
def test_what_cannot_be_meant(rows, said):
    """Wrong lengths, kinds, numbers, repeats and nothing at all are refused."""
    with pytest.raises(ConfigError, match=said):
        chosen_rows(rows, 3)


def rule(*fractions, seed=1, **options):
    return SplitRule.of(fractions, None, **{"exact": False, **options}, seed=seed)


def groups(num_groups, per_group=3):
    labels = tuple(f"donor {number}" for number in range(num_groups))
    return RowGroups(labels=labels, codes=np.repeat(np.arange(num_groups), per_group))


def test_groups_stay_together_and_where_they_were():
    """Rows of a group are in one part; more groups move no old one; the parts are about as large as asked for."""
    part = part_of_groups(groups(2000), rule(0.7, 0.3, seed=4), by="donor")
    assert (part.reshape(2000, 3) == part[::3, None]).all()
    assert part_of_groups(groups(3000), rule(0.7, 0.3, seed=4), by="donor")[:6000].tolist() == part.tolist()
    assert abs((part == 0).mean() - 0.7) < 0.04
    assert set(part.tolist()) == {0, 1}
    assert part_of_groups(groups(2000), rule(0.7, 0.3, seed=5), by="donor").tolist() != part.tolist()
    leaving = part_of_groups(groups(2000), rule(0.2, 0.3, seed=4), by="donor")
    assert abs((leaving == 2).mean() - 0.5) < 0.04


def test_rows_by_their_number():
    """A row's part depends on its number alone."""
    part = part_of_rows(np.arange(5000), rule(0.8, 0.2, seed=1))
    assert abs((part == 1).mean() - 0.2) < 0.03
    assert part_of_rows(np.array([4711]), rule(0.8, 0.2, seed=1))[0] == part[4711]


def test_rows_of_a_part():
    """Parts hold all rows between them, and a range of rows is split like the list of them."""
    part = part_of_rows(range(5000), rule(0.8, 0.15, seed=1))
    assert part.tolist() == part_of_rows(np.arange(5000), rule(0.8, 0.15, seed=1)).tolist()
    members = [places_where(part, number) for number in range(3)]
    assert sorted(np.concatenate(members).tolist()) == list(range(5000))
    assert all((part[member] == number).all() for number, member in enumerate(members))


def test_bytes_of_a_row():
    """Subsets take 4 bytes for each of their rows, parts 1 for each of all; making them takes little more."""
    num = 4_000_000
    mask = np.zeros(num, dtype=np.bool_)
    mask[::2] = True
    listed = np.flatnonzero(mask)
    codes = (np.arange(num) // 1000 % 100).astype(np.int8)
    many = RowGroups(labels=tuple(map(str, range(100))), codes=codes)
    part = part_of_groups(many, rule(0.8, 0.2), by="donor")
    assert part.dtype == np.uint8
    for work, held, most in (
        (lambda: chosen_rows(mask, num), 2, 3),
        (lambda: chosen_rows(listed, num), 2, 3),
        (lambda: part_of_groups(many, rule(0.8, 0.2), by="donor"), 1, 2),
        (lambda: part_of_rows(range(num), rule(0.8, 0.2, seed=1)), 1, 5),  # hashes of one block at a time
        (lambda: places_where(part, 0), 4, 5),
    ):
        tracemalloc.start()
        made = work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert made.nbytes <= held * num
        assert peak < most * num


def test_what_cannot_be_split():
    """Fractions beyond one, rows without a group, and parts that come out empty."""
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        part_of_rows(np.arange(3), rule(0.8, 0.3, seed=1))
    with pytest.raises(
        ConfigError, match=r"2 rows have no value in the column 'donor' to split by: .*notna\(\)\).split"
    ):
        part_of_groups(RowGroups(labels=("a",), codes=np.array([0, -1, -1])), rule(0.5, 0.5), by="donor")
    with pytest.raises(ConfigError, match=r"got object\[2\]; for booleans .*fillna\(False\)"):
        chosen_rows(pd.array([True, None], dtype="boolean"), 2)
    with pytest.raises(ConfigError, match=r"leaves part 1 empty .* use exact=True"):
        rule(0.8, 0.2).log_sizes(LOG, "donor", [5, 0], 5, ["5", "0"])
    with pytest.warns(UserWarning, match=r"far from the requested one.*exact=True counts"):
        rule(0.8, 0.2).log_sizes(LOG, "donor", [1, 4], 5, ["1", "4"])
    rule(0.8, 0.2, exact=True).log_sizes(LOG, "donor", [1, 4], 5, ["1", "4"])
    with pytest.raises(ConfigError, match='lists values of a column: set it with by="donor"'):
        part_of_rows(range(5), SplitRule.of(None, {"val": ["3"]}, exact=False, seed=1))
    two = RowGroups(labels=("x", "y"), codes=np.array([0, 0, 1, 1, 1, 0]))
    with pytest.raises(ConfigError, match="one value for all rows of one 'donor'; 'donor 0' has several"):
        part_of_groups(groups(2), rule(0.5, 0.5, exact=True), by="donor", strata=two)
