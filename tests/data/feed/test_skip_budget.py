"""A budget of damaged samples: left out of batches, counted, never silent."""

import logging
import os
import signal
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport, sample_keys
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource
from rankwise.testing.stores.small_rows import csr_parts


class Damaged(FreeSource):
    """Samples that are functions of their id; some of them are broken."""

    fingerprint = "damaged"
    chunk_samples = 1

    def __init__(self, num_samples, bad, *, damage=True, ragged=False):
        self.num_samples = num_samples
        self.bad = set(bad)
        self.damage = damage
        self.fields = {"x": FieldSpec(shape=(3,), dtype=np.dtype("f8")), "y": FieldSpec(shape=(), dtype=np.dtype("i8"))}
        if ragged:
            self.fields["rows"] = FieldSpec(shape=(9,), dtype=np.dtype("f4"), ragged=True)

    def plan(self, share):
        return FreePlan(share, {"rows": int((share.ids % 4).sum())})

    def hint(self, plan):
        pass

    def read(self, plan, into):
        ids = plan.share.ids
        into.reserve(self.fields, len(ids), plan.capacity)
        valid = ~np.isin(ids, sorted(self.bad))
        into.arrays("x")[0][:] = np.where(valid, ids, -1)[:, None] * [1.0, 10.0, 100.0]
        into.arrays("y")[0][:] = np.where(valid, ids, -1)
        if "rows" in self.fields:
            data, indices, indptr = into.arrays("rows")
            indptr[:] = np.concatenate([[0], np.cumsum(ids % 4)])
            data[:], indices[:] = np.repeat(ids, ids % 4), np.concatenate([np.arange(i % 4) for i in ids] or [[]])
        errors = tuple(SampleError(f"sample {i} is broken", sample=i, damage=self.damage) for i in ids[~valid].tolist())
        return ReadReport(valid=valid, errors=errors)


def loader(source, *, batch_size=10, **options):
    return loader_of(source, Order(source.num_samples, batch_size=batch_size, remainder="split"), **options)


@pytest.mark.parametrize("transform", [None, lambda fields, key: {**fields, "key": key}])
@pytest.mark.parametrize("world_size", [1, 3])
def test_damaged_samples_are_left_out(transform, world_size):
    """Rows, ids, keys and counts tell of the samples that arrived, and of all of those; the rest is counted."""
    bad, seen, skipped, counted = {3, 4, 17, 44}, [], 0, 0
    for rank in range(world_size):
        source = Damaged(45, bad)
        mine = loader(source, rank=rank, world_size=world_size, micro_batch=3, transform=transform, on_bad_sample=4)
        for step in mine:
            for batch in step:
                assert batch["y"].tolist() == batch.ids.tolist()
                np.testing.assert_array_equal(batch["x"], batch.ids[:, None] * [1.0, 10.0, 100.0])
                assert len(batch) == batch.count == len(batch["x"]) == len(batch.share.positions)
                keys = sample_keys(batch.resume.seed, batch.share.step.epoch, batch.ids)
                assert batch.key.tolist() == keys.tolist()
                if transform is not None:
                    assert batch["key"].tolist() == keys.tolist()
                assert batch.may_skip
                seen += batch.ids.tolist()
                skipped += batch.num_lost
        counted += mine.stats.skipped
    assert sorted(seen) == sorted(set(range(45)) - bad)
    assert skipped == counted == len(bad)


def test_rows_of_different_length_move_up_together():
    """A ragged field loses the rows of a damaged sample, values and bounds alike."""
    source = Damaged(30, {2, 7, 8, 29}, ragged=True)
    for (batch,) in loader(source, batch_size=7, on_bad_sample=9):
        data, indices, indptr = csr_parts(batch["rows"])
        assert batch["rows"].shape == (len(batch), 9)
        assert np.diff(indptr).tolist() == (batch.ids % 4).tolist()
        assert data.tolist() == np.repeat(batch.ids, batch.ids % 4).tolist()
        assert indices.tolist() == [column for i in batch.ids for column in range(i % 4)]


def test_by_default_the_first_one_raises():
    """Without a budget a damaged sample ends the epoch, and batches promise to be whole."""
    with pytest.raises(SampleError, match="sample 3 is broken"):
        list(loader(Damaged(45, {3})))
    for (batch,) in loader(Damaged(9, ())):
        assert not batch.may_skip


def test_the_budget_is_kept(caplog):
    """One damaged sample more than allowed raises and says how many were left out before it."""
    with caplog.at_level(logging.WARNING, "rankwise.data"), pytest.raises(SampleError) as raised:
        list(loader(Damaged(45, range(6)), on_bad_sample=5))
    assert "the maximum that on_bad_sample=5 allows" in "\n".join(raised.value.__notes__)


def test_trouble_with_the_storage_is_never_skipped():
    """A sample that is not damaged but could not be had raises, however large the budget."""
    with pytest.raises(SampleError, match="sample 3 is broken"):
        list(loader(Damaged(45, {3}, damage=False), on_bad_sample=100))


def test_the_first_are_said_and_the_total(caplog):
    """Three are named, the others counted; the total is said at the end."""
    with caplog.at_level(logging.WARNING, "rankwise.data"):
        mine = loader(Damaged(45, range(20)), on_bad_sample=30)
        list(mine)
        mine.close()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4
    assert all("is broken" in text for text in texts[:3])
    assert "counted but not logged" in texts[2]
    assert texts[3] == "rank 0 skipped 20 damaged samples in total"


def test_what_is_read_again_counts_once():
    """Going back to the last step marked done costs no budget for samples that are met again; a new epoch does."""
    mine = loader(Damaged(20, {1, 2, 3}), on_bad_sample=6)
    for _ in range(3):
        assert len([batch for step in mine for batch in step]) == 2
    mine.set_epoch(1)
    list(mine)
    mine.set_epoch(2)
    with pytest.raises(SampleError, match="broken"):
        list(mine)


def test_a_fork_in_the_midst_of_a_decision():
    """What a thread of the parent is just deciding about holds up no process that is forked meanwhile."""
    parent, deciding = os.getpid(), threading.Event()
    begin, end = os.pipe()

    class Number(int):
        """Of the damaged sample; looked at while it is decided about."""

        def __ge__(self, other):
            if os.getpid() == parent:
                deciding.set()
                os.read(begin, 1)
            return int(self) >= other

    class Forked(Damaged):
        def read(self, plan, into):
            report = super().read(plan, into)
            errors = tuple(SampleError("broken", sample=Number(error.sample), damage=True) for error in report.errors)
            return replace(report, errors=errors)

    mine, seen = loader(Forked(20, {3}), on_bad_sample=1), []
    thread = threading.Thread(target=lambda: seen.extend(mine))
    thread.start()
    assert deciding.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(sum(batch.count for step in mine for batch in step))
    status = os.waitpid(child, 0)[1]
    os.close(end)
    thread.join(60)
    os.close(begin)
    assert os.waitstatus_to_exitcode(status) == sum(batch.count for step in seen for batch in step) == 19


def test_padding_of_weight_zero_is_no_loss():
    """A damaged sample that only pads the batch is dropped without being counted as lost."""
    source = Damaged(5, {0})
    order = Order(5, batch_size=8, remainder="pad")
    ((batch,),) = loader_of(source, order, on_bad_sample=3)
    assert batch.count == 4
    assert batch.num_lost == 1
    assert 0 not in batch.ids
    assert len(batch.share.weights) == len(batch)


def test_a_rank_without_samples_learns_from_a_good_one():
    """What a transform makes is learnt from a sample of the step that can be read, by a rank that has none itself."""
    source = Damaged(3, {0, 1})
    order = Order(3, batch_size=3, kind="sequential")
    mine = loader_of(
        source, order, rank=0, world_size=4, transform=lambda fields, key: {"z": fields["x"][:2]}, on_bad_sample=3
    )
    for (batch,) in mine:
        assert batch["z"].shape == (0, 2)
    with pytest.raises(SampleError, match="sample 0 is broken"):
        list(loader_of(source, order, rank=0, world_size=4, transform=lambda fields, key: {"z": fields["x"]}))


@pytest.mark.parametrize("wrong", ["skip", -1, 1.5, True, None])
def test_a_budget_is_a_number_or_raise(wrong):
    """Anything else is refused when the loader is made."""
    with pytest.raises(
        ConfigError, match=r'on_bad_sample must be an integer of at least 0, got .*: how many .* or "raise"'
    ):
        loader(Damaged(9, ()), on_bad_sample=wrong)
