"""What a checkpoint keeps beside model and optimizer."""

import numpy as np
import pytest
import torch

from rankwise.train.loop.parts import Progressed
from rankwise.train.step.ledger import RunningMeans
from rankwise.world import World


def test_progress_comes_back():
    """What was counted is counted on."""
    progressed = Progressed()
    progressed.num_steps, progressed.num_samples, progressed.num_lost = 7, 220, 4
    later = Progressed()
    later.load_state_dict(progressed.state_dict())
    assert vars(later) == {"num_steps": 7, "num_samples": 220, "num_lost": 4, "stopped": ""}


def test_checkpoints_that_count_no_lost_samples_load():
    """A checkpoint from before damaged samples could be left out had lost none."""
    later = Progressed()
    later.load_state_dict({"num_steps": 7, "num_samples": 224})
    assert (later.num_steps, later.num_samples, later.num_lost) == (7, 224, 0)


@pytest.mark.parametrize("before", [0.0, torch.ones((), dtype=torch.float64)], ids=["numbers", "a tensor"])
def test_sums_go_on_after_a_checkpoint(before):
    """To the bit what they are without one, and in a log line."""
    at_once, asked = RunningMeans(), RunningMeans()
    for means in (at_once, asked):
        means.add(((before, 1.0), {}))
    for value in (1e16, 1.0, -1e16, 3.0, 0.1, 7.0):
        at_once.add(((value, 0.1 * value), {"seen": (3, 2)}))
        asked.add(((value, 0.1 * value), {"seen": (3, 2)}))
        again = RunningMeans()
        again.load_state_dict(asked.state_dict())
        asked = again
    assert asked.state_dict() == at_once.state_dict()
    assert asked.reduce(World.single()) == at_once.reduce(World.single())
    assert asked.reduce(World.single()) == {}


def test_sums_of_a_value_are_its_elements():
    """Arrays and tensors count with all elements, of their value then; integers stay integers; ranks' sums merge."""
    means, kept = RunningMeans(), torch.tensor([1, 2])
    means.add(((0.0, 0.0), {"right": (kept, np.array([1.0, 1.0]))}))
    kept += 5
    means.add(((0.0, 0.0), {"right": (True, 2)}))
    state = means.state_dict()
    assert state["sum right"] == {"ints": 4, "floats": None}
    assert state["weight right"] == {"ints": 0, "floats": 4.0}
    merged = RunningMeans()
    merged.load_state_dict(means.merge_states([state, state, {}]))
    assert merged.reduce(World.single())["right"] == 1.0


def test_sums_of_earlier_checkpoints_load():
    """A cell may hold integers and floats, and what rounding took from these."""
    means = RunningMeans()
    means.load_state_dict({"sum a": {"ints": 2, "floats": 1.0, "rest": 0.5}, "weight a": {"ints": 7, "floats": None}})
    assert means.reduce(World.single()) == {"a": 0.5}
