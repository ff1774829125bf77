"""What torch's DataLoader is asked for."""

from rankwise import Order
from rankwise.data.contract import sample_keys
from rankwise.data.feed import Cursor
from rankwise.data.samples.dataset import Requests


def test_requests_follow_the_shares():
    """One list per micro-batch with the keys of its samples; a share without samples asks for one to look at."""
    order = Order(7, batch_size=2)
    requests = Requests(Cursor(order, rank=0, world_size=3, micro_batch=1))
    pulled = requests.begin()
    asked = list(requests)
    assert len(asked) == len(pulled) == 4
    for pairs, share in zip(asked, pulled, strict=True):
        ids = share.ids if len(share.ids) else share.step.ids[:1]
        assert [sample for sample, _ in pairs] == ids.tolist()
        assert [key for _, key in pairs] == sample_keys(1889, 0, ids).tolist()
    assert any(len(share.ids) == 0 for share in pulled)


def test_beginning_anew_forgets_what_was_pulled():
    """A second iteration has its own queue and starts where the cursor stands."""
    cursor = Cursor(Order(7, batch_size=2), rank=0, world_size=1, micro_batch=None)
    requests = Requests(cursor)
    old = requests.begin()
    next(iter(requests))
    cursor.done = old[0].step.resume
    new = requests.begin()
    assert [pair[0] for pair in next(iter(requests))] == cursor.order.step(cursor.done).ids.tolist()
    assert (len(old), len(new)) == (1, 1)
