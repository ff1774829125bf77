"""Golden values: what a change of the code must not change, or every saved run would go on with other samples.

They were written by the code that first passed this test; `python tests/data/contract/test_golden.py` prints them anew.
A deliberate change of one is a new version of the recipe, never an edit of `golden.json` alone.
"""

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

import rankwise
from rankwise.data.contract import sample_keys
from rankwise.data.crops import CropIndex
from rankwise.data.rows import DatasetCollection, RowSource
from rankwise.data.samples import ArraySource
from rankwise.testing.stores.small_rows import small_anndata

GOLDEN = Path(__file__).with_name("golden.json")
SEQUENTIAL = {"kind": "sequential"}
ORDERS = {
    "plain": (1000, {"batch_size": 32}),
    "one sample": (1, {"batch_size": 1}),
    "batch of all": (97, {"batch_size": 97}),
    "batch larger than all": (97, {"batch_size": 128}),
    "seed 0": (1000, {"batch_size": 32, "seed": 0}),
    "seed below 0": (1000, {"batch_size": 32, "seed": -5}),
    "seed beyond 64 bits": (1000, {"batch_size": 32, "seed": 2**70}),
    "a prime": (10_007, {"batch_size": 64}),
    "many": (10**9, {"batch_size": 4096}),
    "sequential": (1000, {"batch_size": 32, **SEQUENTIAL}),
    "sequential, padded": (1000, {"batch_size": 48, "remainder": "pad", **SEQUENTIAL}),
    "dropped": (1000, {"batch_size": 48, "remainder": "drop"}),
    "padded": (1000, {"batch_size": 48, "remainder": "pad"}),
    "one lane": (1000, {"batch_size": 32, "lanes": 1}),
    "lanes": (1000, {"batch_size": 32, "lanes": 7}),
    "window": (1000, {"batch_size": 32, "chunk_samples": 10, "window": 3}),
    "chunks": (10_000, {"batch_size": 64, "chunk_samples": 100}),
    "chunks and lanes": (10_000, {"batch_size": 64, "chunk_samples": 128, "lanes": 16, "window": 2}),
    "large chunks": (10_000, {"batch_size": 64, "chunk_samples": 1000, "chunk_bytes": 1 << 30}),
    "fingerprint": (1000, {"batch_size": 32, "fingerprint": "abc"}),
}


def digest(*arrays):
    """A hash of whole numbers, whatever their width."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return found.hexdigest()[:16]


def order_facts(order):
    """The recipe, the first ids, and a hash of the steps of two epochs (of the first ones where there are many)."""
    steps = []
    for epoch in (0, 3):
        state = order.start(epoch)
        for _ in range(min(order.num_steps(state), 40)):
            step = order.step(state)
            steps.append(step)
            state = step.resume
    ids, lanes = [step.ids for step in steps], [step.lanes for step in steps]
    return {
        "recipe": order.recipe,
        "first": steps[0].ids[:8].tolist(),
        "steps": len(steps),
        "ids": digest(*ids),
        "lanes": digest(*lanes),
        "counts": digest([step.count for step in steps]),
    }


def row_facts(folder):
    """Draws, splits and the order of the rows of a collection that is written with a seed."""
    adatas = [small_anndata(300, 5, seed=seed) for seed in (0, 1)]
    collection = DatasetCollection(folder / "c.zarr")
    collection.add_adatas(adatas, rng=7, dataset_size=250, shard_size=100, n_obs_per_chunk=16, progress=False)
    written = collection.obs(["n", "src_row"])
    source = RowSource(adatas[0])
    train, val = source.split(by="name", fractions=(0.8, 0.2))
    draws = {
        "balance": {"balance": "kind"},
        "weights": {"weights": np.arange(1.0, 301.0)},
        "num_samples": {"num_samples": 100, "balance": "kind"},
        "together": {"weights": np.arange(1.0, 301.0), "together": 4},
    }
    found = {}
    for name, wish in draws.items():
        drawn = source.drawn(**wish)
        order = rankwise.Order(drawn, batch_size=32)
        ids = order.step(order.start(0)).ids
        rows = [drawn.row_numbers(ids, seed=order.seed, epoch=epoch) for epoch in (0, 1)]
        found[name] = {"recipe": order.recipe, "rows": digest(*rows)}
    return {
        **found,
        "split": [digest(part.obs(["n"])["n"]) for part in (train, val)],
        "collection": {"rows": digest(written["n"], written["src_row"]), "first": written["n"][:8].tolist()},
        "fingerprint": source.fingerprint,
    }


def starts(index, *numbers, epoch=0):
    return [place.start for place in index.describe(np.array(numbers), seed=1889, epoch=epoch)]


def crop_facts(folder):
    """Where tiles and random crops lie."""
    zarr.create_array(str(folder / "v.zarr"), data=np.zeros((40, 64, 48), "u2"), chunks=(10, 16, 16))
    uri = str(folder / "v.zarr")
    tiles = CropIndex([uri], shape=(10, 20, 20))
    drawn = CropIndex([uri], shape=(10, 20, 20), num_random=50)
    return {
        "tiles": [len(tiles), starts(tiles, 0, 1, len(tiles) - 1)],
        "random": [starts(drawn, 0, 1, 49, epoch=epoch) for epoch in (0, 1)],
    }


def facts(folder):
    orders = {name: order_facts(rankwise.Order(samples, **wish)) for name, (samples, wish) in ORDERS.items()}
    source = ArraySource({"x": np.arange(600.0).reshape(200, 3), "y": np.arange(200, dtype="i4")})
    orders["a source"] = order_facts(rankwise.Order(source, batch_size=16))
    keys = {
        f"seed {seed}, epoch {epoch}": sample_keys(seed, epoch, np.array([0, 1, 10**12])).tolist()
        for seed, epoch in ((0, 0), (1889, 0), (1889, 7), (-1, 2))
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = row_facts(folder)
    return json.loads(json.dumps({"orders": orders, "keys": keys, "rows": rows, "crops": crop_facts(folder)}))


@pytest.fixture(scope="module")
def today(tmp_path_factory):
    return facts(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("kind", ["orders", "keys", "rows", "crops"])
def test_golden_values_stay(today, kind):
    """Promise 1: the order of samples follows from its recipe, in every release that accepts the recipe."""
    wanted = json.loads(GOLDEN.read_text())[kind]
    assert today[kind].keys() == wanted.keys()
    for name, value in wanted.items():
        assert today[kind][name] == value, name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        kinds = facts(Path(made)).items()
    # one line for each value, so that a difference can be read
    lines = [[f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()] for _, values in kinds]
    parts = [f' "{kind}": {{\n' + ",\n".join(part) + "\n }" for (kind, _), part in zip(kinds, lines, strict=True)]
    sys.stdout.write("{\n" + ",\n".join(parts) + "\n}\n")
