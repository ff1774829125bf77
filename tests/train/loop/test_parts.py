"""What a checkpoint keeps beside model and optimizer."""

import pytest
import torch

from rankwise.train.loop.ledger import RunningMeans
from rankwise.train.loop.parts import Progressed
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
def test_losses_that_wait_are_added_in_their_order(before):
    """To the bit what adding them at once gives, whoever asks, however often, and over a checkpoint."""
    losses = [(value, 0.1 * value) for value in (1e16, 1.0, -1e16, 3.0, 0.1, 7.0)]
    at_once, late, asked = RunningMeans(), RunningMeans(), RunningMeans()
    for means in (at_once, late, asked):
        means.add("loss", before, 1.0)
    for loss in losses:
        at_once.add_all(loss, {})
        late.waiting += loss
        asked.waiting += loss
        again = RunningMeans()
        again.load_state_dict(asked.state_dict())
        asked = again
    assert late.state_dict() == asked.state_dict() == at_once.state_dict()
    late.waiting += (2.0, 1.0)
    late.add("loss", 5.0, 1.0)  # what waits was there first
    at_once.add_all((2.0, 1.0), {})
    at_once.add("loss", 5.0, 1.0)
    assert late.reduce(World.single()) == at_once.reduce(World.single())
    assert late.reduce(World.single()) == {}
