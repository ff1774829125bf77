"""`FullLength`: a length that does not shrink."""

import pytest

from rankwise import Order
from rankwise.data.contract import OrderState
from rankwise.data.feed import Cursor, CursorLoader
from rankwise.errors import ConfigError


class Steps(CursorLoader):
    """A loader that yields its steps."""

    def __iter__(self):
        return self._cursor.steps()


@pytest.fixture
def loader():
    return Steps(Cursor(Order(50, batch_size=8), rank=0, world_size=1, micro_batch=None))


def test_the_length_is_that_of_the_whole_epoch(loader):
    """Whatever was done of an epoch, its length stays; iterating goes on behind the last step done."""
    full = loader.with_full_length()
    steps = list(full)
    full.mark_done(steps[2].resume)
    assert (len(loader), len(full), loader.num_epoch_steps) == (4, 7, 7)
    assert [step.index for step in full] == [3, 4, 5, 6]
    full.mark_done(steps[-1].resume)
    assert (len(loader), len(full)) == (7, 7)


def test_the_position_is_the_loaders(loader):
    """Saving, loading and changing the epoch are the loader's own, and so are its errors."""
    full = loader.with_full_length()
    full.mark_done(next(iter(full)).resume)
    assert full.state_dict() == loader.state_dict() == OrderState.from_json(full.state_dict()).to_json()
    state = full.state_dict()
    full.sampler.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3
    full.load_state_dict(state)
    assert loader.state_dict() == state
    with pytest.raises(ConfigError, match="differs from this one in: the data"):
        full.load_state_dict(Order(51, batch_size=8).start().to_json())
