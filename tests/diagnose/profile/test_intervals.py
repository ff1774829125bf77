"""Arithmetic of spans, held against sets of moments; statistics of runs, held against noise."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.diagnose.profile.intervals import clip, intersect, length, subtract, unite
from rankwise.diagnose.profile.noise import differ, spread
from rankwise.diagnose.profile.runs import evaluate_sweep
from rankwise.errors import ConfigError

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def moments(spans):
    return {moment for start, end in spans for moment in range(start, end)}


@given(SPANS, SPANS, st.integers(0, 40), st.integers(0, 40))
def test_spans_are_sets_of_moments(left, right, start, end):
    """Union, intersection, difference and clipping, and what comes out is sorted and disjoint."""
    a, b = unite(left), unite(right)
    assert moments(a) == moments(left)
    assert moments(intersect(a, b)) == moments(left) & moments(right)
    assert moments(subtract(a, b)) == moments(left) - moments(right)
    assert moments(clip(a, start, end)) == moments(left) & moments([(start, end)])
    for spans in (a, intersect(a, b), subtract(a, b), clip(a, start, end)):
        assert all(s < e for s, e in spans)
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
        assert length(spans) == len(moments(spans))


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=12))
def test_a_spread_holds_its_median(values):
    """Quartiles are around the median and within the values; a common factor only scales them."""
    found = spread(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    twice = spread([2 * value for value in values])
    assert (twice.low, twice.median, twice.high) == pytest.approx((2 * found.low, 2 * found.median, 2 * found.high))


@given(
    st.lists(st.floats(1, 100), min_size=1, max_size=8),
    st.lists(st.floats(1, 100), min_size=1, max_size=8),
    st.floats(0.01, 100),
)
def test_a_verdict_knows_no_order_and_no_unit(left, right, factor):
    """Either side first, in any unit: the same verdict; nothing differs from itself, two runs decide nothing."""
    assert differ(left, right) == differ(right, left)
    assert not differ(left, left)
    assert len(left) > 2 < len(right) or not differ(left, right)
    scaled = ([value * factor for value in side] for side in (left, right))
    assert differ(*scaled) == differ(left, right) or rounding(left, right)


def rounding(left, right):
    """Whether a factor's rounding may decide: sides without any spread."""
    return min(len(set(left)), len(set(right))) == 1


@pytest.mark.parametrize("runs", [3, 5, 8])
@pytest.mark.parametrize("noise", ["even", "skewed", "spikes"])
def test_noise_gets_no_verdict_and_an_effect_does(runs, noise):
    """Equal settings under three kinds of noise differ in one trial of twenty, twice the time shows."""
    source = random.Random(7)
    draw = {
        "even": lambda: source.gauss(100, 5),
        "skewed": lambda: 100 * source.lognormvariate(0, 0.1),
        "spikes": lambda: 100 + abs(source.gauss(0, 2)) + 20 * (source.random() < 0.2),
    }[noise]

    def found(factor, trials=400):
        told = [differ([draw() for _ in range(runs)], [factor * draw() for _ in range(runs)]) for _ in range(trials)]
        return sum(told) / trials

    assert found(1.0) < 0.07  # 5 %, and the noise of 400 trials
    assert found(2.0) > 0.9


def test_a_sweep_is_judged_against_its_first_value():
    """What is faster beyond the noise is told with its size, what lies within it is not."""
    told = evaluate_sweep({25: [100, 101, 102, 99], 5: [80, 81, 79, 80], 1: [101, 97, 110, 103]})
    assert [row["verdict"] for row in told] == [None, "20% faster than 25", None]
    assert told[1]["step_ms"] == 80
    with pytest.raises(ConfigError, match="at least one value"):
        spread([])
