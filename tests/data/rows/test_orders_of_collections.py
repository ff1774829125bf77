"""OrderedLoader(collection, order=Order(collection, ...)): any spelling of a collection, and orders that do not fit."""

from pathlib import Path

import numpy as np
import pytest

from rankwise import Order
from rankwise.data.rows import DatasetCollection, OrderedLoader, RowSource
from rankwise.errors import ConfigError
from rankwise.testing.stores.row_stores import make_stores
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def collection(held, tmp_path_factory):
    made = DatasetCollection(tmp_path_factory.mktemp("made") / "cells.zarr")
    return made.add_adatas(held.places, rng=0, dataset_size=60)


def seen_by(loader):
    """The rows of all batches, with what they hold."""
    rows = []
    for (batch,) in loader:
        step = batch.share.step
        numbers = loader.source.row_numbers(batch.ids, seed=step.resume.seed, epoch=step.epoch)
        rows += [
            (int(row), *(np.asarray(batch[name][at]).tolist() for name in batch)) for at, row in enumerate(numbers)
        ]
    return rows


SPELLINGS = {
    "a collection": lambda collection: collection,
    "its path": lambda collection: collection.path,
    "a text": lambda collection: str(collection.path),
    "its stores": lambda collection: [collection.path / "dataset_0", str(collection.path / "dataset_1")],
    "a source": lambda collection: RowSource(collection, matrices=("layers/counts",), cache=0),
}


@pytest.mark.parametrize("spelled", SPELLINGS.values(), ids=SPELLINGS)
def test_a_collection_by_any_name(held, collection, spelled):
    """Order and loader made of it separately are of one mind, whatever matrices and columns the loader reads."""
    named = spelled(collection)
    order = Order(named, batch_size=20, balance="kind", num_samples=90)
    options = {"matrices": ("X", "layers/full", "obsm/pca"), "obs": ["n", "kind"], "genes": ["gene7", 0]}
    loader = OrderedLoader(spelled(collection), order=order, device=None, **options)
    numbers = held.obs["n"].to_numpy()
    seen = seen_by(loader)
    assert len(seen) == 90
    for _, x, full, pca, n, _ in seen:
        at = int(np.flatnonzero(numbers == n)[0])
        assert x == held.dense("X")[at][[7, 0]].tolist()
        assert full == held.dense("layers/full")[at][[7, 0]].tolist()
        assert pca == held.dense("obsm/pca")[at].tolist()
    again = OrderedLoader(named, order=order, device=None, dense=True)
    assert [row[0] for row in seen] == [row[0] for row in seen_by(again)]


def test_an_order_fits_every_choice_of_matrices(collection):
    """What decides an order are the rows: one of X fits loaders of layers and obsm, and the other way round."""
    whole = Order(collection, batch_size=16)
    layer = Order(RowSource(collection, matrices=("layers/full", "obsm/pca")), batch_size=16)
    assert whole.fingerprint == layer.fingerprint
    seen = {}
    for name, order in (("X", layer), ("layers/counts", whole), ("obsm/pca", whole)):
        loader = OrderedLoader(collection, order=order, matrices=(name,), device=None, dense=True)
        seen[name] = sorted(row for row, *_ in seen_by(loader))
    assert all(rows == list(range(93)) for rows in seen.values())
    drawn, seen = Order(collection, batch_size=16, balance="kind", together=3), []
    for name in ("X", "obsm/pca"):  # chunks of different lengths: those of the order say what comes together
        loader = OrderedLoader(collection, order=drawn, matrices=(name,), device=None, dense=True)
        seen.append([row for row, _ in seen_by(loader)])
    assert seen[0] == seen[1]


def test_parts_go_straight_in(held, collection):
    """Parts of a split and subsets are what orders and loaders take; each row of a part once, none of another."""
    parts = collection.split(by="donor", fractions={"train": 0.6, "val": 0.4}, seed=1)
    table = collection.obs(["donor", "n"])
    donors = {}
    for name, part in parts.items():
        loader = OrderedLoader(part, order=Order(part, batch_size=16), device=None, obs=["n"], matrices=())
        rows = [row for row, _ in seen_by(loader)]
        assert len(rows) == len(set(rows)) == len(part)
        donors[name] = set(table["donor"].to_numpy()[rows])
    assert not donors["train"] & donors["val"]
    mask = (table["n"] % 2 == 0).to_numpy()
    even = collection.subset(mask)
    drawn = OrderedLoader(even, order=Order(even, batch_size=16, balance="kind"), obs=["n"], device=None)
    assert {row[-1] % 2 for row in seen_by(drawn)} == {0}
    assert collection.subset([3, 1]).row_numbers(np.arange(2)).tolist() == [1, 3]
    both = [parts["val"], even]
    assert len(RowSource(both)) == len(parts["val"]) + len(even)
    loader = OrderedLoader(both, order=Order(both, batch_size=20, mix=[1, 1], num_samples=40), obs=["n"], device=None)
    sides = [row < 93 for row, *_ in seen_by(loader)]  # rows of the second part lie over those of the first
    assert abs(sum(sides[:20]) - 10) <= 2
    assert sum(sides) == 20


def test_appended_data_move_no_donor(tmp_path):
    """What is added to a collection goes where its donors go; donors that were there stay where they were."""
    stores = make_stores(tmp_path, (60, 50, 40))
    collection = DatasetCollection(tmp_path / "cells.zarr").add_adatas(stores.places[:1], rng=0)

    def donors_of():
        table = collection.obs(["donor"])["donor"].to_numpy()
        parts = collection.split(by="donor", fractions=(0.5, 0.5), seed=2)
        return [set(table[part.row_numbers(np.arange(len(part)))]) for part in parts]

    before = donors_of()
    with pytest.warns(UserWarning, match="shuffled among themselves"):
        collection.add_adatas(stores.places[1:], rng=1)
    after = donors_of()
    assert all(old < new for old, new in zip(before, after, strict=True))
    assert not after[0] & after[1]


def test_orders_that_do_not_fit(held, collection):
    """Another collection, a part against the whole, draws on one side only: each says what it is and the mend."""
    whole, source = Order(collection, batch_size=8), RowSource(collection)
    for rows, order, said in (
        (held.places, whole, "the order is for other rows .* use the same rows in both"),
        (source.subset(range(90)), whole, "is for other rows"),
        (source.drawn(balance="kind"), whole, "the loader's rows are drawn, but the order does not draw"),
        (source.drawn(balance="kind"), Order(source, batch_size=8, balance="donor"), "the order draws differently"),
        (source.drawn(balance="kind"), Order(93, batch_size=8, fingerprint="x"), "is for other rows"),
    ):
        with pytest.raises(ConfigError, match=said):
            OrderedLoader(rows, order=order, device=None)
    drawn = source.drawn(balance="kind")
    assert len(seen_by(OrderedLoader(source, order=Order(drawn, batch_size=8), device=None, dense=True))) == 93


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        ({"balance": "kind", "weights": np.ones(93)}, "give one"),
        ({"balance": "kinds"}, "has no obs columns 'kinds'; it has 'kind'"),
        ({"weights": np.ones(92)}, "one number for each of 93 rows"),
        ({"num_samples": 10}, "need one of balance= and weights=, or mix="),
        ({"mix": [0.5, 0.5]}, "2 shares of 1: pass the collections as a list"),
        ({"balance": "kind", "num_samples": 0}, "num_samples of drawn rows must be an integer of at least 1, got 0"),
    ],
)
def test_draws_that_make_no_sense(collection, draw, said):
    """Refused where the order is made."""
    with pytest.raises(ConfigError, match=said):
        Order(collection, batch_size=8, **draw)


def test_mixes_name_their_collections(held):
    """By order or by place; one share for each, and not together with together=."""
    first, second = held.places
    listed = Order(held.places, batch_size=8, mix=[1, 3])
    named = Order(held.places, batch_size=8, mix={Path(second): 3, first: 1})
    assert listed.recipe == named.recipe != Order(held.places, batch_size=8, mix=[3, 1]).recipe
    for draw, said in (
        ({"mix": {first: 1}}, "needs a share for each of"),
        ({"mix": [1, "a"]}, "one share for each of"),
        ({"mix": [1, 0]}, "a share above 0"),
        ({"mix": [1, 1], "together": 2}, "is for balance= and weights="),
        ({"mix": [1, 1], "kind": "shuffle"}, "remove kind='shuffle'"),
    ):
        with pytest.raises(ConfigError, match=said):
            Order(held.places, batch_size=8, **draw)


def test_options_that_are_nobodys(collection):
    """A source keeps its cache and threads; unknown fields are refused."""
    source = RowSource(collection)
    with pytest.raises(ConfigError, match="opened with its own threads"):
        OrderedLoader(source, order=Order(source, batch_size=8), threads=2, device=None)
    with pytest.raises(ConfigError, match="a RowSource accepts matrices, obs, dense, genes, dtype, rows; got genesis"):
        source.reading(genesis=1)
    with pytest.raises(ConfigError, match=r"part = collection.subset\(rows\)"):
        OrderedLoader(collection, order=Order(collection, batch_size=8), rows=[1], device=None)


def test_balancing_by_measurements_is_said(tmp_path):
    """A column with about as many values as rows is hardly one of classes; a column of classes is silent."""
    place = write_anndata(small_anndata(120), tmp_path / "a.zarr")
    with pytest.warns(UserWarning, match="balance='n': the column has 120 different values for 120 rows"):
        order = Order(place, batch_size=10, balance="n")
    assert order.num_samples(0) == 120
    assert Order(place, batch_size=10, balance="kind").num_samples(0) == 120
