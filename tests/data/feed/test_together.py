"""Steps that are read as one."""

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport
from rankwise.errors import DataError, SampleError
from rankwise.testing.patience import until
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource


class Kept(FreeSource):
    """Samples that are functions of their id, dense and ragged; notes how many samples are planned and read at once."""

    fingerprint = "kept"
    chunk_samples = 1

    def __init__(self, *, together=True, damaged=(), unplanned=(), unread=()):
        self.num_samples, self.group_steps = 50, together
        self.damaged, self.unplanned, self.unread = damaged, unplanned, unread
        self.fields = {
            "x": FieldSpec(shape=(3,), dtype=np.dtype("f4")),
            "rows": FieldSpec(shape=(100,), dtype=np.dtype("f8"), ragged=True),
        }
        self.events, self.filled = [], None

    def plan(self, share):
        if set(self.unplanned) & set(share.ids.tolist()):
            raise DataError("no plan")
        self.events.append(("plan", share.num_samples))
        return FreePlan(share, {"rows": int(np.sum(share.ids % 4))})

    def hint(self, plan):
        self.events.append(("hint", plan.share.num_samples))

    def read(self, plan, into):
        ids = plan.share.ids
        if set(self.unread) & set(ids.tolist()):
            raise DataError("no bytes")
        self.events.append(("read", len(ids)))
        into.reserve(self.fields, len(ids), plan.capacity)
        into.arrays("x")[0][:] = ids[:, None] * [1, 10, 100]
        if self.filled is not None:
            self.filled.append(into.arrays("x")[0])
        data, indices, indptr = into.arrays("rows")
        indptr[:] = np.concatenate([[0], np.cumsum(ids % 4)])
        data[:] = np.repeat(ids, ids % 4)
        indices[:] = np.concatenate([np.arange(sample % 4) for sample in ids] or [[]])
        valid = ~np.isin(ids, self.damaged)
        errors = tuple(SampleError(f"sample {s} is broken", sample=int(s), place="chunk 1") for s in ids[~valid])
        return ReadReport(valid=valid, fast_chunks=7, errors=errors)


@pytest.fixture
def allocated(monkeypatch):
    """Bytes of each piece of memory for batches that is allocated, in order; each has room to begin at 64 bytes."""
    sizes, empty = [], np.empty

    def counted(shape, *rest, **named):
        if named.get("dtype") is np.uint8 and isinstance(shape, int):
            sizes.append(shape - 64)
        return empty(shape, *rest, **named)

    monkeypatch.setattr(np, "empty", counted)
    return sizes


def steps(source, *, depth=3, mark=None, loader=None, **options):
    """Everything that comes, and what it was read by."""
    loader = loader or loader_of(source, Order(50, batch_size=8), depth=depth, **options)
    found = []
    for number, batches in enumerate(loader):
        found.append([(b.ids.tolist(), b["x"].tolist(), b["rows"].toarray().tolist()) for b in batches])
        if number == mark:
            loader.mark_done(batches[-1].resume)
            break
    return loader, found


@pytest.mark.parametrize(
    "options", [{}, {"micro_batch": 3}, {"rank": 1, "world_size": 3}, {"rank": 0, "world_size": 64}]
)
def test_the_same_batches(options):
    """Steps that are read as one are what they are each by itself: micro-batches, shares, empty ones, the short end."""
    _, one_by_one = steps(Kept(together=False), **options)
    held = Kept()
    loader, found = steps(held, **options)
    assert found == one_by_one
    assert len(found) == 7
    reads = [count for what, count in held.events if what == "read"]
    assert len(reads) == 3  # 3, 3 and 1 steps
    assert sum(reads) == sum(len(ids) for step in found for ids, _, _ in step)
    assert loader.stats.chunks_decoded == 21  # chunks count once


def test_the_next_ones_are_hinted_before_these_are_read():
    """While steps are read the system fetches those after them; but nothing comes before the very first are read."""
    held = Kept()
    steps(held)
    assert held.events[:5] == [("plan", 24), ("hint", 24), ("read", 24), ("plan", 24), ("hint", 24)]
    assert held.events[5:] == [("plan", 2), ("hint", 2), ("read", 24), ("read", 2)]


def test_they_lie_where_they_were_read():
    """Of those that are read as one only the last step is copied, and few steps: the next ones are read meanwhile."""
    held = Kept()
    held.filled, copied = [], []
    for (batch,) in loader_of(held, Order(50, batch_size=8), depth=3, device=None):
        copied.append(not any(np.shares_memory(batch["x"], filled) for filled in held.filled))
    assert copied == [False, False, True, False, False, True, True]


def test_few_steps_at_the_end_keep_no_reader_waiting():
    """The first steps of the next epoch are read while those before the last few of this one are in use."""
    held = Kept()
    held.num_samples = 40
    loader = loader_of(held, Order(40, batch_size=8), depth=4, across_epochs=True)
    for number, _ in enumerate(loader):
        if number == 1:  # of five, four of which are read as one
            assert until(lambda: [count for what, count in held.events if what == "read"] == [32, 8, 32])


def test_no_more_memory_than_two_times_what_is_read_as_one(allocated):
    """What is in use, what is read meanwhile, and what is copied; however long the epoch is."""
    steps(Kept())
    dense = [num_bytes for num_bytes in allocated if num_bytes in {24 * 12, 8 * 12}]
    assert 1 <= dense.count(24 * 12) <= 2
    assert dense.count(8 * 12) <= 4


def test_from_the_middle_on():
    """Begun in the middle they end where they would have ended: each window is read as one."""
    held = Kept()
    loader, first = steps(held, mark=1)
    held.events.clear()
    _, rest = steps(held, loader=loader)
    assert first + rest == steps(Kept(together=False))[1]
    assert [count for what, count in held.events if what == "read"] == [8, 24, 2]


def test_read_in_the_calling_thread_one_by_one():
    """With depth=0, which is for debuggers, every step is read when it is asked for."""
    held = Kept()
    steps(held, depth=0)
    assert [count for what, count in held.events if what == "read"] == [8] * 6 + [2]


def test_later_epochs_need_no_fresh_memory(allocated):
    """What steps are read into is kept from pass to pass, also of one that was left early."""
    loader, _ = steps(Kept())
    for mark in (None, 2, None):
        loader.set_epoch(0)
        steps(None, mark=mark, loader=loader)
    dense = [num_bytes for num_bytes in allocated if num_bytes in {24 * 12, 8 * 12, 2 * 12}]
    assert 1 <= dense.count(24 * 12) <= 2  # three steps in use, and three that are read; less if that is quick
    # each of these grows to three steps by way of one and of the short end; four buffers of a step by way of the end
    assert len(dense) <= 2 * 3 + 4 * 2


def ids_of(found):
    return [ids for step in found for ids, _, _ in step]


def until_it_fails(source):
    """Ids of the steps that come, and the error that ends them."""
    seen = []
    try:
        for (batch,) in loader_of(source, Order(50, batch_size=8), depth=3):
            seen.append(batch.ids.tolist())
    except DataError as error:
        return seen, error
    return seen, None


def test_a_damaged_sample_fails_its_step():
    """The steps before the damaged sample arrive; the error names its step."""
    whole = ids_of(steps(Kept())[1])
    seen, error = until_it_fails(Kept(damaged=[whole[4][2]]))
    assert seen == whole[:4]
    assert isinstance(error, SampleError)
    assert str(error) == f"sample {whole[4][2]} is broken"
    assert "while reading step 4" in error.__notes__[0]


def test_damaged_samples_are_left_out():
    """What the budget lets pass is missing in its step only."""
    whole = ids_of(steps(Kept())[1])
    bad = [whole[0][1], whole[4][2], whole[4][7]]
    loader, found = steps(Kept(damaged=bad), on_bad_sample=3)
    assert ids_of(found) == [[sample for sample in ids if sample not in bad] for ids in whole]
    assert all(x == [[s, 10 * s, 100 * s] for s in ids] for step in found for ids, x, _ in step)
    assert loader.stats.skipped == 3


@pytest.mark.parametrize(("trouble", "said"), [("unplanned", "no plan"), ("unread", "no bytes")])
def test_what_fails_as_a_whole_is_read_step_by_step(trouble, said):
    """Where planning or reading raises, the steps before the one that fails arrive first."""
    whole = ids_of(steps(Kept())[1])
    seen, error = until_it_fails(Kept(**{trouble: [whole[4][2]]}))
    assert seen == whole[:4]
    assert str(error) == said
    assert "while reading step 4" in error.__notes__[0]


def test_transforms_of_samples_see_their_own():
    """Samples go through a transform one by one, as if each step had been read by itself."""

    def doubled(fields, key):
        return {"x": fields["x"] * 2 + key % 3}

    options = {"transform": doubled, "depth": 3}
    found = [
        [batch["x"].tolist() for (batch,) in loader_of(Kept(together=one), Order(50, batch_size=8), **options)]
        for one in (True, False)
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 7
