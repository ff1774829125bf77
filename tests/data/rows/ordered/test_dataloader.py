"""Rows in order inside torch's DataLoader: spawned, forked, on ranks, and in Lightning."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from rankwise import Order
from rankwise.data.rows import OrderedLoader, RowSource, log1p_cpm
from rankwise.testing import run_ranks
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.row_stores import NUM_COLS, make_stores
from rankwise.testing.stores.small_rows import csr_parts
from rankwise.train import ExactStep
from rankwise.world import World

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores
]
FIELDS = {"matrices": ("X", "layers/counts", "obsm/pca"), "obs": ("n", "donor")}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"), (53, 40)).places


def ordered(places, *, world=None, **options):
    options = {**FIELDS, "micro_batch": 4, **options}
    order = Order(RowSource(places), batch_size=10)
    return OrderedLoader(places, order=order, world=world or RankPlace(), **options)


def arrays_of(field):
    """The bytes of a field, of torch, NumPy or SciPy."""
    return [np.asarray(part).tobytes() for part in csr_parts(field) or (field,)]


def told(batches):
    """All that a step brings, to the byte."""
    each = [(b.ids.tolist(), b.key.tolist(), b.count, {name: arrays_of(b[name]) for name in b}) for b in batches]
    return batches[0].share.step.epoch, batches[0].share.step.index, each, batches[-1].resume


def epochs(numbers, loader):
    found = []
    for number in numbers:
        loader.set_epoch(number)
        found.append([told(batches) for batches in loader])
    return found


def shown(batches, *, steps=None, marking=None):
    found = []
    for step in batches:
        found.append(told(step))
        if marking is not None:
            marking.mark_done(step[-1].resume)
        if len(found) == steps:
            break
    return found


@pytest.mark.parametrize(
    ("method", "num_workers"),
    [
        ("spawn", 1),  # each loads torch anew
        pytest.param("spawn", 2, marks=pytest.mark.slow),
        pytest.param("forkserver", 2, marks=pytest.mark.slow),
    ],
)
def test_workers_that_are_started_anew_bring_the_plain_loop(places, method, num_workers):
    """The loader travels; each epoch is another; positions inside one and chosen epochs reach workers that stay."""
    plain = epochs(range(4), ordered(places))
    loader = ordered(places)
    batches = DataLoader(
        loader.as_dataset(),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    assert len(batches) == 10
    assert shown(batches) == plain[0]
    assert shown(batches, steps=4, marking=loader) == plain[1][:4]
    assert shown(batches, marking=loader) == plain[1][4:]
    loader.set_epoch(3)
    assert shown(batches) == plain[3]


CASES = {
    "sparse": {},
    "dense": {"dense": True},
    "numpy": {"device": None},
    "genes, changed": {"genes": ["gene7", "gene3"], "matrices": ("X",), "batch_transform": log1p_cpm},
    "read in this thread": {"depth": 0},
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_batch_travels(places, case):
    """Tensors, sparse ones, arrays and matrices of SciPy, with what was made of them while they were read."""
    plain = epochs([0], ordered(places, **CASES[case]))
    loader = ordered(places, **CASES[case])
    assert (
        shown(DataLoader(loader.as_dataset(), batch_size=None, num_workers=3, multiprocessing_context="fork"))
        == plain[0]
    )


def drawn(places, **options):
    order = Order(places, batch_size=16, mix=[0.4, 0.6], balance="kind")
    return OrderedLoader(places, order=order, world=RankPlace(), obs=["n"], **options)


def test_drawn_rows_are_the_same(places):
    """Mixed and balanced: which rows are drawn follows from the epoch in workers too."""
    plain = epochs([0, 1], drawn(places))
    batches = DataLoader(drawn(places).as_dataset(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert [shown(batches), shown(batches)] == plain


def of_a_rank(world, places):
    """What this rank sees without workers, and with two."""
    loader = ordered(places, world=world)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forks of a process that has threads
        batches = DataLoader(loader.as_dataset(), batch_size=None, num_workers=2, multiprocessing_context="fork")
        found = [shown(batches), shown(batches)]
    rows = [row for _, _, each, _ in found[0] for ids, *_ in each for row in ids]
    return epochs([0, 1], ordered(places, world=world)) == found, rows


def test_real_ranks_with_workers_each(places):
    """Workers know the rank that they read for and open no process group; the ranks see each row once together."""
    (same_0, rows_0), (same_1, rows_1) = run_ranks(of_a_rank, 2, places)
    assert same_0
    assert same_1
    assert sorted(rows_0 + rows_1) == list(range(93))


def summed(model, batch):
    return model(batch["X"]).square().sum(1), {}


def trained(places, num_workers):
    """Weights after an epoch, and where the loader stands."""
    loader = ordered(places, dense=True, dtype="f4", matrices=("X",))
    context = "fork" if num_workers else None
    batches = DataLoader(loader.as_dataset(), batch_size=None, num_workers=num_workers, multiprocessing_context=context)
    model = torch.nn.Linear(NUM_COLS, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    take = ExactStep(model, torch.optim.SGD(model.parameters(), lr=1e-6), summed, world=World.current())
    for steps in batches:
        loader.mark_done(take(steps).resume)
    return model.weight.detach(), loader.state_dict()


def test_training_is_the_same(places):
    """The exact step takes what workers bring; weights are those without workers to the bit, and the epoch is done."""
    (alone, _), (weights, state) = trained(places, 0), trained(places, 2)
    assert torch.equal(weights, alone)
    assert not torch.equal(weights, torch.ones_like(weights))
    assert (state["epoch"], state["position"]) == (1, 0)
