import inspect
import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from rankwise import Order
from rankwise.data.contract import Stateful
from rankwise.data.order import BatchSampler
from rankwise.errors import ConfigError


@given(
    size=st.integers(1, 400),
    batch=st.integers(1, 90),
    world=st.integers(1, 12),
    micro=st.one_of(st.none(), st.integers(1, 9)),
    epoch=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_lists_cover_the_epoch_once_or_are_refused(size, batch, world, micro, epoch):
    """Promise 2: over ranks the lists hold each id once, all are full enough to collate; else every rank refuses."""
    order = Order(size, batch_size=batch, chunk_samples=3)
    samplers = [BatchSampler(order, rank=rank, world_size=world, micro_batch=micro) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    empty = any(not len(share.ids) for sampler in samplers for _, parts in sampler.steps() for share in parts)
    if empty:
        for sampler in samplers:
            sampler.set_epoch(epoch + 1)
            with pytest.raises(ConfigError, match=r"empty.*DatasetLoader"):
                iter(sampler)
        return
    lists = []
    for sampler in samplers:
        fresh = BatchSampler(order, rank=sampler.rank, world_size=world, micro_batch=micro)
        fresh.set_epoch(epoch)
        announced = len(fresh)
        lists.append(list(fresh))
        assert len(lists[-1]) == announced
    assert len({len(each) for each in lists}) == 1
    assert sorted(i for each in lists for ids in each for i in ids) == list(range(size))
    assert all(1 <= len(ids) <= (micro or batch) for each in lists for ids in each)


def test_the_refusal_shows_the_arithmetic_and_the_mends():
    """A tail too small for the ranks is refused before the first step, not at the last."""
    sampler = BatchSampler(Order(103, batch_size=20), rank=0, world_size=4)
    with pytest.raises(
        ConfigError, match=r"last step.*3 samples for 4 ranks.*3 // 4 = 0.*drop.*batch_size.*DatasetLoader"
    ):
        iter(sampler)
    assert len(list(BatchSampler(Order(103, batch_size=20, remainder="drop"), rank=0, world_size=4))) == 5
    assert len(list(BatchSampler(Order(103, batch_size=20, remainder="pad"), rank=0, world_size=4))) == 6
    with pytest.raises(ConfigError, match="a full step has 3 samples for 4 ranks") as caught:
        iter(BatchSampler(Order(12, batch_size=3), rank=0, world_size=4))
    assert "drop" not in str(caught.value)
    with pytest.raises(ConfigError, match="cut into 2 micro-batches of at most 1"):
        iter(BatchSampler(Order(50, batch_size=5), rank=0, world_size=4, micro_batch=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_does_not_move_the_state(workers):
    """Promise 5: a DataLoader with 2 workers that pulls 4 lists ahead; only what was marked counts after a restart."""
    order = Order(300, batch_size=24, chunk_samples=5)
    seen = []
    sampler = BatchSampler(order, rank=1, world_size=2, micro_batch=6)
    options = {"prefetch_factor": 4, "multiprocessing_context": "spawn"} if workers else {}
    loader = DataLoader(range(300), batch_sampler=sampler, num_workers=workers, **options)
    for i, batch in enumerate(loader):
        seen.append(batch.tolist())
        sampler.mark_done(i + 1)
        if i == 8:
            break
    # 9 lists are 4 whole steps and half of a fifth, which is shown again.
    state = json.loads(json.dumps(sampler.state_dict()))
    assert state["position"] == 4 * 24
    again = BatchSampler(Order(300, batch_size=30, chunk_samples=5), rank=0, world_size=1)
    again.load_state_dict(state)
    rest = [ids for step in again for ids in step]
    assert sorted(rest) == sorted(order.ids(np.arange(96, 300), 0).tolist())
    assert seen[:8] == list(BatchSampler(order, rank=1, world_size=2, micro_batch=6))[:8]


def test_marks_follow_the_steps_at_every_count():
    """`mark_done(n)` for each n of lists taken equals the state after as many whole steps; too many is an error."""
    order = Order(100, batch_size=16)
    for micro in (None, 3):
        sampler = BatchSampler(order, rank=0, world_size=2, micro_batch=micro)
        states, ends = [order.start()], [0]
        for step, parts in sampler.steps():
            states.append(step.resume)
            ends.append(ends[-1] + len(parts))
        for taken in range(ends[-1] + 1):
            sampler = BatchSampler(order, rank=0, world_size=2, micro_batch=micro)
            iter(sampler)
            sampler.mark_done(taken)
            whole = max(i for i, end in enumerate(ends) if end <= taken)
            assert sampler.state_dict() == states[whole].to_json()
        for taken in (ends[-1] + 1, -1):
            with pytest.raises(ConfigError, match=f"has {ends[-1]} lists"):
                sampler.mark_done(taken)


def test_epochs_follow_each_other():
    """Marked or not, an iteration that ran to its end is followed by the next epoch; a broken one starts over."""
    order = Order(40, batch_size=8)
    one_epoch = list(BatchSampler(order))
    sampler = BatchSampler(order)
    first, second = list(sampler), list(sampler)
    assert first == one_epoch
    assert first != second
    assert sorted(i for ids in second for i in ids) == list(range(40))
    marked = BatchSampler(order)
    for i, _ in enumerate(marked):
        marked.mark_done(i + 1)
    assert marked.state_dict() == order.start(1).to_json()
    assert list(marked) == second
    broken = BatchSampler(order)
    next(iter(broken))
    assert list(broken) == first


def test_marks_after_the_pull_has_ended_count():
    """When prefetching has pulled the whole epoch and the caller stops early, the marks decide where to go on."""
    order = Order(40, batch_size=8)
    sampler = BatchSampler(order)
    pulled = list(sampler)
    sampler.mark_done(2)
    assert list(sampler) == pulled[2:]


def test_set_epoch_keeps_the_position_inside_the_epoch():
    """The usual loop calls set_epoch each epoch, also right after a resume: nothing is shown twice."""
    order = Order(40, batch_size=8)
    sampler = BatchSampler(order)
    sampler.load_state_dict(order.step(order.start(3)).resume.to_json())
    sampler.set_epoch(3)
    assert len(sampler) == 4
    sampler.set_epoch(1)
    assert list(sampler) == list_of_epoch(order, 1)
    sampler.set_epoch(1)
    assert list(sampler) == list_of_epoch(order, 1)


def list_of_epoch(order, epoch):
    sampler = BatchSampler(order)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_steps_give_ids_weights_and_resume():
    """`steps` yields each step with this rank's shares, empty ones too, and its resume state marks it."""
    order = Order(21, batch_size=10)
    sampler = BatchSampler(order, rank=2, world_size=3)
    sizes = []
    for step, (share,) in sampler.steps():
        sizes.append(share.num_samples)
        sampler.mark_done(step.resume)
        assert sampler.state_dict() == step.resume.to_json()
    assert sizes == [4, 4, 1]
    assert len(list(sampler.steps())) == 3


def test_a_foreign_state_is_refused():
    """Another order's state neither loads nor marks."""
    sampler = BatchSampler(Order(40, batch_size=8))
    for state in (Order(41, batch_size=8).start(), Order(40, batch_size=8, seed=3).start()):
        with pytest.raises(ConfigError, match=r"differ|seed"):
            sampler.load_state_dict(state.to_json())
        with pytest.raises(ConfigError, match=r"differ|seed"):
            sampler.mark_done(state)
    assert isinstance(sampler, Stateful)


@pytest.mark.parametrize(("rank", "world", "micro"), [(2, 2, None), (-1, 2, None), (0, 0, None), (0, 1, 0)])
def test_a_place_outside_the_world_is_refused(rank, world, micro):
    """Rank, world size and micro-batch are checked when the sampler is made."""
    with pytest.raises(ConfigError, match=r"rank|micro_batch"):
        BatchSampler(Order(10, batch_size=2), rank=rank, world_size=world, micro_batch=micro)


def test_it_is_plain_python():
    """Lists of ints, no torch in the module: any loader that takes a batch sampler can use it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (ids, *_) = BatchSampler(Order(10, batch_size=5))
    assert isinstance(ids, list)
    assert {type(i) for i in ids} == {int}
    assert "torch" not in inspect.getsource(BatchSampler).replace("torch's", "")
