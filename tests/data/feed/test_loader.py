"""`SampleLoader` over a source that can be watched."""

import gc
import os
import signal
import threading

import numpy as np
import pytest
import torch
import zarr

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.endings import run_endings
from rankwise.testing.new_threads import threads_end, threads_since
from rankwise.testing.patience import until
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreeSource


class PlainPlan:
    def __init__(self, share):
        self.share = share
        self.num_chunks = self.read_bytes = self.decode_bytes = 0
        self.capacity = {}


class Watched(FreeSource):
    """Samples that are functions of their id; notes what is asked of it."""

    fingerprint = "watched"
    chunk_samples = 4

    def __init__(self, num_samples, fail_at=None, dtype="f8"):
        self.num_samples = num_samples
        self.fail_at = fail_at
        self.fields = {
            "x": FieldSpec(shape=(3,), dtype=np.dtype(dtype)),
            "y": FieldSpec(shape=(), dtype=np.dtype("i8")),
        }
        self.events = []
        self.threads = set()
        self.gate = threading.Event()
        self.gate.set()

    def plan(self, share):
        self.events.append(("plan", share.step.index))
        return PlainPlan(share)

    def hint(self, plan):
        self.events.append(("hint", plan.share.step.index))

    def read(self, plan, into):
        assert self.gate.wait(20)
        ids = plan.share.ids
        self.events.append(("read", plan.share.step.index))
        self.threads.add(threading.current_thread().name)
        into.reserve(self.fields, len(ids), plan.capacity)
        valid = np.ones(len(ids), dtype=np.bool_)
        errors = ()
        if self.fail_at in ids:
            valid[ids == self.fail_at] = False
            errors = (SampleError(f"sample {self.fail_at} is broken", sample=self.fail_at, place="chunk 1"),)
        into.arrays("x")[0][:] = ids[:, None] * [1.0, 10.0, 100.0]
        into.arrays("y")[0][:] = ids
        return ReadReport(valid=valid, slow_chunks=1, fill_chunks=2, errors=errors)


def readers():
    return threads_since("rankwise-reader")


def loader(num_samples=50, *, batch_size=8, **options):
    source = options.pop("source", None) or Watched(num_samples)
    order = options.pop("order", None) or Order(source.num_samples, batch_size=batch_size)
    return loader_of(source, order, **options)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_every_sample_once_and_right(device, depth, micro_batch):
    """An epoch brings each sample once with its own values, whatever the device, depth and micro-batch."""
    seen = []
    for batches in loader(device=device, depth=depth, micro_batch=micro_batch):
        for batch in batches:
            assert isinstance(batch["x"], np.ndarray if device is None else torch.Tensor)
            np.testing.assert_array_equal(np.asarray(batch["x"]), batch.ids[:, None] * [1.0, 10.0, 100.0])
            np.testing.assert_array_equal(np.asarray(batch["y"]), batch.ids)
            assert batch.count == len(batch) == len(batch.ids) <= (micro_batch or 8)
            seen += batch.ids.tolist()
    assert sorted(seen) == list(range(50))
    assert threads_end("rankwise-reader")


@pytest.mark.parametrize("world_size", [1, 2, 3, 11])
def test_ranks_share_each_step(world_size):
    """At any world size the ranks together hold the samples of each step, with equally many micro-batches.

    A rank without samples gets zero rows of the right shape and dtype.
    """
    order = Order(50, batch_size=8)
    one = [batches[0].ids.tolist() for batches in loader(order=order)]
    ranks = [
        [[(b.ids.tolist(), b["x"].shape, b["x"].dtype) for b in batches] for batches in loaded]
        for loaded in (loader(order=order, rank=r, world_size=world_size, micro_batch=2) for r in range(world_size))
    ]
    for step, wanted in enumerate(one):
        parts = [ranks[r][step] for r in range(world_size)]
        assert len({len(part) for part in parts}) == 1
        assert sorted(i for part in parts for ids, _, _ in part for i in ids) == sorted(wanted)
        for part in parts:
            assert all(shape == (len(ids), 3) and dtype == np.float64 for ids, shape, dtype in part)


def test_positions_are_consumed_not_pulled():
    """The reader is ahead, the state is not: it moves with mark_done, and a new loader continues right there."""
    first = loader(depth=3)
    steps = iter(first)
    done = []
    for _ in range(3):
        (batch,) = next(steps)
        done += batch.ids.tolist()
        resume = batch.resume
    first.mark_done(resume)
    next(steps)  # pulled, not done
    state = first.state_dict()
    steps.close()
    rest = []
    for rank in range(3):
        other = loader(depth=2, rank=rank, world_size=3)
        other.load_state_dict(state)
        assert len(other) == 4
        rest += [i for batches in other for b in batches for i in b.ids.tolist()]
    assert sorted(done + rest) == list(range(50))


def test_epochs_follow_each_other():
    """Marking every step done leads to the next epoch; not marking repeats the epoch; set_epoch chooses one."""
    mine = loader()

    def epoch():
        ids = []
        for batches in mine:
            ids += batches[0].ids.tolist()
            last = batches[0].resume
        return ids, last

    first, last = epoch()
    assert epoch()[0] == first
    mine.mark_done(last)
    second, _ = epoch()
    assert second != first
    assert sorted(second) == sorted(first)
    mine.set_epoch(0)
    assert epoch()[0] == first
    mine.set_epoch(1)
    assert epoch()[0] == second


def test_steps_are_hinted_before_they_are_read():
    """Step k + 2 is planned and hinted before step k is read; but nothing comes before the very first one is read."""
    source = Watched(50)
    list(loader(source=source, depth=0))
    read = {index: place for place, (what, index) in enumerate(source.events) if what == "read"}
    hint = {index: place for place, (what, index) in enumerate(source.events) if what == "hint"}
    assert all(hint[k + 2] < read[k] for k in range(1, 5))
    assert hint[0] < read[0] < hint[1]
    assert len(read) == len(hint) == 7


def test_reading_is_ahead_and_bounded():
    """With depth d no more than d + 1 steps are read beyond the one in use, however long the consumer takes."""
    source = Watched(400)
    steps = iter(loader(source=source, depth=2))
    next(steps)
    until(lambda: sum(what == "read" for what, _ in source.events) >= 3)
    threading.Event().wait(0.05)
    assert 3 <= sum(what == "read" for what, _ in source.events) <= 4
    assert source.threads == {"rankwise-reader"}
    steps.close()


def test_released_batches_refuse_to_be_read():
    """A batch that was released says so; what was taken out of it, and a copy that `detach` made, stay as they were."""
    steps = iter(loader(device="cpu"))
    (first,) = next(steps)
    kept, taken = first.detach(), first["x"]
    wanted = taken.clone()
    first.release()
    with pytest.raises(ConfigError, match=r"released by release\(\)"):
        first["x"]
    for _ in range(5):
        next(steps)
    assert torch.equal(kept["x"], wanted)
    assert torch.equal(taken, wanted)
    assert kept.resume == first.resume
    steps.close()


def test_memory_is_never_overwritten_while_it_is_held():
    """While a batch is in use its values stay, although the reader works ahead in other buffers."""
    source = Watched(400)
    for number, (batch,) in enumerate(loader(source=source, depth=3, device="cpu")):
        before = batch["x"].clone()
        if number % 10 == 0:
            threading.Event().wait(0.01)
        assert torch.equal(batch["x"], before)
        assert torch.equal(batch["y"], torch.from_numpy(batch.ids))


def test_buffers_come_from_a_small_ring():
    """A long epoch uses depth + 1 buffers; the next one uses them again, and one while the last batch is looked at."""
    mine = loader(400, depth=2)
    addresses = [{batch["x"].ctypes.data for (batch,) in mine} for _ in range(4)]
    assert len(addresses[0]) <= 3
    assert len(set.union(*addresses)) <= 4


def test_with_releases_early():
    """A batch is a context manager: at its end the memory is given back, and releasing again does nothing."""
    steps = iter(loader())
    (batch,) = next(steps)
    with batch as same:
        assert same is batch
    with pytest.raises(ConfigError, match="released"):
        batch["x"]
    batch.release()
    assert len(list(steps)) == 6


def test_a_broken_sample_reaches_the_consumer():
    """The steps before it arrive, then the SampleError with the place, and the thread is gone."""
    order = Order(50, batch_size=8, kind="sequential")
    mine = loader(source=Watched(50, fail_at=20), order=order)
    steps = iter(mine)
    assert [next(steps)[0].ids[0] for _ in range(2)] == [0, 8]
    with pytest.raises(SampleError, match="sample 20 is broken") as caught:
        next(steps)
    assert "while reading step 2 of epoch 0 (positions 16 to 23) for rank 0 of 1" in caught.value.__notes__[0]
    assert threads_end("rankwise-reader")


@pytest.mark.parametrize("how", ["break", "raise", "forget", "cycle"])
def test_leaving_early_stops_the_thread(how):
    """A break, an exception, a forgotten iterator, an iterator in a reference cycle: the reader ends."""
    mine = loader(400)
    if how == "break":
        for _ in mine:
            break
    elif how == "raise":
        with pytest.raises(ZeroDivisionError):
            [1 // 0 for _ in mine]
    elif how == "forget":
        next(iter(mine))
    else:
        holder = {"steps": iter(mine)}
        holder["self"] = holder
        next(holder["steps"])
        del holder
        gc.collect()
    assert threads_end("rankwise-reader")
    assert len(list(mine)) == 50


def test_closing_waits_for_a_read_that_is_under_way():
    """Leaving while the reader is inside a read waits for that one read, then nothing runs any more."""
    source = Watched(400)
    steps = iter(loader(source=source))
    next(steps)
    source.gate.clear()
    threading.Timer(0.1, source.gate.set).start()
    steps.close()
    assert not readers()


def test_the_interpreter_exits_with_an_open_iterator(tmp_path):
    """A script that ends in mid-epoch, fails or is interrupted exits at once, and stops its reader first."""
    place = str(tmp_path / "a")
    zarr.create_array(place, data=np.arange(4000).reshape(1000, 4), chunks=(2, 4))
    imports = (
        "import atexit, os, signal, threading\nimport torch, zarr\n"
        "from rankwise import Order\nfrom rankwise.data.samples import ArraySource\n"
        "from rankwise.testing.shares import loader_of\n"
    )
    script = (
        "atexit.register(lambda: print('left:', [t.name for t in threading.enumerate() if 'rankwise' in t.name]))\n"
        f"source = ArraySource({{'x': {place!r}}}, cache=0)\n"
        "steps = iter(loader_of(source, Order(source, batch_size=100)))\nnext(steps)\n"
    )
    endings = {"": 0, "raise SystemExit(3)": 3, "os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT}
    dones = run_endings(imports, [script + ending for ending in endings])
    for done, (ending, wanted) in zip(dones, endings.items(), strict=True):
        assert done.returncode == wanted, done.stderr
        assert "reader" not in done.stderr
        assert done.stdout == "left: []\n"
        assert ("KeyboardInterrupt" in done.stderr) == ("SIGINT" in ending)


def test_stats_add_up():
    """Steps, samples and chunks are counted as they are handed out."""
    mine = loader(depth=2, micro_batch=3)
    list(mine)
    stats = mine.stats
    assert (stats.steps, stats.samples) == (7, 50)
    assert stats.chunks_decoded == 6 * 3 + 1
    assert stats.fill_chunks == 2 * stats.chunks_decoded
    assert stats.read_s > 0
    assert stats.wait_s > 0


def test_padding_has_weight_zero_and_is_not_counted():
    """With remainder="pad" the last step is full, and its batches count only real samples."""
    order = Order(10, batch_size=8, remainder="pad")
    last = [
        [(len(b), b.count, b.share.weights) for b in list(loaded)[-1]]
        for loaded in (loader(order=order, source=Watched(10), rank=r, world_size=2) for r in range(2))
    ]
    assert sum(size for rank in last for size, _, _ in rank) == 8
    assert sum(count for rank in last for _, count, _ in rank) == 2
    assert sum(weights.sum() for rank in last for _, _, weights in rank) == 2


def test_arguments_are_checked():
    """A depth, fields, a device and an order that cannot be are refused."""
    for depth in (-1, 1.5, True):
        with pytest.raises(ConfigError, match=f"depth, .* must be an integer of at least 0, got {depth}"):
            loader(depth=depth)
    with pytest.raises(ConfigError, match="Watched cannot"):
        loader(fields=["x"])
    with pytest.raises(ConfigError, match="not a device of torch"):
        loader(device="gpu")
    with pytest.raises(ConfigError, match="has 60 samples"):
        loader(order=Order(60, batch_size=8))


def test_what_torch_cannot_hold_is_named():
    """A dtype without a torch counterpart is an error with the field and the ways out; NumPy takes it."""
    source = Watched(50, dtype="f16")
    with pytest.raises(ConfigError, match=r"'x' has dtype (float128|longdouble).*device=None"):
        list(loader(source=source, device="cpu"))
    assert len(list(loader(source=Watched(50, dtype="f16")))) == 7


def test_batches_name_their_fields():
    """An unknown field lists those there are; a batch iterates over their names."""
    steps = iter(loader())
    (batch,) = next(steps)
    assert list(batch) == ["x", "y"]
    assert dict(**batch).keys() == dict(batch).keys() == {"x", "y"}  # as in model(**batch)
    assert "x" in batch
    with pytest.raises(KeyError, match="no field 'z'; it has 'x', 'y'"):
        batch["z"]
    assert "samples=8: x, y" in repr(batch)
    steps.close()


def test_no_thread_survives_this_file():
    """Whatever happened above, no reader is left, and this process may still be interrupted."""
    assert threads_end("rankwise-reader")
    assert os.getpid() > 0
