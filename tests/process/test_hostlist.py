"""Slurm's compressed lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise._process.slurm import expand_counts, expand_hosts
from rankwise.errors import WorldError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node01", ["node01"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7,010-011]", ["n01", "n02", "n03", "n7", "n010", "n011"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("a[1-2],login-0,b7.site.edu", ["a1", "a2", "login-0", "b7.site.edu"]),
    ],
)
def test_the_forms_that_slurm_writes(text, hosts):
    """Ranges, lists, leading zeros, suffixes, several brackets, commas inside and outside."""
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "a,", "n[1-", "n]1[", "n[[1]]", "n[3-1]", "n[a]", "n[]", "n[0-9999999]"])
def test_what_is_not_well_formed_is_refused(text):
    """An error quotes the list; nothing is guessed, and a huge range does not eat the memory."""
    with pytest.raises(WorldError, match="Slurm node list"):
        expand_hosts(text)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 20)), min_size=1, max_size=5), st.integers(1, 5))
def test_ranges_agree_with_writing_them_out(ranges, width):
    """Any ranges with any padding equal the names written one by one."""
    inside = ",".join(f"{first:0{width}d}-{first + more:0{width}d}" for first, more in ranges)
    wanted = [f"n{number:0{width}d}" for first, more in ranges for number in range(first, first + more + 1)]
    assert expand_hosts(f"n[{inside}]") == wanted


def test_counts():
    """One number per node; repeats are written out."""
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    with pytest.raises(WorldError, match="task counts"):
        expand_counts("2(x3")
