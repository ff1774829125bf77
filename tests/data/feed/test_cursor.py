"""Where a loader stands."""

import json

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.contract import BaseOrder, OrderState
from rankwise.data.feed import Cursor, CursorLoader, check_fits
from rankwise.errors import ConfigError


class Steps(CursorLoader):
    """A loader that yields its steps."""

    def __iter__(self):
        return self._cursor.steps()

    @property
    def done(self):
        return self._cursor.done


def loader_of(order=None, **options):
    made = {"rank": 0, "world_size": 1, "micro_batch": None, **options}
    return Steps(Cursor(order or Order(50, batch_size=8), **made))


def test_pulling_steps_does_not_move_the_state():
    """Steps may be pulled to the end of the epoch; only mark_done moves the state."""
    mine = loader_of()
    steps = list(mine)
    assert (len(steps), len(mine), mine.done.position) == (7, 7, 0)
    mine.mark_done(steps[2].resume)
    assert (len(mine), mine.done.position) == (4, 24)
    assert next(iter(mine)).ids.tolist() == steps[3].ids.tolist()


def test_set_epoch_keeps_a_position_inside_it():
    """A state inside the epoch stays; another epoch begins at its start."""
    mine = loader_of()
    mine.mark_done(next(iter(mine)).resume)
    mine.set_epoch(0)
    assert mine.done.position == 8
    mine.set_epoch(3)
    assert (mine.done.epoch, mine.done.position) == (3, 0)
    mine.set_epoch(np.int64(4))
    assert json.dumps(mine.state_dict()) == json.dumps({**mine.state_dict(), "epoch": 4})
    for wrong in (-1, 1.0):
        with pytest.raises(ConfigError, match=f"epoch.*got {wrong}"):
            mine.set_epoch(wrong)


def test_state_survives_another_batch_size():
    """A state goes through JSON into a loader with another batch size and world; lanes come out of the state."""
    old = loader_of(Order(1000, batch_size=16, chunk_samples=10))
    old.mark_done(next(iter(old)).resume)
    new = loader_of(Order(1000, batch_size=48, chunk_samples=10), rank=1, world_size=3)
    assert new.order.recipe != old.order.recipe
    new.load_state_dict(old.state_dict())
    assert new.done == old.done
    old_rest = {i for step in old for i in step.ids.tolist()}
    assert {i for step in new for i in step.ids.tolist()} == old_rest


def test_foreign_states_are_refused():
    """A state of other data or another seed is an error for loading and for marking."""
    mine = loader_of()
    for other in (Order(51, batch_size=8), Order(50, batch_size=8, seed=3)):
        with pytest.raises(ConfigError):
            mine.load_state_dict(other.start().to_json())
        with pytest.raises(ConfigError, match="another order"):
            mine.mark_done(other.start())
    assert mine.done.position == 0


@pytest.mark.parametrize("wrong", [None, "a batch", (), 7])
def test_what_is_no_state_is_told(wrong):
    """`mark_done(batch)` in place of `mark_done(batch.resume)` is a slip; so is a file that was not parsed."""
    loader = loader_of()
    with pytest.raises(ConfigError, match=r"batch\.resume; got " + type(wrong).__name__):
        loader.mark_done(wrong)
    with pytest.raises(ConfigError, match=r"state_dict\(\).*; got " + type(wrong).__name__):
        loader.load_state_dict(wrong)


def test_orders_that_adopt_nothing_are_compared():
    """An order of the contract that cannot adopt anything continues its own states and refuses others."""

    class Plain(BaseOrder):
        recipe, batch_size, fingerprint = "plain", 1, None

        def start(self, epoch=0):
            return OrderState(seed=1, epoch=epoch, position=0, recipe=self.recipe)

        def num_samples(self, epoch):
            return 9

        num_steps = step = num_samples

    mine = loader_of(Plain())
    wanted = OrderState(seed=1, epoch=2, position=5, recipe="plain")
    mine.load_state_dict(wanted.to_json())
    assert mine.done == wanted
    with pytest.raises(ConfigError, match="another order"):
        mine.load_state_dict(OrderState(seed=1, epoch=0, position=0, recipe="other").to_json())


def test_ranks_and_micro_batches_are_checked_at_once():
    """A rank outside the world and a micro-batch below one are errors of construction."""
    with pytest.raises(ConfigError, match="rank 2 of 2"):
        loader_of(rank=2, world_size=2)
    with pytest.raises(ConfigError, match="pass, must be an integer of at least 1, got 0"):
        loader_of(micro_batch=0)
    with pytest.raises(ConfigError, match=r"an integer of at least 1, got 16\.0"):
        loader_of(micro_batch=32 / 2)
    assert len(list(loader_of(micro_batch=np.int64(3)))) == len(list(loader_of()))


def test_an_order_of_other_data_is_refused():
    """Another length or another fingerprint is an error before anything is read."""
    with pytest.raises(ConfigError, match="has 50 samples, the data have 60"):
        check_fits(Order(50, batch_size=8), num_samples=60, fingerprint=None)
    order = Order(50, batch_size=8, fingerprint="aa")
    check_fits(order, num_samples=50, fingerprint="aa")
    with pytest.raises(ConfigError, match="made for other data"):
        check_fits(order, num_samples=50, fingerprint="bb")
