"""A `SampleLoader` inside torch's DataLoader: the batches of a plain loop, whoever reads them."""

import logging
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from rankwise import Order
from rankwise._process.loader_worker import LoaderWorker, current_worker
from rankwise.data.contract import FieldSpec, ReadReport
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreeSource

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]


class Plan:
    num_chunks = read_bytes = decode_bytes = 0

    def __init__(self, share):
        self.share, self.capacity = share, {}


class Samples(FreeSource):
    """Functions of id and epoch, of any number."""

    fingerprint = "samples"
    chunk_samples = 1
    stateless = True

    def __init__(self, num_samples=50, *, damaged=(), together=False):
        self.num_samples, self.damaged, self.group_steps = num_samples, damaged, together
        self.fields = {"x": FieldSpec(shape=(2,), dtype=np.dtype("i8"))}
        self.kill_at = None

    def plan(self, share):
        return Plan(share)

    def hint(self, plan):
        pass

    def read(self, plan, into):
        ids, epoch = plan.share.ids, plan.share.step.epoch
        if self.kill_at in ids:
            os.kill(os.getpid(), signal.SIGKILL)
        into.reserve(self.fields, len(ids), {})
        into.arrays("x")[0][:] = np.stack([ids, ids * (epoch + 1)], axis=1)
        bad = np.isin(ids, list(self.damaged))
        broken = [(f"sample {i} is broken", i) for i in ids[bad].tolist()]
        errors = tuple(SampleError(text, sample=i, place="p", damage=True) for text, i in broken)
        return ReadReport(valid=~bad, errors=errors)


def loader(source=None, *, batch_size=8, kind=None, device="cpu", **options):
    source = source or Samples()
    order = Order(source.num_samples, batch_size=batch_size, kind=kind)
    return loader_of(source, order, device=device, **options)


def inside(mine, num_workers=2, *, batch_size=None, **options):
    if num_workers:
        options.setdefault("multiprocessing_context", "fork")
    return DataLoader(mine.as_dataset(), batch_size=batch_size, num_workers=num_workers, **options)


def told(batches):
    """All that a step brings."""
    step = batches[0].share.step
    each = [(batch.ids.tolist(), batch.key.tolist(), np.asarray(batch["x"]).tolist()) for batch in batches]
    return step.epoch, step.index, each, batches[-1].resume


def shown(batches, *, steps=None, marking=None):
    found = []
    for step in batches:
        found.append(told(step))
        if marking is not None:
            marking.mark_done(step[-1].resume)
        if len(found) == steps:
            break
    return found


def epochs(numbers, **options):
    """The plain loop."""
    mine, found = loader(**options), []
    for number in numbers:
        mine.set_epoch(number)
        found.append(shown(mine))
    return found


OPTIONS = {
    "batch_size": st.integers(1, 12),
    "micro_batch": st.none() | st.integers(1, 3),
    "depth": st.integers(0, 5),
    "kind": st.sampled_from(["shuffle", "sequential"]),
    "device": st.sampled_from(["cpu", None]),
}


@settings(max_examples=12, deadline=None)
@given(options=st.fixed_dictionaries(OPTIONS), data=st.data())
def test_the_batches_of_a_plain_loop(options, data):
    """Bytes, ids, keys and order, whatever the sizes, the rank, the workers and the depth; epoch after epoch."""
    num_samples, start = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 2))
    rank, world_size = data.draw(st.sampled_from([(0, 1), (1, 2), (2, 3)]))
    options |= {"rank": rank, "world_size": world_size}
    later = start if options["kind"] == "sequential" else start + 1  # held-out data stay as they are
    plain = epochs([start, later], source=Samples(num_samples), **options)
    mine = loader(source=Samples(num_samples, together=data.draw(st.booleans())), **options)
    mine.set_epoch(start)
    num_workers = data.draw(st.integers(0, 3))
    batches = inside(mine, num_workers, persistent_workers=num_workers > 0 and data.draw(st.booleans()))
    assert len(batches) == len(plain[0])
    assert [shown(batches), shown(batches)] == plain


@pytest.mark.parametrize(("num_workers", "stay"), [(0, False), (2, False), (2, True)])
def test_epochs_and_positions(num_workers, stay):
    """`set_epoch` and `mark_done` of this process are heard, inside an epoch too; without them the next epoch comes."""
    plain = epochs([0, 1, 2, 3, 4])
    mine = loader()
    batches = inside(mine, num_workers, persistent_workers=stay)
    assert shown(batches, steps=3, marking=mine) == plain[0][:3]
    assert mine.state_dict()["position"] == 24
    assert len(mine) == 4
    assert shown(batches, marking=mine) == plain[0][3:]
    assert shown(batches, steps=2) == plain[1][:2]  # left, nothing marked: never the same order again
    assert shown(batches) == plain[2]
    assert mine.state_dict() == mine.order.start(2).to_json()
    mine.set_epoch(4)
    assert shown(batches) == plain[4]
    mine.set_epoch(4)  # asked for once more
    assert shown(batches, steps=5, marking=mine) == plain[4][:5]
    state = mine.state_dict()
    other = loader()
    other.load_state_dict(state)
    assert shown(inside(other, num_workers)) == plain[4][5:]


def test_the_same_seed_of_torch_does_not_repeat_an_epoch():
    """Workers of two DataLoaders that draw the same base seed are not taken for one another."""
    mine, found = loader(), []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(shown(inside(mine)))
    assert found == epochs([0, 1, 2])


def test_another_order_is_refused_by_workers_that_stay():
    """They cannot know lanes that were taken over from a saved order later; workers that begin anew do."""
    mine = loader(Samples(80), batch_size=16)
    state = loader(Samples(80), batch_size=4).state_dict()
    assert state["recipe"] != mine.state_dict()["recipe"]
    stay, anew = inside(mine, 1, persistent_workers=True), inside(mine, 1)
    next(iter(stay))
    mine.load_state_dict(state)
    with pytest.raises(ConfigError, match="before the first epoch of the DataLoader, or use persistent_workers=False"):
        list(stay)
    assert sorted(i for batches in anew for i in batches[0].ids) == list(range(80))


def test_batches_stay_when_the_loop_goes_on():
    """What workers hand over owns its memory: it is not filled again, and `release` does nothing."""
    kept = [batches[0] for batches in inside(loader())]
    for batch in kept:
        batch.release()
    assert [batch["x"][:, 0].tolist() for batch in kept] == [batch.ids.tolist() for batch in kept]


def doubled(fields, keys):
    assert current_worker() is not None
    return {"twice": fields["x"] * 2, "x": fields["x"], "keys": keys}


def one_row(fields, key):
    return {"x": fields["x"] + key % 7}


def test_transforms_run_in_the_workers():
    """Of samples and of batches, with the keys that they have everywhere."""
    for batches in inside(loader(batch_transform=doubled, transform=one_row)):
        (batch,) = batches
        assert torch.equal(batch["twice"], batch["x"] * 2)
        assert batch["keys"].tolist() == batch.key.tolist()
        assert (batch["x"][:, 0].numpy() == batch.ids + batch.key % 7).all()


CONSTANT = torch.arange(3)


def with_constant(fields, keys):
    fields["constant"] = CONSTANT
    return fields


def test_what_a_batch_transform_adds_in_place_stays_its_own():
    """A tensor that it hands out with every batch is copied for each: changing one batch changes no later one."""
    for ((batch,),) in zip(inside(loader(batch_transform=with_constant), num_workers=1), strict=True):
        assert batch["constant"].tolist() == [0, 1, 2]
        batch["constant"].add_(1)


def test_an_iteration_under_way_does_not_stop_workers():
    """Threads, locks and buffers of this process are not those of a forked one, wherever its loop is."""
    mine = loader(depth=3)
    passing = iter(mine)
    next(passing)
    assert [step[0].share.step.epoch for step in inside(mine)] == [0] * 7
    assert len(list(passing)) == 6
    assert [step[0].share.step.epoch for step in inside(mine)] == [1] * 7


def test_damage_arrives_as_it_is_without_workers():
    """The error with its sample, behind the steps before it; budgets hold for all workers together."""
    damaged = {3, 11, 29}
    with pytest.raises(SampleError, match=r"sample \d+ is broken"):
        list(inside(loader(Samples(damaged=damaged))))
    batches = list(inside(loader(Samples(damaged=damaged), on_bad_sample=3)))
    assert sorted(i for step in batches for i in step[0].ids) == sorted(set(range(50)) - damaged)
    assert sum(step[0].num_lost for step in batches) == 3
    assert all(step[0].may_skip for step in batches)
    with pytest.raises(SampleError, match="has skipped 2 damaged samples before"):
        list(inside(loader(Samples(damaged=damaged), on_bad_sample=2)))


def test_a_worker_that_is_killed_ends_the_epoch():
    """Torch says so, or finds the end of the socket that it takes a tensor from; nothing hangs."""
    source = Samples()
    source.kill_at = 30
    with pytest.raises((RuntimeError, EOFError, ConnectionError)) as caught:
        list(inside(loader(source)))
    if caught.type is RuntimeError:
        assert re.search(r"DataLoader worker .*(killed by signal|exited unexpectedly)", str(caught.value))


def test_a_batch_size_of_its_own():
    """1, which is torch's own choice where none is given, changes nothing; more is refused with the mend."""
    plain = epochs([0])[0]
    for num_workers in (0, 1):
        assert shown(inside(loader(), num_workers, batch_size=1)) == plain
        with pytest.raises(ValueError, match="a loader's steps are batches already, but 2 of them"):
            list(inside(loader(), num_workers, batch_size=2))


def named(batches):
    return current_worker().number, int(os.environ["STARTED"]), batches[0].share.step.index


def note(number):
    os.environ["STARTED"] = str(number)


def test_workers_take_turns():
    """Worker w reads the steps w, w + W, ...; `collate_fn`, `prefetch_factor` and `worker_init_fn` work."""
    options = {"collate_fn": named, "prefetch_factor": 3, "worker_init_fn": note}
    assert list(inside(loader(), 3, **options)) == [(index % 3, index % 3, index) for index in range(7)]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_pinning_without_an_accelerator():
    """It changes nothing, as torch says."""
    assert shown(inside(loader(), pin_memory=True)) == epochs([0])[0]


def test_full_length_counts_whole_epochs():
    """Also behind a resumed position; what this process marks is heard through it."""
    mine = loader()
    mine.load_state_dict(mine.order.state_at(epoch=1, position=16).to_json())
    whole = mine.with_full_length()
    batches = inside(whole)
    assert len(batches) == 7
    assert shown(batches, marking=whole) == epochs([1])[0][2:]
    assert shown(batches) == epochs([2])[0]


def test_a_device_is_left_alone_by_workers(caplog):
    """Batches come in the CPU's memory, said once by the first worker; `to` moves them."""
    mine = loader(device="meta")
    with caplog.at_level(logging.WARNING, logger="rankwise.data"):
        mine._enter(LoaderWorker(number=0, count=2, salt=1))
        mine._enter(LoaderWorker(number=0, count=2, salt=1))
        loader(device="meta")._enter(LoaderWorker(number=1, count=2, salt=1))
    assert caplog.text.count("do not use meta: batches are in CPU memory; batch.to('meta') moves one") == 1
    ((batch,), *_) = list(inside(loader(device="meta"), 1))
    assert batch["x"].device.type == "cpu"
    assert batch.to("meta")["x"].device.type == "meta"


def test_arrays_of_jax_are_refused(monkeypatch):
    """In a worker and when pickled, with the mend."""
    mine = loader(device="jax")
    with pytest.raises(ConfigError, match="can neither read in workers nor be pickled: use num_workers=0"):
        mine.__reduce__()
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: SimpleNamespace(id=0, num_workers=1, seed=7))
    with pytest.raises(ConfigError, match="or device=None for NumPy arrays and convert those with JAX"):
        list(mine)


def test_indexing_is_refused():
    """With what to do instead."""
    with pytest.raises(ConfigError, match=r"iterated, not indexed: .* DataLoader\(loader.as_dataset\(\), "):
        _ = loader()[0]


WITHOUT_TORCH = """
import sys
import numpy as np
from rankwise import Order
from rankwise.data.contract import BaseSource, FieldSpec
from rankwise.data.samples import SampleLoader

class Nothing(BaseSource):
    fingerprint, chunk_samples, num_samples = "nothing", 1, 9
    fields = {"x": FieldSpec(shape=(), dtype=np.dtype("i8"))}
    plan = read = None

mine = SampleLoader(Nothing(), order=Order(9, batch_size=3), device=None)
assert "torch" not in sys.modules
from torch.utils.data import DataLoader
try:
    list(DataLoader(mine, batch_size=None))
except ValueError as error:
    print(error)
print(len(DataLoader(mine.as_dataset(), batch_size=None)))
"""


def test_torch_is_not_loaded_for_this():
    """NumPy batches need none; a DataLoader takes the loader as a dataset, whenever torch was imported."""
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=240, check=False
    )
    assert "DataLoader(loader.as_dataset(), batch_size=None)\n3\n" in told.stdout, told.stderr


def test_a_break_leaves_no_worker_behind():
    """The processes end with the iteration."""
    steps = iter(inside(loader(), 2))
    next(steps)
    workers = steps._workers
    assert [worker.is_alive() for worker in workers] == [True, True]
    del steps
    for worker in workers:  # torch waits for five seconds, then kills and waits no more
        worker.join(60)
    assert [worker.is_alive() for worker in workers] == [False, False]
