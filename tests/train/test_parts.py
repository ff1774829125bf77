"""What a checkpoint keeps beside model and optimizer."""

from rankwise.train.parts import Progressed


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
