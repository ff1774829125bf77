"""The row that arrives is the row of that index: matrix and obs alike, through every way of loading."""

import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.output.sharded import write_sharded
from rankwise.data.rows.samplers import (
    ClassSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedClassSampler,
)
from rankwise.errors import ConfigError
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.small_rows import write_anndata

LAYOUTS = ("plain", "sharded", "elements", "rows", "dense", "dense v2")
BRICK_SIZES = (1, 2, 7, 19, 40, 64)
NUM_COLS = 9
DTYPES = ("f4", "u2", "f8", "i4", "u1", "f4")
KINDS = {"sparse": LAYOUTS[:4], "dense": LAYOUTS[4:]}
SIZES = [(4, 4, 4), (1, 8, 8), (8, 2, 16), (5, 3, 1), (3, 8, 6)]
quickly = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@dataclass(frozen=True, eq=False, repr=False)
class Bricks:
    """Six stores of 1 to 64 rows in every layout, each written when it is first asked for; rows and kinds by row id.

    ``plain`` and ``sharded`` are written by anndata, ``elements`` as by annbatch (chunks of so many elements), ``rows``
    has chunk edges on row edges, ``dense`` and ``dense v2`` (Zarr 2) are arrays. Matrices have empty rows, rows with
    stored zeros, and a dtype for each size. ``obs`` has `who`, `kind` (four categories, in runs of at least five rows
    if the store is that long) and `donor`.
    """

    folder: Path
    made: list[anndata.AnnData]
    rows: np.ndarray
    kinds: np.ndarray

    def __repr__(self):
        return f"Bricks(of {', '.join(map(str, BRICK_SIZES))} rows)"

    def place(self, number, layout):
        """Return the path of a store."""
        path = self.folder / f"{number}-{layout}.zarr"
        return os.fspath(path) if path.exists() else write(self.made[number], path, layout)

    def who(self, numbers):
        """Return the row ids of these bricks, concatenated."""
        return np.concatenate([1000 * number + np.arange(BRICK_SIZES[number]) for number in numbers])

    def wanted(self, who):
        """Return the rows with these ids, float64[n, columns]."""
        return self.rows[np.asarray(who, dtype=np.int64)]


def make_bricks(folder):
    """Return the stores in a folder."""
    rows, kinds = np.zeros((1000 * len(BRICK_SIZES), NUM_COLS)), np.full(1000 * len(BRICK_SIZES), "", dtype=object)
    made = [brick(number, size) for number, size in enumerate(BRICK_SIZES)]
    for number, one in enumerate(made):
        rows[1000 * number : 1000 * number + one.n_obs] = one.X.toarray()
        kinds[1000 * number : 1000 * number + one.n_obs] = one.obs["kind"].astype(str)
    return Bricks(folder, made, rows, kinds)


def brick(number, size):
    obs = pd.DataFrame(
        {
            "who": 1000 * number + np.arange(size),
            "kind": pd.Categorical.from_codes(
                np.minimum(np.arange(size) // 5, size // 5 - 1).clip(0) % 4, list("dbca")
            ),
            "donor": pd.Categorical([f"{number}/{row // 3}" for row in range(size)]),
        },
        index=[f"{number}-{row}" for row in range(size)],
    )
    return anndata.AnnData(matrix(number, size), obs=obs, var=pd.DataFrame(index=[f"g{k}" for k in range(NUM_COLS)]))


def matrix(number, size):
    rng = np.random.default_rng(number)
    held = rng.random((size, NUM_COLS)) < 0.4
    held[rng.random(size) < 0.15] = False
    values = (np.arange(size * NUM_COLS).reshape(size, NUM_COLS) + 17 * number) % 250 + 1
    values[rng.random(size) < 0.15] = 0  # stored explicitly
    row, col = np.nonzero(held)
    made = scipy.sparse.csr_matrix((size, NUM_COLS), dtype=DTYPES[number])
    made.indptr = np.concatenate([[0], np.cumsum(held.sum(axis=1))]).astype(np.int32)
    made.indices, made.data = col.astype(np.int32), values[row, col].astype(DTYPES[number])
    return made


def write(made, place, layout):
    if layout in ("elements", "rows"):
        group = zarr.open_group(str(place), mode="w", zarr_format=3)
        write_sharded(group, made, n_obs_per_chunk=4, shard_size=12, align_rows=layout == "rows")
        return os.fspath(place)
    copy = made.copy()
    if layout.startswith("dense"):
        copy.X = made.X.toarray()
    return write_anndata(copy, place, zarr_format=2 if layout == "dense v2" else 3, sharded=layout == "sharded")


@pytest.fixture(scope="module")
def bricks(tmp_path_factory):
    return make_bricks(tmp_path_factory.mktemp("bricks"))


@st.composite
def collections(draw):
    """Some stores of one kind and any layouts, at least 12 rows: (their numbers, their layouts)."""
    layouts = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    numbers = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(lambda n: max(n) >= 3))
    return numbers, [draw(st.sampled_from(layouts)) for _ in numbers]


def places_of(bricks, chosen):
    return [bricks.place(number, layout) for number, layout in zip(*chosen, strict=True)]


@cache
def opened(place):
    group = zarr.open_group(place, mode="r")
    x = group["X"] if isinstance(group["X"], zarr.Array) else anndata.io.sparse_dataset(group["X"])
    return anndata.AnnData(X=x, obs=anndata.io.read_elem(group["obs"]), var=anndata.io.read_elem(group["var"]))


def rows_of(x):
    if isinstance(x, torch.Tensor):
        x = (x.to_dense() if x.layout != torch.strided else x).numpy()
    return x.toarray() if hasattr(x, "toarray") else np.asarray(x)


class Own(Sampler):
    """Requests of any rows in any order, some twice, as slices or numbers, with splits or without."""

    batch_size, shuffle = 5, True

    def __init__(self, seed, *, by_number, with_splits):
        self.rng, self._by_number, self._with_splits = seed, by_number, with_splits

    def _sample(self, n_obs):
        start, stop = self.mask.start or 0, n_obs if self.mask.stop is None else self.mask.stop
        for _ in range(3):
            size = int(self.rng.integers(1, 40))
            rows = self.rng.integers(start, stop, size)
            request = {"requests": rows if self._by_number else [slice(row, row + 1) for row in rows.tolist()]}
            if self._with_splits:
                places = self.rng.integers(0, size, 11)
                request["splits"] = [places[:7], places[7:]]
            yield request


class ByClass:
    """Class samplers over some of the rows, which know the classes of all."""

    def __init__(self, cls, classes):
        self.cls, self.classes = cls, classes

    def __call__(self, *_, mask, rng):
        weights = [1.0, 2.0, 0.5, 1.0][: len(self.classes.categories)]
        return self.cls(1, 8, 4, classes=self.classes, num_samples=45, class_weights=weights, mask=mask, rng=rng)


def sampler_of(name, args, classes, mask):
    make = {
        "random": RandomSampler,
        "repeated": lambda *a, **o: RandomSampler(*a, replacement=True, **o),
        "sequential": lambda *a, mask, rng: SequentialSampler(*a, mask=mask),
        "class": ByClass(ClassSampler, classes),
        "weighted": ByClass(WeightedClassSampler, classes),
    }.get(name)
    if make is not None:
        return make(*args, mask=mask, rng=3)
    sampler = Own(3, by_number="number" in name, with_splits="splits" in name)
    sampler.mask = mask
    return sampler


SAMPLERS = [
    "random",
    "repeated",
    "sequential",
    "class",
    "weighted",
    "own",
    "own number",
    "own splits",
    "own number splits",
]
ONCE = ("random", "sequential")


@settings(max_examples=5, **quickly)
@given(
    chosen=collections(),
    name=st.sampled_from(SAMPLERS),
    args=st.sampled_from(SIZES),
    world_size=st.integers(1, 5),
    data=st.data(),
)
def test_through_samplers(bricks, *, chosen, name, args, world_size, data):
    """Any sampler, alone and on each of 1 to 5 ranks, any mask and epoch; where rows come once, each comes once."""
    who = bricks.who(chosen[0])
    adatas = [opened(place) for place in places_of(bricks, chosen)]
    to = data.draw(st.sampled_from([None, "torch"] if chosen[1][0] in KINDS["dense"] else [None]))
    start = data.draw(st.integers(0, len(who) - 10))
    mask = slice(start, data.draw(st.integers(start + 10, len(who))))
    classes = pd.Categorical(bricks.kinds[who])
    epoch, ranked = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    seen = Counter()
    for rank in range(world_size if ranked else 1):
        sampler = sampler_of(name, args, classes, mask)
        if ranked:
            place = (rank, world_size)
            sampler = DistributedSampler(sampler, dist_info=lambda place=place: place, enforce_equal_batches=False)
        loader = Loader(batch_sampler=sampler, return_index=True, to=to).add_adatas(adatas)
        assert loader.n_obs == len(who)
        loader.set_epoch(epoch)
        for batch in loader:
            index = batch["index"]
            assert set(index.tolist()) <= set(range(mask.start, mask.stop))
            np.testing.assert_array_equal(batch["obs"]["who"], who[index])
            np.testing.assert_array_equal(rows_of(batch["X"]), bricks.wanted(who[index]))
            assert batch["obs"]["kind"].tolist() == bricks.kinds[who[index]].tolist()
            seen.update(index.tolist())
    if name in ONCE:
        assert seen == Counter(range(mask.start, mask.stop))


def changed(source, how, data):
    """A part of a source, or draws from it, and whether its samples are drawn."""
    if how == "subset":
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(source), max_size=len(source))))
        mask[data.draw(st.integers(0, len(source) - 1))] = True
        return source.subset(mask), False
    if how == "split":
        try:
            parts = source.split(by="donor", fractions=(0.5, 0.5), seed=data.draw(st.integers(0, 9)))
        except ConfigError as error:  # all of the few donors fell on one side
            assume("empty" not in str(error))
            raise
        return data.draw(st.sampled_from(parts)), False
    if how == "drawn":
        options = data.draw(st.sampled_from([{"balance": "kind"}, {"weights": np.arange(len(source)) % 3 + 0.5}]))
        return source.drawn(num_samples=23, together=data.draw(st.sampled_from([1, 4])), **options), True
    return source, False


@pytest.mark.filterwarnings("ignore:the split by:UserWarning")
@settings(max_examples=8, **quickly)
@given(
    chosen=collections(),
    how=st.sampled_from(["all", "subset", "split", "drawn"]),
    batch_size=st.integers(1, 13),
    world_size=st.integers(2, 5),
    data=st.data(),
)
def test_through_orders(bricks, *, chosen, how, batch_size, world_size, data):
    """Parts, splits, draws; all ranks of 1 to 5; any epoch: right rows, the same global batches, each row once."""
    options = (
        data.draw(st.sampled_from([{}, {"dense": True}, {"genes": [8, 0, 3]}]))
        if chosen[1][0] in KINDS["sparse"]
        else {}
    )
    columns = options.get("genes", slice(None))
    source = RowSource(places_of(bricks, chosen), obs=("who", "kind"), threads=1, dtype="f8", **options)
    who, total = bricks.who(chosen[0]), len(source)
    source, is_drawn = changed(source, how, data)
    seed, epoch, device = (
        data.draw(st.integers(0, 5)),
        data.draw(st.integers(0, 2)),
        data.draw(st.sampled_from([None, "cpu"])),
    )
    order = Order(source, batch_size=batch_size, seed=seed, kind=data.draw(st.sampled_from(["shuffle", "sequential"])))
    told = {}
    for size in (1, world_size):
        steps = {}
        for rank in range(size):
            loader = OrderedLoader(source, order=order, world=RankPlace(rank, size), device=device, micro_batch=4)
            loader.set_epoch(epoch)
            for number, batches in enumerate(loader):
                for batch in batches:
                    index = source.row_numbers(batch.ids, seed=seed, epoch=epoch)
                    np.testing.assert_array_equal(np.asarray(batch["who"]), who[index])
                    np.testing.assert_array_equal(rows_of(batch["X"]), bricks.wanted(who[index])[:, columns])
                    steps.setdefault(number, []).extend(zip(batch.ids.tolist(), index.tolist(), strict=True))
        told[size] = [sorted(steps[number]) for number in sorted(steps)]
    assert told[1] == told[world_size]
    assert [len(step) for step in told[1]][:-1] == [batch_size] * (len(told[1]) - 1)
    ids = sorted(sample for step in told[1] for sample, _ in step)
    assert ids == list(range(len(source)))
    rows = [row for step in told[1] for _, row in step]
    assert set(rows) <= set(range(total))
    assert is_drawn or len(set(rows)) == len(rows)
