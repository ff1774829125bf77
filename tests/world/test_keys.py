"""Generators that depend on seed and key only."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.world import World, seed_generators
from rankwise.world.keys import numpy_generator, torch_generator

KEYS = st.lists(st.integers() | st.text(max_size=4), max_size=4).map(tuple)

FIRST_NUMPY = [2019905556, 616387241, 511305959]
FIRST_TORCH = 3188110703728527294


def test_the_streams_are_fixed():
    """The numbers themselves: they may never change between versions, runs resume with them."""
    assert numpy_generator(1889, ("augment", 3)).integers(0, 2**32, 3).tolist() == FIRST_NUMPY
    assert int(torch_generator(1889, ("augment", 3)).initial_seed()) == FIRST_TORCH


@given(KEYS, KEYS, st.integers(0, 5), st.integers(0, 5))
def test_streams_are_equal_exactly_when_seed_and_key_are(key, other, seed, other_seed):
    """Equal (seed, key), equal stream; any difference, also of type or of where a key is cut, another stream."""
    same = numpy_generator(seed, key).integers(0, 2**63) == numpy_generator(other_seed, other).integers(0, 2**63)
    assert same == ((seed, key) == (other_seed, other))


def test_keys_of_other_types_are_refused():
    """A float or a tuple has no stable text: refused."""
    for key in ((1.5,), (("a",),), (True,)):
        with pytest.raises(ConfigError, match="integers and strings"):
            World.single().generator(*key)


def draws(world):
    import torch

    mine = world.generator("noise", world.rank).random()
    return world.generator("noise").random(), mine, torch.rand(1, generator=world.torch_generator("x")).item()


def test_ranks_draw_alike_unless_the_key_says_otherwise():
    """Without the rank in the key all ranks draw the same numbers, with it different ones; one rank agrees."""
    first, second = run_ranks(draws, 2)
    assert first[0] == second[0] == World.single().generator("noise").random()
    assert first[1] != second[1]
    assert first[2] == second[2]


def test_the_global_generators_are_seeded():
    """`random`, NumPy's and torch's draw again what they drew; a seed that NumPy does not take is refused."""

    def draws():
        return random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002

    seed_generators(7)
    first = draws()
    assert draws() != first
    seed_generators(7)
    assert draws() == first
    with pytest.raises(ConfigError, match="the range of NumPy"):
        seed_generators(-1)


def test_the_main_rank_prints(capsys):
    """World.print writes on the main rank only, with the options of print."""
    world = World.single()
    world.print("a", 1, sep="-", end=".")
    replace(world, rank=1, world_size=2).print("b")
    assert capsys.readouterr().out == "a-1."
