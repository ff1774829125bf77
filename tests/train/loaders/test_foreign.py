"""Loaders of others at the trainer's door: what they have counts, what they lack has a default, all else is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.data.contract import BaseLoader, BatchLoader
from rankwise.data.crops import IndexPipeline
from rankwise.data.rows import OrderedLoader
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.errors import ConfigError
from rankwise.testing import ArrayLoader
from rankwise.train import StreamLoader, Trainer
from rankwise.train.loaders.foreign import ForeignLoader, as_loader, check_loader, kind_of
from rankwise.train.step.balance import Balance
from rankwise.world import World

ARRAYS = {"x": np.arange(24.0).reshape(12, 2)}
MEMBERS = {name for name in vars(BaseLoader) if not name.startswith("_")}
LEAST = {"__iter__", "__len__", "set_epoch", "mark_done", "state_dict", "load_state_dict"}


class Bare:
    """What a `BatchLoader` was before it declared more: steps and a position."""

    def __init__(self):
        self.inner = ArrayLoader(ARRAYS, Order(12, batch_size=4, seed=0), seed=0)

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)

    def set_epoch(self, epoch):
        self.inner.set_epoch(epoch)

    def mark_done(self, state):
        self.inner.mark_done(state)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


class Told(Bare):
    """One with some more members, and an order of which little is known."""

    class Counted:
        batch_size = 4

    order = Counted()
    micro_batch = 3

    def __init__(self):
        super().__init__()
        self.told = []

    def start_prefetch(self):
        self.told.append("start")

    def expect_last_epoch(self):
        self.told.append("last")


def fit(loader, val=None, epochs=2):
    torch.manual_seed(0)
    model = nn.Linear(2, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    trainer = Trainer(
        model,
        optimizer,
        lambda m, batch: m(batch["x"]).square().mean(1),
        world=World.single(),
        run=False,
        progress=False,
    )
    result = trainer.fit(loader, val=val, epochs=epochs)
    return result.num_steps, result.metrics["loss"]


def test_every_loader_of_ours_declares_all():
    """Each is a `BaseLoader`, which has every member of the protocol, and passes the door as it is."""
    source, order = ArraySource(ARRAYS), Order(12, batch_size=4)
    loader = SampleLoader(source, order=order, world=World.single())
    whole = [loader, loader.with_full_length(), StreamLoader([torch.ones(2, 2)], world=World.single())]
    assert all(as_loader(each) is each for each in whole)
    assert all(issubclass(kind, BaseLoader) for kind in (DatasetLoader, IndexPipeline, OrderedLoader, ArrayLoader))
    assert {"order", "set_speeds", "samples"} <= MEMBERS
    # a member that the adapter does not pass on would be lost without a word
    assert set(vars(ForeignLoader)) >= MEMBERS | LEAST
    assert BatchLoader.__abstractmethods__ == LEAST


def test_a_bare_loader_trains_as_a_whole_one():
    """Six methods are enough: the same steps and losses; evaluation needs two of them."""

    class Held:
        def __init__(self):
            self.set_epoch = lambda epoch: None
            self.inner = Bare()

        def __iter__(self):
            return iter(self.inner)

    wanted = fit(ArrayLoader(ARRAYS, Order(12, batch_size=4, seed=0), seed=0))
    assert fit(Bare()) == fit(Bare(), val=Held()) == fit(Told()) == wanted


def test_what_a_loader_has_is_passed_on():
    """It is told when an epoch begins and which is the last; of its order what there is."""
    loader = Told()
    fit(loader)
    assert loader.told == ["start", "last"]
    whole = as_loader(loader)
    assert (whole.micro_batch, whole.order.batch_size, whole.num_epoch_steps) == (3, 4, None)
    assert (whole.speeds, whole.takes_speeds, whole.rank_state, whole.samples) == (None, False, None, None)


def test_a_refusal_names_the_users_class():
    """Not the adapter's."""
    with pytest.raises(ConfigError, match=r"got a Told: leave it out"):
        next(Balance(nn.Linear(2, 1), World.single()).steps(Told()))
    with pytest.raises(ConfigError, match="got a dict, which has no set_epoch, mark_done, state_dict"):
        check_loader(as_loader({}))
    assert kind_of(as_loader(Told())) == "Told"


def test_a_loader_of_ones_own_says_what_is_missing():
    """A subclass of `BaseLoader` without a position cannot be made."""

    class Steps(BaseLoader):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match="mark_done"):
        Steps()
