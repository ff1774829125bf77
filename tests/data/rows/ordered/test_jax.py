"""Rows as JAX arrays: global ones on two processes of two devices each, as `rankwise run` starts them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from torch import nn

from rankwise import Order
from rankwise.data.rows import Loader, Log1pCounts, OrderedLoader, RowSource
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler
from rankwise.errors import ConfigError
from rankwise.testing.stores.row_stores import make_stores
from rankwise.train import Balance
from rankwise.world import World

jax = pytest.importorskip("jax")

BATCH = 10

SCRIPT = """
import json, os, sys
from pathlib import Path
import jax
jax.config.update("jax_num_cpu_devices", 2)
import rankwise

world = rankwise.World.init_jax(timeout=240)
import numpy as np
import zarr
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from rankwise.data.crops import CropIndex, IndexPipeline
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler
from scipy.sparse import csr_matrix

places, batch_size = json.loads(sys.argv[1]), int(sys.argv[2])
rows = NamedSharding(Mesh(jax.devices(), ("data",)), P("data"))
grid = NamedSharding(Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model")), P("data", "model"))
said = {"devices": [jax.device_count(), jax.local_device_count()], "torch": "torch" in sys.modules}

def mine(array):
    # this process's rows, in the order of their place in the global array; copies on two devices count once
    parts = {shard.index[0].indices(array.shape[0])[0]: np.asarray(shard.data) for shard in array.addressable_shards}
    return np.concatenate([parts[start] for start in sorted(parts)])

def source():
    return RowSource(places, dense=True, matrices=("X", "obsm/pca"), obs=("n", "donor"), threads=1)

@jax.jit
def summed(x, n, weights):
    return (x * weights[:, None]).sum(), (n * weights).sum(), weights.sum()

def epoch(loader, steps=None):
    seen = []
    for number, batches in enumerate(loader):
        for batch in batches:
            seen.append(
                {
                    "step": number,
                    "ids": batch.ids.tolist(),
                    "shape": batch["X"].shape,
                    "weights": mine(batch.weights).tolist(),
                    "X": mine(batch["X"]).tolist(),
                    "pca": mine(batch["obsm/pca"]).tolist(),
                    "donor": mine(batch["donor"]).tolist(),
                    "sums": [float(value) for value in summed(batch["X"], batch["n"], batch.weights)],
                }
            )
        loader.mark_done(batches[-1].resume)
        if number + 1 == steps:
            break
    return seen

for name, micro in (("whole", None), ("micro", 3)):
    order = rankwise.Order(source(), batch_size=batch_size)
    with OrderedLoader(source(), order=order, to="jax", sharding=rows, micro_batch=micro) as loader:
        said[name] = epoch(loader, steps=4 if name == "micro" else None)
        said[name + " state"] = loader.state_dict()
said["compiled"] = summed._cache_size()

def refused(sharding):
    try:
        OrderedLoader(source(), order=order, to="jax", sharding=sharding)
    except rankwise.RankwiseError as error:
        return str(error)

said["refused"] = [refused(NamedSharding(rows.mesh, P())), refused(NamedSharding(grid.mesh, P("model")))]

few = RowSource(places, genes=list(range(10)), obs=("n",), threads=1)
with OrderedLoader(few, order=rankwise.Order(few, batch_size=batch_size), to="jax", sharding=grid) as loader:
    steps = iter(loader)
    (batch,) = next(steps)
    said["grid"] = [shard.data.shape for shard in batch["X"].addressable_shards]
    said["grid sums"] = [float(value) for value in summed(batch["X"], batch["n"], batch.weights)]

if world.is_main:
    values = np.random.default_rng(0).integers(1, 1000, (12, 16, 16)).astype("uint16")
    zarr.create_array("scan.zarr", data=values, chunks=(4, 8, 8))
world.barrier()
index = CropIndex("scan.zarr", shape=(4, 8, 8))
said["plain"] = []
tiles = rankwise.Order(index, batch_size=5)
for made, field in ((OrderedLoader(few, order=order), "X"), (IndexPipeline(index, order=tiles), "image")):
    with made:
        for (batch,) in made:
            said["plain"].append(type(batch[field]).__name__)
            break
with IndexPipeline(index, order=tiles, device=rows) as pipeline:
    total = sum(float(jax.jit(lambda x: x.astype("float32").sum())(batch["image"])) for (batch,) in pipeline)
said["crops"] = [total, float(np.asarray(zarr.open_array("scan.zarr", mode="r")[:]).sum())]
sampler = DistributedSampler(RandomSampler(chunk_size=4, preload_nchunks=2, batch_size=4, rng=0), dist_info="jax")
kept = [(batch["index"], batch["X"]) for batch in Loader(places[0], batch_sampler=sampler, to="jax", return_index=True)]
said["drawn"] = [
    [index.tolist(), csr_matrix(tuple(map(np.asarray, (x.data, x.indices, x.indptr))), x.shape).toarray().tolist()]
    for index, x in kept
]
images = zarr.open_array(places[0] + "/obsm/pca", mode="r")
said["drawn together"] = []
for loader in (Loader(places[0], batch_sampler=sampler, to="jax", sharding=rows, return_index=True),
               Loader(batch_sampler=sampler, to="jax", sharding=rows, return_index=True).add_dataset(images)):
    loader.set_epoch(1)
    kept = [(batch["index"].tolist(), batch["X"], float(jax.jit(lambda x: x.sum())(batch["X"]))) for batch in loader]
    said["drawn together"].append([[index, x.shape, mine(x).tolist(), total] for index, x, total in kept])
said["torch after"] = "torch" in sys.modules
Path(f"said-{world.rank}.json").write_text(json.dumps(said))
never_closed = OrderedLoader(few, order=order, to="jax", sharding=rows)
held = next(iter(never_closed))  # JAX keeps the script's names until Python has emptied most modules
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def said(held, tmp_path_factory):
    """What each of two ranks saw."""
    folder = tmp_path_factory.mktemp("jax")
    (folder / "train.py").write_text(SCRIPT)
    command = ["-m", "rankwise", "run", "--nproc", "2", "train.py", json.dumps(held.places), str(BATCH)]
    env = {name: value for name, value in os.environ.items() if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(2)]


def order_of(held, **options):
    return Order(RowSource(held.places, threads=1), batch_size=BATCH, **options)


def test_each_rank_fills_its_part(said, held):
    """Its own rows at the beginning, all fields alike, then zeros with weight 0; every row once. No torch is loaded."""
    rows, donors = [], RowSource(held.places, obs=("donor",), threads=1).categories["donor"]
    for one in said:
        assert one["devices"] == [4, 2]
        assert not one["torch"]
        assert not one["torch after"]
        for batch in one["whole"]:
            ids, num_rows = batch["ids"], len(batch["weights"])
            assert num_rows == 6  # five of ten for each rank, rounded up to two devices
            assert batch["shape"] == [12, held.dense("X").shape[1]]
            assert batch["weights"] == [1.0] * len(ids) + [0.0] * (num_rows - len(ids))
            np.testing.assert_array_equal(np.array(batch["X"])[: len(ids)], held.dense("X")[ids])
            np.testing.assert_allclose(np.array(batch["pca"])[: len(ids)], held.dense("obsm/pca")[ids], rtol=1e-6)
            assert [donors[code] for code in batch["donor"][: len(ids)]] == held.obs["donor"].iloc[ids].tolist()
            assert not np.array(batch["X"])[len(ids) :].any()
            rows += ids
    assert sorted(rows) == list(range(held.num_rows))


@pytest.mark.parametrize("how", ["whole", "micro"])
def test_sums_over_the_processes_are_those_of_the_step(said, held, how):
    """A jitted sum with weights sees the rows of both ranks, and both have its result; each shape is compiled once."""
    dense, number = held.dense("X"), held.obs["n"].to_numpy()
    for first, second in zip(said[0][how], said[1][how], strict=True):
        ids = first["ids"] + second["ids"]
        assert first["sums"] == second["sums"]
        assert first["step"] == second["step"]
        assert first["sums"] == pytest.approx([dense[ids].sum(), number[ids].sum(), len(ids)], rel=1e-5)
    assert said[0]["compiled"] == said[1]["compiled"] == 2


def test_steps_are_those_of_one_rank(said, held):
    """Which rows form a step does not depend on who loads them; a saved position goes on at another world size."""
    order = order_of(held)
    with OrderedLoader(RowSource(held.places, threads=1, dense=True), order=order, to="jax") as loader:
        alone = [sorted(batch.ids.tolist()) for (batch,) in loader]
        loader.load_state_dict(said[0]["micro state"])  # as two ranks left it
        assert said[0]["micro state"] == said[1]["micro state"]
        assert [sorted(batch.ids.tolist()) for (batch,) in loader] == alone[4:]
    both = [sorted(first["ids"] + second["ids"]) for first, second in zip(*(one["whole"] for one in said), strict=True)]
    assert both == alone


def test_columns_may_be_sharded_too(said, held):
    """Rows over the processes, columns over the devices of each."""
    for one in said:
        assert one["grid"] == [[5, 5], [5, 5]]
    step = order_of(held).step(order_of(held).start())
    expected = [held.dense("X")[step.ids, :10].sum(), held.obs["n"].to_numpy()[step.ids].sum(), BATCH]
    assert said[0]["grid sums"] == said[1]["grid sums"] == pytest.approx(expected, rel=1e-5)


def test_crops_are_sharded_in_the_same_way(said):
    """The sum over an epoch is that of the array. Without a word about JAX arrays are NumPy's, of crops and rows."""
    assert all(one["plain"] == ["ndarray", "ndarray"] for one in said)
    assert all(one["crops"][0] == one["crops"][1] for one in said)


def test_a_sampler_draws_for_each_process(said, held):
    """With a `DistributedSampler` of JAX every process has rows of its own, and they stay as they were when kept."""
    rows = []
    for one in said:
        for index, values in one["drawn"]:
            np.testing.assert_array_equal(np.array(values), held.dense("X")[index])
            rows += index
    assert len(set(rows)) == len(rows) > 40


@pytest.mark.parametrize(("which", "matrix"), [(0, "X"), (1, "obsm/pca")])
def test_equal_batches_of_samplers_are_global(said, held, which, matrix):
    """With equal batches each rank's rows are its part of one array, sparse ones dense; kept ones stay as they were."""
    whole, rows = held.dense(matrix), []
    batches = list(zip(*(one["drawn together"][which] for one in said), strict=True))
    assert len(batches) == 53 // 2 // 4
    for of_ranks in batches:
        both = [row for index, *_ in of_ranks for row in index]
        for index, shape, values, total in of_ranks:
            assert shape == [8, *whole.shape[1:]]
            np.testing.assert_allclose(np.array(values), whole[index], rtol=1e-6)
            assert total == pytest.approx(whole[both].sum(), rel=1e-5)
        rows += both
    assert len(set(rows)) == len(rows) == 48


def test_other_shardings_are_refused(said):
    """Copies of all rows on every process: the arithmetic and the mend."""
    copied, across = said[0]["refused"]
    assert "cuts the first axis into 1 parts, 1 of them on this process" in copied
    assert "so shard the first axis over all devices" in copied
    assert "cuts the first axis into 2 parts, 2 of them on this process; but 2 processes" in across


def test_sparse_rows_of_one_process(held):
    """Without a sharding a rank's rows come as BCSR; with one dense rows are asked for."""
    source = RowSource(held.places, threads=1)
    with OrderedLoader(source, order=order_of(held), to="jax") as loader:
        for (batch,) in loader:
            found = batch["X"]
            assert isinstance(found, jax.experimental.sparse.BCSR)
            parts = tuple(np.asarray(part) for part in (found.data, found.indices, found.indptr))
            np.testing.assert_array_equal(csr_matrix(parts, found.shape).toarray(), held.dense("X")[batch.ids])
    with pytest.raises(ConfigError, match="'X' is sparse, but global JAX arrays are dense: use dense rows"):
        OrderedLoader(source, order=order_of(held), to="jax", sharding=of_one_device())
    few = RowSource(held.places, genes=[0, 1], threads=1)
    with OrderedLoader(few, order=order_of(held), to="jax", sharding=of_one_device()) as loader:
        with pytest.raises(ConfigError, match="cuts equal shares only: sharding= needs equally many rows on"):
            loader.set_speeds([1])
        with pytest.raises(ConfigError, match="makes equal shares only: sharding= needs equally many rows on"):
            next(Balance(nn.Linear(1, 1), World.single(), speeds=[1]).steps(loader))


@pytest.mark.parametrize("size", [None, "n"])
@pytest.mark.parametrize("dense", [True, False])
def test_counts_are_normalised_as_in_numpy(held, dense, size):
    """`Log1pCounts` on JAX arrays and BCSR matrices gives what it gives on NumPy's and SciPy's, with sizes too."""
    found, change = {}, Log1pCounts(size=size)
    for how in ({"to": "jax"}, {"device": None}):
        source = RowSource(held.places, matrices=("layers/counts",), obs=("n",), threads=1, dense=dense)
        renamed = lambda fields, keys: change({"X": fields["layers/counts"], "n": fields["n"]}, keys)  # noqa: E731
        with OrderedLoader(source, order=Order(source, batch_size=BATCH), batch_transform=renamed, **how) as loader:
            for (batch,) in loader:
                found[how.get("to")] = batch.detach()["X"] if dense else batch["X"].todense()
                break
    assert found["jax"].dtype == np.float32
    np.testing.assert_allclose(np.asarray(found["jax"]), np.asarray(found[None]), rtol=1e-5)


def test_where_to_and_sharding_do_not_fit(held):
    """A device of torch's, a sharding without JAX, and a sharding with a sampler: what to change."""
    source = RowSource(held.places, threads=1, dense=True)
    with pytest.raises(ConfigError, match="got device='cpu': omit device="):
        OrderedLoader(source, order=order_of(held), to="jax", device="cpu")
    with pytest.raises(ConfigError, match="sharding= is for JAX arrays"):
        OrderedLoader(source, order=order_of(held), sharding=object())
    with pytest.raises(ConfigError, match="sharding= is for JAX arrays"):
        Loader(batch_sampler=make_ranks(), sharding=object())


def make_ranks(sampler=None, place=(0, 1), **options):
    drawing = RandomSampler(4, 2, 4, rng=0) if sampler is None else sampler
    return DistributedSampler(drawing, dist_info=lambda: place, **options)


class OwnSampler(Sampler):
    batch_size = 4

    def _sample(self, n_obs):
        yield {"requests": [slice(0, 4)]}


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (lambda: RandomSampler(4, 2, 4), r"needs batches of equal size .*=DistributedSampler\(.*; or order="),
        (lambda: make_ranks(enforce_equal_batches=False), "of equal size and number on every rank"),
        (lambda: make_ranks(OwnSampler()), "with any sampler inside and equal batches"),
        (lambda: make_ranks(place=(1, 2)), "spans JAX's 1 processes, the loader feeds 2 ranks"),
    ],
)
def test_batches_that_need_not_be_equal_are_refused(sampler, said):
    """Their shapes would differ between the ranks, or their numbers, and all would wait: what to take instead."""
    with pytest.raises(ConfigError, match=said):
        Loader(batch_sampler=sampler(), to="jax", sharding=of_one_device())


def of_one_device():
    return jax.sharding.NamedSharding(
        jax.sharding.Mesh(jax.devices()[:1], ("data",)), jax.sharding.PartitionSpec("data")
    )


def test_a_batch_that_is_not_full_is_refused(held):
    """The last of num_samples that are no multiple: after those before it, with the mend."""
    sampler = make_ranks(RandomSampler(4, 2, 4, num_samples=10, rng=0))
    loader, arrived = Loader(held.places, batch_sampler=sampler, to="jax", sharding=of_one_device()), []
    with pytest.raises(ConfigError, match=r"a batch has 2 rows, but every part of a global array needs 4: .*drop_last"):
        arrived.extend(iter(iter(loader).__next__, None))
    assert [batch["X"].shape[0] for batch in arrived] == [4, 4]
