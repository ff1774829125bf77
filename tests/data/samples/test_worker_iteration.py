"""`Fetching`: an iteration of torch's DataLoader that can be taken over or dropped."""

import torch
from torch.utils.data import DataLoader

from rankwise import Order
from rankwise.data.feed import Cursor
from rankwise.data.samples.dataset import Fetching, Requests


class Fetched:
    """Samples that are (number, key)."""

    def __len__(self):
        return 20

    def __getitem__(self, asked):
        return asked


def made():
    cursor = Cursor(Order(20, batch_size=5), rank=0, world_size=1, micro_batch=None)
    requests = Requests(cursor)
    loader = DataLoader(Fetched(), batch_sampler=requests, generator=torch.Generator().manual_seed(0))
    return loader, requests, cursor


def test_batches_and_their_shares():
    """What comes is what the order asks for, each batch with its share, from where the loader stands."""
    loader, requests, cursor = made()
    cursor.done = cursor.order.step(cursor.done).resume
    fetching = Fetching(loader, requests, cursor)
    for step in cursor.steps():
        ids, _ = next(fetching.batches)
        assert ids.tolist() == step.ids.tolist() == fetching.pulled.popleft().ids.tolist()
    assert next(fetching.batches, None) is None


def test_it_is_next_while_the_loader_stands_where_it_began():
    """Another epoch, a step that is done, another order: it is not; back there it is again."""
    loader, requests, cursor = made()
    fetching, start = Fetching(loader, requests, cursor), cursor.done
    for moved in (cursor.order.start(2), cursor.order.step(start).resume):
        assert fetching.is_next
        cursor.done = moved
        assert not fetching.is_next
        cursor.done = start
    cursor.order = Order(20, batch_size=10)
    assert not fetching.is_next


def test_dropping_it_leaves_no_trace_in_seeds():
    """The seeds that torch gives its workers are those of a loader that began once."""
    seeds = []
    for drops in (True, False):
        loader, requests, cursor = made()
        before = loader.generator.get_state()
        if drops:
            Fetching(loader, requests, cursor).drop()
        Fetching(loader, requests, cursor)
        seeds.append(loader.generator.get_state())
        assert not torch.equal(seeds[-1], before)
    assert torch.equal(*seeds)
