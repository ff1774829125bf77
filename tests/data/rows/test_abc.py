"""Own samplers."""

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


class Blocks(Sampler):
    """Blocks of ten rows of the mask in random order, without splits; draws from its own generator."""

    def __init__(self, batch_size=4, *, shuffle=True, rng=None, by_number=False):
        self._batch_size, self._shuffle, self._by_number = batch_size, shuffle, by_number
        self.rng = rng

    @property
    def batch_size(self):
        return self._batch_size

    @property
    def shuffle(self):
        return self._shuffle

    def n_batches(self, n_obs):
        sizes = [run.stop - run.start for run in self._runs(n_obs)]
        return sum(-(-size // self._batch_size) for size in sizes)

    def validate(self, n_obs):
        if n_obs < 10:
            raise ValueError("at least ten rows")

    def _runs(self, n_obs):
        start, stop = self.mask.start or 0, n_obs if self.mask.stop is None else self.mask.stop
        return [slice(first, min(stop, first + 10)) for first in range(start, stop, 10)]

    def _sample(self, n_obs):
        runs = self._runs(n_obs)
        for place in self.rng.permutation(len(runs)).tolist() if self._shuffle else range(len(runs)):
            yield {"requests": np.arange(runs[place].start, runs[place].stop) if self._by_number else [runs[place]]}


def batches(sampler, n_obs=43):
    out = []
    for request in sampler.sample(n_obs):
        listed = request["requests"]
        rows = (
            listed if isinstance(listed, np.ndarray) else np.concatenate([np.arange(r.start, r.stop) for r in listed])
        )
        out += [rows[split].tolist() for split in request["splits"]]
    return out


@pytest.mark.parametrize("by_number", [False, True])
def test_requests_without_splits_are_cut(by_number):
    """Into batches of batch_size, shuffled or not, each row once."""
    out = batches(Blocks(rng=0, by_number=by_number))
    assert sorted(row for rows in out for row in rows) == list(range(43))
    assert sorted(map(len, out)) == [2] * 4 + [3] + [4] * 8
    assert len(out) == Blocks().n_batches(43)
    assert batches(Blocks(shuffle=False))[0] == [0, 1, 2, 3]


def test_they_draw_from_their_own_generator():
    """The global one of NumPy is neither used nor needed; seeds reproduce; epochs differ and can be chosen."""
    np.random.seed(0)  # noqa: NPY002
    state = str(np.random.get_state())  # noqa: NPY002
    sampler = Blocks(rng=np.random.default_rng(0))
    passes = [batches(sampler) for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]
    np.random.seed(1)  # noqa: NPY002
    again = Blocks(rng=0)
    again.set_epoch(2)
    assert batches(again) == passes[2]
    np.random.seed(0)  # noqa: NPY002
    assert str(np.random.get_state()) == state  # noqa: NPY002


def test_they_work_on_ranks():
    """The mask is theirs to honour; a generator of its own for each rank, epochs too."""
    ranks = [DistributedSampler(Blocks(5, rng=0), dist_info=lambda r=r: (r, 2)) for r in range(2)]
    first, second = (batches(rank, 100) for rank in ranks)
    assert sorted(row for rows in first for row in rows) == list(range(50))
    assert sorted(row for rows in second for row in rows) == list(range(50, 100))
    again = DistributedSampler(Blocks(5, rng=0), dist_info=lambda: (1, 2))
    again.set_epoch(1)
    assert batches(again, 100) == batches(ranks[1], 100) != second


@pytest.mark.parametrize(("options", "name"), [({"batch_size": None}, "batch_size"), ({"shuffle": None}, "shuffle")])
def test_what_is_needed_to_cut_is_asked_for(options, name):
    """No splits and no batch_size (or shuffle): an error that says so. Validation comes first."""
    with pytest.raises(ValueError, match=f"without splits needs the sampler's {name}, but Blocks has None"):
        batches(Blocks(rng=0, **options))
    with pytest.raises(ValueError, match="at least ten rows"):
        batches(Blocks(rng=0), 9)
    with pytest.raises(TypeError, match="mask must be a slice"):
        Blocks().mask = [1, 2]


@pytest.mark.parametrize(
    ("wrong", "came"), [({"request": [slice(0, 4)]}, r"keys \['request'\]"), ([slice(0, 4)], "list")]
)
def test_what_is_no_request_is_named(wrong, came):
    """A key that is misspelt, or a list of slices, says what a request looks like."""

    class Odd(Blocks):
        def _sample(self, n_obs):
            yield wrong

    with pytest.raises(TypeError, match=rf"_sample of Odd must yield load requests, LoadRequest\(.*; got {came}"):
        next(Odd().sample(20))
    with pytest.raises(TypeError, match=r"batch_sampler must be a sampler .* got list"):
        Loader(batch_sampler=[wrong])


def test_samplers_and_loaders_say_what_they_are(tmp_path):
    """What a notebook prints tells the rows, the size of a batch and the steps that are left."""
    sampler = RandomSampler(8, 4, 16, mask=slice(5, 20))
    assert repr(sampler) == "RandomSampler(rows 5:20, batch_size=16, shuffle=True)"
    source = RowSource(write_anndata(small_anndata(20), tmp_path / "a.zarr"))
    text = repr(OrderedLoader(source, order=Order(source, batch_size=8)))
    assert text == f"OrderedLoader(3 steps to the end of the epoch; {source!r})"
