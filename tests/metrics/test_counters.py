"""Counters: sums by name."""

from collections import Counter

import torch

from rankwise.metrics import Counters
from rankwise.testing import run_ranks
from rankwise.world import World


def count(world):
    counters = Counters()
    for _ in range(2):
        counters.update({"loss": torch.tensor([-1.5, 0.5]), "num_samples": world.rank})
    counters.update({f"only rank {world.rank}": -1} if world.rank else {})
    first = counters.reduce(world)
    return first, counters.reduce(world, reset=True), counters.reduce(world)


def test_negative_sums_and_partial_names_survive():
    """What `Counter + Counter` drops (sums below or at zero) is kept; names of single ranks are kept."""
    wanted = {"loss": -6.0, "num_samples": 6, "only rank 1": -1, "only rank 2": -1}
    for first, again, after in run_ranks(count, 3):
        assert first == again == wanted
        assert after == {}
    assert "loss" not in Counter({"loss": -1.0}) + Counter({"loss": -0.5})


def test_state_continues():
    """A restored dictionary goes on; states of ranks merge."""
    first, second = Counters(), Counters()
    first.update({"a": 1, "b": 0.5})
    second.load_state_dict(first.state_dict())
    second.update({"a": 2})
    assert second.reduce(World.single()) == {"a": 3, "b": 0.5}
    merged = first.merge_states([first.state_dict(), second.state_dict(), {}])
    second.load_state_dict(merged)
    assert second.reduce(World.single()) == {"a": 4, "b": 1.0}
    assert first.merge_states([]) == {}
