"""The first load request of a pass is read before the pass begins, and nobody can tell but by the clock."""

from itertools import chain

import numpy as np
import pytest
import torch
import zarr

from rankwise.data.rows import Loader
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler, SequentialSampler
from rankwise.errors import SampleError
from rankwise.testing.new_threads import threads_end
from rankwise.testing.stores.hundred_rows import hundred_obs, loader_of_hundred, rows_of

SAMPLERS = {
    "random": lambda: RandomSampler(5, 4, 10, rng=0),
    "unseeded": lambda: RandomSampler(5, 4, 10),
    "sequential": lambda: SequentialSampler(5, 4, 10),
    "rank": lambda: DistributedSampler(RandomSampler(5, 4, 10, rng=0), dist_info=lambda: (1, 2)),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_first_request_is_there_when_it_is_asked_for(hundred, reads, kind):
    """Read before the first pass, once however often it is called; the pass takes it over, and reads the others."""
    loader = loader_of_hundred(hundred, SAMPLERS[kind](), across_epochs=False)
    for _ in range(2):
        assert loader.start_prefetch()
        assert threads_end("rankwise-reader")
        assert len(reads) == 1
    shown = rows_of(loader)
    assert [*chain.from_iterable(reads)] == [*chain.from_iterable(shown)]
    assert len(reads) == -(-len(shown) // 2)  # batches of half a request


def test_between_passes_it_is_read_already(hundred, reads):
    """Behind a pass that read on over its end the call finds what it would read."""
    loader = loader_of_hundred(hundred)
    rows_of(loader)
    assert threads_end("rankwise-reader")
    assert len(reads) == 6
    assert loader.start_prefetch()
    assert threads_end("rankwise-reader")
    assert len(reads) == 6
    rows_of(loader)
    assert threads_end("rankwise-reader")
    assert len(reads) == 11


CHANGES = {
    "epoch": lambda loader: loader.set_epoch(3),
    "mask": lambda loader: setattr(loader.batch_sampler, "mask", slice(30, 100)),
    "generator": lambda loader: setattr(loader.batch_sampler, "rng", 7),
    "draw": lambda loader: loader.batch_sampler.rng.random(),
}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_asked_for_is_dropped(hundred, reads, change, again):
    """The pass is what it is without, generator and all; one more call reads what it begins with now."""
    with_it, without = loader_of_hundred(hundred, across_epochs=False), loader_of_hundred(hundred, across_epochs=False)
    assert with_it.start_prefetch()
    assert threads_end("rankwise-reader")
    for loader in (with_it, without):
        CHANGES[change](loader)
    if again:
        assert with_it.start_prefetch()
        assert threads_end("rankwise-reader")
    states = [loader.batch_sampler.rng.bit_generator.state for loader in (with_it, without)]
    assert states[0] == states[1]
    num_early = len(reads)
    assert num_early == 1 + again
    shown = rows_of(with_it)
    num_read = len(reads) - num_early
    assert shown == rows_of(without)
    assert num_read + again == len(reads) - num_early - num_read


def test_a_pass_that_goes_on_in_its_middle(hundred, reads):
    """After a position was loaded the first request is the one that holds it, without the batches before it."""
    first = loader_of_hundred(hundred, across_epochs=False)
    shown = rows_of(batch for _, batch in zip(range(3), first, strict=False))
    state = first.state_dict()
    later = loader_of_hundred(hundred, across_epochs=False)
    later.load_state_dict(state)
    reads.clear()
    assert later.start_prefetch()
    assert threads_end("rankwise-reader")
    assert [len(rows) for rows in reads] == [10]
    assert shown + rows_of(later) == rows_of(loader_of_hundred(hundred))
    assert [len(rows) for rows in reads[:4]] == [10, 20, 20, 20]


def test_data_that_are_added_later(hundred, reads):
    """What was read of the others is forgotten, even where the pass begins with the same rows."""
    loader = loader_of_hundred(hundred, SequentialSampler(5, 4, 10), across_epochs=False)
    assert loader.start_prefetch()
    assert threads_end("rankwise-reader")
    loader.add_dataset(zarr.open_array(hundred, mode="r"), obs=hundred_obs())
    assert [*chain.from_iterable(batch["index"].tolist() for batch in loader)] == list(range(200))
    assert threads_end("rankwise-reader")
    assert [rows[0] for rows in reads] == [0, *range(0, 200, 20)]


@pytest.mark.parametrize("why", ["own", "memory", "under way", "empty", "impossible"])
def test_where_nothing_is_read_early(hundred, reads, why):
    """Samplers that others wrote, data in memory or none, beside a pass, and before one that fails; it answers so."""

    class Own(RandomSampler):
        pass

    if why == "memory":
        loader = Loader(batch_sampler=RandomSampler(5, 4, 10)).add_dataset(np.zeros((100, 6)))
    elif why == "empty":
        loader = Loader(batch_sampler=RandomSampler(5, 4, 10))
    else:
        samplers = {"own": Own(5, 4, 10), "impossible": RandomSampler(5, 4, 10, num_samples=101)}
        loader = loader_of_hundred(hundred, samplers.get(why))
    batches = iter(loader)
    if why == "under way":
        next(batches)
    assert not loader.start_prefetch()
    batches.close()
    assert threads_end("rankwise-reader")
    assert len(reads) <= 3 if why == "under way" else not reads


def test_damage_waits_for_the_pass(tmp_path):
    """It is told by the pass that meets it, each time, and by no other."""
    array = zarr.create_array(str(tmp_path / "X"), data=np.arange(600, dtype="f4").reshape(100, 6), chunks=(10, 6))
    (tmp_path / "X" / "c" / "0" / "0").write_bytes(b"broken")
    loader = Loader(batch_sampler=SequentialSampler(5, 4, 10), across_epochs=False).add_dataset(array)
    for _ in range(2):
        assert loader.start_prefetch()
        assert threads_end("rankwise-reader")
        with pytest.raises(SampleError, match="is damaged"):
            list(loader)
    assert loader.start_prefetch()
    loader.batch_sampler.mask = slice(20, 100)
    assert len(list(loader)) == 8


def test_a_loader_that_is_forgotten_leaves_nothing(hundred, reads):
    """Its thread ends with it, when the request is read."""
    loader = loader_of_hundred(hundred)
    assert loader.start_prefetch()
    del loader
    assert threads_end("rankwise-reader")
    assert len(reads) <= 1


def test_workers_read_for_themselves(hundred, reads):
    """What the parent began is no matter to workers that are forked behind it; their rows are those of an epoch."""
    loader = loader_of_hundred(hundred)
    assert loader.start_prefetch()
    workers = torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert sorted(chain.from_iterable(batch["index"].tolist() for batch in workers)) == list(range(100))
    assert threads_end("rankwise-reader")
    assert len(reads) == 1
