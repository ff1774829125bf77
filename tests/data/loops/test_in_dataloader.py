"""Every loader of an order inside torch's DataLoader: crops, samples of arrays and rows."""

import itertools

import numpy as np
import pytest
import zarr
from torch.utils.data import DataLoader

from rankwise import Order
from rankwise.data.crops import CropIndex, IndexPipeline
from rankwise.data.rows import OrderedLoader
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.row_stores import make_stores

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def loaders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    values = np.arange(20 * 30 * 40, dtype="u2").reshape(20, 30, 40)
    zarr.create_array(str(folder / "volume.zarr"), data=values, chunks=(5, 10, 10), shards=(10, 30, 40))
    places = make_stores(folder, (53, 40)).places

    def crops():
        index = CropIndex(str(folder / "volume.zarr"), shape=(4, 8, 8))
        return IndexPipeline(index, order=Order(index, batch_size=7), micro_batch=3, world=RankPlace())

    def samples():
        source = ArraySource({"image": values})
        return SampleLoader(source, order=Order(source, batch_size=3), world=RankPlace())

    def rows():
        return OrderedLoader(places, order=Order(places, batch_size=9), dense=True, obs=["n"], world=RankPlace())

    return {"crops": crops, "samples": samples, "rows": rows}


def shown(batches):
    return [[(b.share.step.epoch, b.ids.tolist(), {name: b[name].tolist() for name in b}) for b in s] for s in batches]


def plain(loader):
    found = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        found.append(shown(loader))
    return found


KINDS = ["crops", "samples", "rows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_workers_bring_the_plain_loop(loaders, kind, method):
    """Two epochs, the second unasked: bytes, ids and order; a plain loop of this process goes on meanwhile."""
    alone = plain(loaders[kind]())
    loader = loaders[kind]()
    passing = iter(loader)
    next(passing)
    batches = DataLoader(loader.as_dataset(), batch_size=None, num_workers=2, multiprocessing_context=method)
    assert [shown(batches), shown(batches)] == alone
    assert len(list(passing)) == len(alone[0]) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_workers_resumes(loaders, kind):
    """Left in mid-epoch with two workers, continued with none, then with one: each step of two epochs once."""
    whole = [step for epoch in plain(loaders[kind]()) for step in epoch]
    found, state = [], None
    for num_workers, until in ((2, 3), (0, 5), (1, len(whole))):
        loader = loaders[kind]()
        if state is not None:
            loader.load_state_dict(state)
        context = "fork" if num_workers else None
        dataset = loader.as_dataset()
        batches = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=context)
        while len(found) < until:  # the rest of an epoch, or a part of it
            for step in itertools.islice(batches, until - len(found)):
                found += shown([step])
                loader.mark_done(step[-1].resume)
        state = loader.state_dict()
    assert found == whole
    assert (state["epoch"], state["position"]) == (2, 0)
