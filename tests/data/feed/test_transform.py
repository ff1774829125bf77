"""Transforms of samples and of batches."""

import re
import threading

import numpy as np
import pytest
import torch

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport, sample_keys
from rankwise.errors import ConfigError
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource


class Squares(FreeSource):
    """Field x of sample i is [i, i]."""

    fingerprint, chunk_samples, num_samples = "squares", 1, 11

    def __init__(self, *, ragged=False):
        self.fields = {"x": FieldSpec(shape=(2,), dtype=np.dtype("i4"), ragged=ragged)}

    def plan(self, share):
        return FreePlan(share)

    def hint(self, plan):
        pass

    def read(self, plan, into):
        into.reserve(self.fields, len(plan.share.ids), {})
        into.arrays("x")[0][:] = plan.share.ids[:, None]
        return ReadReport(valid=np.ones(len(plan.share.ids), dtype=np.bool_))


def batches(transform=None, *, batch_size=4, **options):
    order = Order(11, batch_size=batch_size)
    loader = loader_of(Squares(), order, transform=transform, **options)
    return [b.detach() for step in loader for b in step]


def noisy(fields, key):
    rng = np.random.default_rng(key & (2**63 - 1))
    return {"z": fields["x"].astype("f4").sum() + rng.random(dtype="f4"), "key": key}


def test_samples_come_out_as_the_transform_makes_them():
    """Other names, shapes and dtypes than the source has; the key is that of the sample; on the reader thread."""
    threads = set()

    def transform(fields, key):
        threads.add(threading.current_thread().name)
        return noisy(fields, key)

    for batch in batches(transform, device="cpu"):
        assert list(batch) == ["z", "key"]
        assert batch["z"].dtype == torch.float32
        keys = sample_keys(1889, 0, batch.ids)
        np.testing.assert_array_equal(batch["key"].numpy(), keys)
        wanted = [noisy({"x": np.array([i, i])}, int(k))["z"] for i, k in zip(batch.ids, keys, strict=True)]
        np.testing.assert_array_equal(batch["z"].numpy(), np.array(wanted, dtype="f4"))
    assert threads == {"rankwise-reader"}


@pytest.mark.parametrize("world_size", [2, 5])
def test_random_transforms_are_equal_at_any_world_size(world_size):
    """A sample's augmentation depends on (seed, epoch, sample): ranks together make what one rank makes."""
    one = {int(i): float(z) for b in batches(noisy) for i, z in zip(b.ids, b["z"], strict=True)}
    many = {}
    for rank in range(world_size):
        for b in batches(noisy, rank=rank, world_size=world_size, micro_batch=1):
            many.update({int(i): float(z) for i, z in zip(b.ids, b["z"], strict=True)})
    assert many == one


def test_a_rank_without_samples_knows_their_shape():
    """Zero rows have the transformed shape and dtype, even when the rank has not seen a sample yet."""
    empty = batches(noisy, batch_size=2, rank=0, world_size=3)[0]
    assert len(empty) == 0
    assert (empty["z"].shape, empty["z"].dtype) == ((0,), np.float32)


def test_transforms_may_change_what_they_get():
    """The arrays belong to the transform: changing them in place changes this sample only."""

    def double(fields, _key):
        fields["x"] *= 2
        return fields

    for batch in batches(double):
        np.testing.assert_array_equal(batch["x"], np.repeat(2 * batch.ids[:, None], 2, axis=1))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda f, _k: {"x": np.zeros(1 + f["x"][0] % 2)}, r"field 'x' of sample .* crop, pad or cast"),
        (lambda f, _k: {f"x{f['x'][0] % 2}": 1}, "the same fields for every sample"),
        (lambda _f, _k: 5, "returned int"),
        (lambda _f, _k: {"x": object()}, "an object"),
    ],
)
def test_bad_transforms_are_named(transform, message):
    """What does not stack is an error with the field and the samples, not a broken batch."""
    with pytest.raises(ConfigError, match=message):
        batches(transform)


def test_an_error_inside_names_the_sample():
    """The user's own exception arrives, with the sample and the step as notes."""

    def fail(fields, _key):
        return {"x": 1 // (int(fields["x"][0]) - 3)}

    with pytest.raises(ZeroDivisionError) as caught:
        batches(fail)
    assert "in transform= of sample 3 " in caught.value.__notes__[0]
    assert "while reading step" in caught.value.__notes__[1]


def test_a_transform_cannot_end_the_epoch():
    """StopIteration in a transform, of a bare next(), is an error with the sample, not the end of a generator."""
    with pytest.raises(RuntimeError, match=r"transform= raised StopIteration for sample \d+ \(key -?\d+\)"):
        batches(lambda fields, key: next(iter(())))


def test_an_error_of_batch_transform_names_the_step():
    """It is raised in the training thread, while no step is read: without a note nothing says where it came."""

    def fail(fields, _keys):
        return {"x": fields["x"] + 1 // int(3 not in fields["x"])}

    with pytest.raises(ZeroDivisionError) as caught:
        batches(batch_transform=fail, batch_size=2)
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"in batch_transform= at step \d of epoch 0 \(positions \d+ to \d+\) for rank 0 of 1", note)


def test_batch_transform_sees_the_batch_on_its_device():
    """It gets all fields and keys of the batch, as tensors, and what it returns is the batch; zero rows included."""

    def change(fields, keys):
        assert isinstance(keys, torch.Tensor)
        assert len(keys) == len(fields["x"])
        return {"sum": fields["x"].sum(1), "keys": keys}

    for world_size, rank in ((1, 0), (3, 0)):
        for batch in batches(batch_transform=change, batch_size=2, device="cpu", rank=rank, world_size=world_size):
            assert list(batch) == ["sum", "keys"]
            assert torch.equal(batch["sum"], torch.from_numpy(2 * batch.ids))
            np.testing.assert_array_equal(batch["keys"].numpy(), batch.key)
    with pytest.raises(ConfigError, match="returned list"):
        batches(batch_transform=lambda _f, _k: [1])


class Ragged(Squares):
    """Sample i has i % 3 values i, in the columns from 1 on, of four."""

    def __init__(self):
        self.fields = {"x": FieldSpec(shape=(4,), dtype=np.dtype("i4"), ragged=True)}

    def plan(self, share):
        return FreePlan(share, {"x": int((share.ids % 3).sum())})

    def read(self, plan, into):
        ids = plan.share.ids
        into.reserve(self.fields, len(ids), plan.capacity)
        data, indices, indptr = into.arrays("x")
        indptr[0], indptr[1:] = 0, np.cumsum(ids % 3)
        data[:] = np.repeat(ids, ids % 3)
        indices[:] = np.concatenate([np.arange(1, 1 + i % 3) for i in ids] or [[]])
        return ReadReport(valid=np.ones(len(ids), dtype=np.bool_))


def tripled(fields, key):
    row = fields["x"]
    assert row.shape == (1, 4)
    row.data *= 3
    return {"x": row, "sum": row.sum(), "key": key, "cut": row[:, 1:3].astype("f8")}


@pytest.mark.parametrize(("device", "world_size"), [(None, 1), ("cpu", 3), ("cpu", 6)])
def test_sparse_rows_go_in_and_come_out(device, world_size):
    """A ragged sample is a CSR matrix of one row, and may come out as one: of other columns, in empty shares too."""
    seen = []
    for rank in range(world_size):
        options = {"rank": rank, "world_size": world_size, "device": device, "transform": tripled}
        for batch in [b.detach() for step in loader_of(Ragged(), Order(11, batch_size=5), **options) for b in step]:
            dense = {name: batch[name].to_dense() if device else batch[name].toarray() for name in ("x", "cut")}
            assert (dense["x"].shape, dense["cut"].shape) == ((len(batch), 4), (len(batch), 2))
            for at, sample in enumerate(batch.ids.tolist()):
                wanted = [3 * sample if 1 <= column <= sample % 3 else 0 for column in range(4)]
                assert dense["x"][at].tolist() == wanted
                assert dense["cut"][at].tolist() == wanted[1:3]
                assert (int(batch["sum"][at]), int(batch["key"][at])) == (sum(wanted), int(batch.key[at]))
                seen.append(sample)
    assert sorted(seen) == list(range(11))


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda f, _: {"x": f["x"].T}, r"a sparse matrix \[4, 1\]: return one row"),
        (lambda f, _: {"x": f["x"] if f["x"].nnz else f["x"].toarray()}, "sparse int32"),
    ],
)
def test_sparse_rows_that_cannot_be(transform, said):
    """One row each, and always sparse or always dense."""
    with pytest.raises(ConfigError, match=said):
        list(loader_of(Ragged(), Order(11, batch_size=4, kind="sequential"), transform=transform))
