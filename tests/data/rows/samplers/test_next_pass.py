"""What a sampler will draw next, without its noticing."""

import numpy as np
import pandas as pd
import pytest

from rankwise.data.rows.samplers import (
    ClassSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedClassSampler,
)
from rankwise.data.rows.samplers.distributed import foreseen

CLASSES = pd.Categorical(np.repeat(["a", "b"], 50))
SIZES = (5, 2, 5)
KINDS = {
    "sequential": lambda rng: SequentialSampler(*SIZES),
    "random": lambda rng: RandomSampler(*SIZES, rng=rng),
    "part": lambda rng: RandomSampler(*SIZES, num_samples=33, rng=rng),
    "repeated": lambda rng: RandomSampler(*SIZES, replacement=True, mask=slice(10, 90), rng=rng),
    "class": lambda rng: ClassSampler(*SIZES, classes=CLASSES, num_samples=60, rng=rng),
    "weighted": lambda rng: WeightedClassSampler(*SIZES, classes=CLASSES, num_samples=60, rng=rng),
    "rank": lambda rng: DistributedSampler(RandomSampler(*SIZES, rng=rng), dist_info=lambda: (1, 3)),
}


def drawn(sampler):
    return [(str(one["requests"]), [split.tolist() for split in one["splits"]]) for one in sampler.sample(100)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_pass_is_foreseen(kind):
    """Each of our samplers, pass after pass: the copy draws what the sampler draws next, also after `set_epoch`."""
    sampler = KINDS[kind](0)
    for number in range(4):
        if number == 3:
            sampler.set_epoch(7)
        assert drawn(foreseen(sampler)) == drawn(sampler)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_notices(kind):
    """Passes, generators and epochs are the same whether or not somebody looked ahead."""
    ends = []
    for looks in (True, False):
        rng = np.random.default_rng(3)
        sampler = KINDS[kind](rng)
        shown = []
        for _ in range(3):
            shown.append(drawn(sampler))
            if looks:
                drawn(foreseen(sampler))
        state = None if sampler.rng is None else sampler.rng.bit_generator.state
        ends.append((shown, sampler.epoch, state, rng.bit_generator.state))
    assert ends[0] == ends[1]


def test_what_others_wrote_is_not_foreseen():
    """Own samplers, those that inherit from ours, and those that are wrapped: they may draw from anywhere."""

    class Own(RandomSampler):
        pass

    assert foreseen(Own(*SIZES, rng=0)) is None
    assert foreseen(DistributedSampler(Own(*SIZES, rng=0), dist_info=lambda: (0, 1))) is None
    classes = ClassSampler(*SIZES, classes=CLASSES, num_samples=60, rng=0)
    assert foreseen(DistributedSampler(classes, dist_info=lambda: (0, 1))) is None


@pytest.mark.parametrize("kind", KINDS)
def test_generators_that_were_not_drawn_from_stay_so(kind):
    """Before the first pass, and after another generator was assigned, the seed is drawn from a copy of it."""
    sampler, rng = KINDS[kind](0), np.random.default_rng(3)
    for number in range(2):
        if number and sampler.rng is not None:
            sampler.rng = rng
        before = rng.bit_generator.state, sampler.rng and sampler.rng.bit_generator.state, sampler.epoch
        looked = drawn(foreseen(sampler))
        assert (rng.bit_generator.state, sampler.rng and sampler.rng.bit_generator.state, sampler.epoch) == before
        assert looked == drawn(sampler)


def test_who_else_draws_changes_what_comes():
    """A generator that is shared: what was foreseen is another pass then."""
    rng = np.random.default_rng(3)
    sampler = RandomSampler(*SIZES, rng=rng)
    looked = drawn(foreseen(sampler))
    rng.random()
    assert looked != drawn(sampler)
