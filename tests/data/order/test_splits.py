"""Parts by hashes: fixed for ever, as long as asked for, without gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.order import SplitRule, exact_parts, part_at, place_of_group, place_of_samples
from rankwise.errors import ConfigError


def test_the_hash_is_what_it_was():
    """Where a group or a sample falls is fixed for ever: a split of old must come out again."""
    assert [place_of_group("plate1", seed) for seed in (0, 1)] == [0.5387270505024315, 0.07219172492463799]
    assert place_of_group("plate1", 0) != place_of_group("plate2", 0)
    assert place_of_samples(np.arange(2), 0).tolist() == [0.13870941014555427, 0.18436667429957676]
    assert place_of_samples(np.array([1]), 0)[0] == place_of_samples(np.arange(2), 0)[1]


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_fractions_of_one_leave_no_gap(weights):
    """However the sum of the fractions is rounded, the last place belongs to the last part."""
    fractions = [weight / sum(weights) for weight in weights]
    ends = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert part_at(ends, fractions).tolist() == [0, len(fractions) - 1]


def test_parts_are_stretches_of_their_fractions():
    """A place lies in the part whose stretch holds it, beginnings included; what fractions leave is in none."""
    assert part_at(np.array([0.0, 0.19, 0.2, 0.49, 0.5, 0.99]), (0.2, 0.3)).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("fractions", [(), (0.0, 1.0), (0.6, 0.5), (-0.1,), (float("nan"),)])
def test_fractions_that_cannot_be_meant(fractions):
    """Nothing, nothing of something, and more than all are refused."""
    with pytest.raises(ConfigError, match="fractions must be above 0 and at most 1 together"):
        part_at(np.array([0.5]), fractions)


def rule(fractions=None, groups=None, *, exact=False):
    return SplitRule.of(fractions, groups, exact=exact, seed=3)


FRACTIONS = [(0.8, 0.2), (0.75, 0.25), (0.7, 0.15, 0.15), (1 / 3, 1 / 3, 1 / 3), (0.5, 0.1)]


@given(count=st.integers(1, 200), fractions=st.sampled_from(FRACTIONS))
def test_exact_parts_are_rounded_fractions(count, fractions):
    """Of any number of groups each part has its fraction, rounded down or up; all are shared out by their hashes."""
    labels = [f"donor {number}" for number in range(count)]
    part = rule(fractions, exact=True).parts(labels)
    quotas = count * np.append(fractions, max(0, 1 - sum(fractions)))
    sizes = np.bincount(part, minlength=len(quotas))
    assert sizes.sum() == count
    assert (np.abs(sizes - quotas) < 1).all()
    again = rule(fractions, exact=True).parts(labels[::-1])
    assert again[::-1].tolist() == part.tolist()  # names decide, not their order
    assert count < 50 or part.tolist() != sorted(part.tolist())


@given(
    strata=st.lists(st.integers(0, 5), min_size=1, max_size=120),
    fractions=st.sampled_from(FRACTIONS),
)
def test_every_part_has_its_fraction_of_each_stratum(strata, fractions):
    """In each stratum a part has its fraction, rounded down or up."""
    strata = np.array(strata)
    part = exact_parts(np.random.default_rng(0).random(len(strata)), fractions, strata)
    shares = np.append(fractions, max(0, 1 - sum(fractions)))
    for stratum in np.unique(strata):
        held = part[strata == stratum]
        assert (np.abs(np.bincount(held, minlength=len(shares)) - len(held) * shares) < 1).all()


def test_what_strata_leave_over_is_shared_out():
    """Five hospitals of three donors each: no part gets all that is left over, as it would stratum by stratum."""
    part = exact_parts(np.random.default_rng(0).random(15), (0.8, 0.2), np.repeat(np.arange(5), 3))
    assert np.bincount(part).tolist() == [12, 3]


def test_named_groups():
    """A list says where its groups go; the others are "train", in the part of `...`, or shared out by fractions."""
    labels = [f"d{number}" for number in range(10)]
    held = rule(groups={"val": ["d3", "d7"]})
    assert held.names == ("val", "train")
    assert held.parts(labels).tolist() == [int(label not in ("d3", "d7")) for label in labels]
    named = rule(groups={"val": ["d3"], "rest": ...})
    assert (named.names, np.bincount(named.parts(labels)).tolist()) == (("val", "rest"), [1, 9])
    both = rule(groups={"val": ["d3"], "train": ["d4"]}).parts(labels)
    assert np.bincount(both).tolist() == [1, 1, 8]  # named all: the others are in none
    three = rule({"train": 2 / 3, "test": 1 / 3}, {"val": ["d3"]}, exact=True)
    assert (three.names, np.bincount(three.parts(labels)).tolist()) == (("val", "train", "test"), [1, 6, 3])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((None, None), r"a split needs fractions=.* groups="),
        (((0.5, 0.5), {"val": ["d1"]}), "pass them by name"),
        (({"test": 1.0}, {"val": ["d1"], "train": ...}), "do not use `...` in groups="),
        ((None, {"val": "d1"}), r"write \['d1'\]"),
        ((None, {"val": ["d1"], "test": ["d1"]}), "puts 'd1' into both 'val' and 'test'"),
        (({"val": 0.5}, {"val": ["d1"]}), "both a list of groups and a fraction"),
        ((None, {"val": ["nobody"]}), r"1 groups for 'val' that do not exist, such as \['nobody'\]"),
    ],
)
def test_what_cannot_be_asked_for(arguments, said):
    """Parts that contradict each other, and groups that are not there, are refused."""
    with pytest.raises(ConfigError, match=said):
        rule(*arguments).parts(["d1", "d2"])
