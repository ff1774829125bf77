"""Batches that leave a worker: with memory of their own, and as they were."""

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing

from rankwise.data.contract import ListedIds, OrderState, Share, Step
from rankwise.data.feed.memory.csr import csr_parts, scipy_csr, torch_csr
from rankwise.data.feed.workers.iterable import SentBatch, sent_fields


def share_of(ids):
    ids = np.array(ids)
    resume = OrderState(seed=1, epoch=2, position=len(ids), recipe="r")
    members = ListedIds(ids=ids, lanes=ids)
    step = Step(epoch=2, index=0, start=0, count=len(ids), size=len(ids), members=members, resume=resume)
    return Share(step=step, micro=0, num_micro=1, rank=0, world_size=1, positions=ids, ids=ids, weights=None)


def csr():
    return [np.array([5.0, 6.0, 7.0], "f4"), np.array([0, 3, 1], "i4"), np.array([0, 2, 2, 3], "i4")]


def test_it_owns_its_memory():
    """Dense, sparse, half-precision and empty tensors stay when the memory they came from is filled again."""
    arrays = {"x": np.arange(6.0).reshape(3, 2), "half": np.arange(3, dtype="u2"), "array": np.arange(3)}
    sparse, matrix = csr(), csr()
    lent = {
        "x": torch.from_numpy(arrays["x"]),
        "half": torch.from_numpy(arrays["half"]).view(torch.bfloat16),
        "none": torch.from_numpy(np.zeros((0, 4), "i8")),
        "sparse": torch_csr(tuple(map(torch.from_numpy, sparse)), 4),
        "array": arrays["array"],
        "matrix": scipy_csr(tuple(matrix), 4),
    }
    before = {name: lent[name].clone() for name in ("x", "half")}
    made = {**lent, "own": lent["x"][:, :1], "same": lent["x"]}
    fields = sent_fields(made, lent)
    for array in (*arrays.values(), *sparse, *matrix):
        array[:] = 99
    assert torch.equal(fields["x"], before["x"])
    assert torch.equal(fields["half"], before["half"])
    assert torch.equal(fields["own"], before["x"][:, :1])
    assert fields["sparse"].to_dense().tolist() == [[5, 0, 0, 6], [0, 0, 0, 0], [0, 7, 0, 0]]
    assert fields["array"].tolist() == [0, 1, 2]
    assert fields["matrix"].toarray().tolist() == [[5, 0, 0, 6], [0, 0, 0, 0], [0, 7, 0, 0]]
    shared = [fields["x"], fields["half"], fields["none"], *csr_parts(fields["sparse"])]
    assert all(tensor.is_shared() for tensor in shared)
    assert fields["same"] is fields["x"]


def test_it_travels():
    """Fields, ids, keys, counts and the state after it arrive; sparse ones without a word from torch."""
    fields = {"x": torch.arange(3.0), "sparse": torch_csr(tuple(map(torch.from_numpy, csr())), 4), "a": np.arange(3)}
    batch = SentBatch(share_of([4, 1, 7]), sent_fields(fields, fields), num_lost=2, may_skip=True)
    came = ForkingPickler.loads(ForkingPickler.dumps(batch))
    assert list(came) == list(batch)
    assert torch.equal(came["x"], batch["x"])
    assert torch.equal(came["sparse"].to_dense(), batch["sparse"].to_dense())
    assert came["sparse"].layout == torch.sparse_csr
    assert came["a"].tolist() == [0, 1, 2]
    for name in ("ids", "key", "weights"):
        np.testing.assert_array_equal(getattr(came, name), getattr(batch, name))
    for name in ("count", "resume", "num_lost", "may_skip"):
        assert getattr(came, name) == getattr(batch, name)


def test_release_leaves_it_alone():
    """Nobody fills its memory again: it stays through `release`, a context, and as a copy."""
    batch = SentBatch(share_of([4, 1]), {"x": torch.arange(2)})
    with batch as held:
        held.release()
    assert batch.detach()["x"].tolist() == batch["x"].tolist() == [0, 1]
    assert isinstance(batch.detach(), SentBatch)


def test_it_moves_as_a_tensor_does():
    """Tensors go to the device, as Lightning asks for; arrays of NumPy and SciPy stay."""
    fields = {"x": torch.arange(2.0), "a": np.arange(2)}
    moved = SentBatch(share_of([4, 1]), fields).to(torch.device("meta"), non_blocking=True)
    assert moved["x"].device.type == "meta"
    assert moved["a"] is fields["a"]
    assert moved.resume.position == 2


def test_pinning_asks_each_tensor(monkeypatch):
    """Dense tensors and the parts of sparse ones are page-locked; arrays are not."""
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append(self.dtype) or self)
    fields = {"x": torch.arange(2.0), "sparse": torch_csr(tuple(map(torch.from_numpy, csr())), 4), "a": np.arange(3)}
    pinned = SentBatch(share_of([4, 1, 7]), fields).pin_memory()
    assert asked == [torch.float32, torch.float32, torch.int32, torch.int32]
    assert torch.equal(pinned["sparse"].to_dense(), fields["sparse"].to_dense())


def test_what_a_transform_keeps_is_copied():
    """A table that it hands out again and again is not given away."""
    table = torch.arange(3.0)
    sent = sent_fields({"x": table}, {})
    table += 1
    assert sent["x"].tolist() == [0, 1, 2]
    with pytest.raises(KeyError, match="no field 'y'"):
        _ = SentBatch(share_of([1]), sent)["y"]
