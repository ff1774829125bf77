"""Batches as JAX arrays, in one process."""

import logging

import numpy as np
import pytest
import scipy.sparse as sp

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport, sample_keys
from rankwise.errors import ConfigError
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource

jax = pytest.importorskip("jax")
jnp = jax.numpy
NUM, BATCH = 53, 8


class Numbers(FreeSource):
    """A source whose sample i is full of i: dense fields of several dtypes, and sparse rows."""

    fingerprint, num_samples, chunk_samples = "numbers", NUM, 1

    def __init__(self, *, sparse=False, **dtypes):
        self.fields = {name: FieldSpec(shape=(3,), dtype=np.dtype(dtype)) for name, dtype in dtypes.items()}
        if sparse:
            self.rows = sp.random(NUM, 20, density=0.3, format="csr", dtype="float32", random_state=1)
            self.fields["rows"] = FieldSpec(shape=(20,), dtype=np.dtype("float32"), ragged=True)

    def plan(self, share):
        return FreePlan(share, {"rows": self.rows[share.ids].nnz} if "rows" in self.fields else {})

    def hint(self, plan):
        pass

    def read(self, plan, into):
        ids = plan.share.ids
        into.reserve(self.fields, len(ids), plan.capacity)
        for name in self.fields:
            if name == "rows":
                chosen = self.rows[ids]
                for array, part in zip(into.arrays(name), (chosen.data, chosen.indices, chosen.indptr), strict=True):
                    array[:] = part
            else:
                into.arrays(name)[0][:] = ids[:, None]
        return ReadReport(valid=np.ones(len(ids), bool), fill_chunks=0, fast_chunks=0, slow_chunks=0, errors=())


def loader(source, device="jax", **options):
    return loader_of(source, Order(NUM, batch_size=BATCH), device=device, **options)


def sharding(spec=("data",), shape=(1,), names=("data",)):
    devices = np.array(jax.devices()[:1]).reshape(shape)
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, names), jax.sharding.PartitionSpec(*spec))


def test_arrays_stay_as_they_are():
    """The loader's memory is filled again at the next step; arrays that were kept do not change with it."""
    kept, ids = [], []
    for (batch,) in loader(Numbers(x="float32"), depth=2):
        kept.append(batch["x"])
        ids.append(batch.ids)
    for array, expected in zip(kept, ids, strict=True):
        assert isinstance(array, jax.Array)
        assert np.asarray(array)[:, 0].tolist() == expected.tolist()
    assert sorted(np.concatenate(ids).tolist()) == list(range(NUM))


def test_sparse_rows_come_as_bcsr():
    """Equal to SciPy's rows in products as in values; the stored elements have few sizes, so little is compiled."""
    source, sizes = Numbers(sparse=True, x="float32"), set()
    weight = np.random.default_rng(0).random((20, 2)).astype("float32")
    for (batch,) in loader(source):
        rows, expected = batch["rows"], source.rows[batch.ids]
        assert isinstance(rows, jax.experimental.sparse.BCSR)
        parts = tuple(np.asarray(part) for part in (rows.data, rows.indices, rows.indptr))
        np.testing.assert_array_equal(sp.csr_matrix(parts, rows.shape).toarray(), expected.toarray())
        assert expected.nnz <= rows.nse <= max(1, 1.25 * expected.nnz)
        assert not parts[0][expected.nnz :].any()
        sizes.add(rows.nse)
    np.testing.assert_allclose(np.asarray(rows @ weight), expected @ weight, rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(rows.todense()), expected.toarray())
    assert len(sizes) <= 4


def test_64_bits_are_not_cut_in_silence(caplog):
    """By default JAX has 32: whole numbers that fit are narrowed, others refused; of floats it is said."""
    with caplog.at_level(logging.WARNING, "rankwise.feed"):
        for (batch,) in loader(Numbers(i="int64", f="float64", u="uint16", b="bool")):
            assert [batch[name].dtype for name in "ifub"] == ["int32", "float32", "uint16", "bool"]
            assert np.asarray(batch["i"])[:, 0].tolist() == batch.ids.tolist()
    assert caplog.text.count("field 'f' is float64 and becomes float32") == 1

    def large(fields, _key):
        return {"i": fields["i"] + 2**40}

    with pytest.raises(ConfigError, match=r"'i' holds int64 beyond the range of int32 \(from \d+ to \d+\)"):
        next(iter(loader(Numbers(i="int64"), transform=large)))


def test_what_jax_cannot_hold_is_named():
    """Text is refused with its field."""

    def text(fields, _key):
        return {"t": np.full(2, "a")}

    with pytest.raises(ConfigError, match="'t' has dtype <U1, which JAX cannot hold"):
        next(iter(loader(Numbers(x="float32"), transform=text)))


def drawn(device, batch_size):
    """What a transform draws for each sample."""

    def transform(fields, keys):
        noise = jax.vmap(lambda key: jax.random.uniform(jax.random.wrap_key_data(key)))(keys)
        return {**fields, "noise": noise}

    source, found = Numbers(x="float32"), {}
    made = loader_of(source, Order(NUM, batch_size=batch_size), device=device, batch_transform=transform)
    for (batch,) in made:
        assert batch["noise"].shape == batch["x"].shape[:1]
        found |= zip(batch.ids.tolist(), np.asarray(batch["noise"]).tolist(), strict=False)
    return found


def test_keys_are_those_of_jax():
    """`batch_transform` draws the same for a sample whatever batch it is in, sharded or not; samples differ."""
    whole = drawn("jax", 53)
    assert drawn("jax", 8) == whole
    assert drawn(sharding(), 8) == whole
    assert len(set(whole.values())) == NUM
    key = sample_keys(Order(NUM, batch_size=8).start().seed, 0, np.array([5]))[0]
    words = np.array([key >> 32 & 0xFFFFFFFF, key & 0xFFFFFFFF], np.uint32)
    assert whole[5] == float(jax.random.uniform(jax.random.wrap_key_data(words)))


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_sharded_batches_have_one_shape(micro_batch):
    """The last step is smaller: zeros fill it up, weights tell them apart, and nothing is compiled twice."""
    mean = jax.jit(lambda x, weights: (x[:, 0] * weights).sum() / weights.sum())
    length = BATCH if micro_batch is None else micro_batch
    for batches in loader(Numbers(x="float32"), sharding(), micro_batch=micro_batch):
        for batch in batches:
            assert batch["x"].shape == (length, 3)
            assert batch["x"].sharding == batch.weights.sharding == sharding()
            assert np.asarray(batch.weights).tolist() == [1.0] * len(batch.ids) + [0.0] * (length - len(batch.ids))
            assert not np.asarray(batch["x"])[len(batch.ids) :].any()
            assert float(mean(batch["x"], batch.weights)) == pytest.approx(batch.ids.mean())
            assert batch.detach()["x"] is batch["x"]
            assert batch.detach().weights is batch.weights
    assert mean._cache_size() == 1


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_of_repeats(sharded):
    """Every batch has them: ones, and zeros for the repeats of an order that pads."""
    device = sharding() if sharded else "jax"
    padded = loader_of(Numbers(x="float32"), Order(NUM, batch_size=BATCH, remainder="pad"), device=device)
    *_, (last,) = padded
    assert isinstance(last.weights, jax.Array) == sharded
    assert sorted(np.asarray(last.weights).tolist()) == [0.0] * (BATCH - NUM % BATCH) + [1.0] * (NUM % BATCH)


def test_axes_that_a_field_has_not_are_left_out():
    """A sharding of rows and columns serves labels too."""
    both = sharding(("data", "model"), (1, 1), ("data", "model"))

    made = loader(
        Numbers(x="float32"), both, transform=lambda fields, _: {**fields, "y": fields["x"].sum(keepdims=True)}
    )
    for (batch,) in made:
        assert batch["x"].sharding.spec == jax.sharding.PartitionSpec("data", "model")
        assert batch.weights.sharding.spec == jax.sharding.PartitionSpec("data")
        assert np.asarray(batch["y"])[: len(batch), 0].tolist() == (3 * batch.ids).tolist()


def test_what_cannot_be_sharded_is_refused():
    """Sparse rows, and more ranks than JAX has processes: with the arithmetic and the mend."""
    with pytest.raises(ConfigError, match=r"'rows' is sparse, but global JAX arrays are dense"):
        loader(Numbers(sparse=True), sharding())
    with pytest.raises(ConfigError, match=r"spans JAX's 1 processes, the loader feeds 2 ranks: start JAX with"):
        loader(Numbers(x="float32"), sharding(), world_size=2)
