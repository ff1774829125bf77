"""Batches on devices."""

import sys

import numpy as np
import pytest
import torch

from rankwise import Order
from rankwise.data.contract import FieldSpec, ReadReport
from rankwise.data.feed import HostBuffer
from rankwise.data.feed.place import make_placer
from rankwise.errors import ConfigError, MissingExtraError
from rankwise.testing.shares import loader_of
from rankwise.testing.stores.free_plans import FreePlan, FreeSource
from rankwise.testing.stores.small_rows import csr_parts

RAGGED = {
    "r": FieldSpec(shape=(6,), dtype=np.dtype("f4"), ragged=True),
    "d": FieldSpec(shape=(2,), dtype=np.dtype("u2")),
}


@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_cpu_sees_the_buffer_itself(device):
    """On the host nothing is copied: a field lies in the buffer, and a CSR matrix over the parts of a ragged one."""
    buffer = HostBuffer()
    buffer.reserve(RAGGED, 3, {"r": 5})
    data, indices, indptr = buffer.arrays("r")
    data[:], indices[:], indptr[:] = 1, [0, 5, 1, 2, 3], [0, 2, 2, 5]
    placer = make_placer(device)
    fields = placer.receive(placer.place(buffer, ["r", "d"], {"r": 6}))
    buffer.arrays("d")[0][:] = 7
    data *= 3
    assert placer.shares_memory
    assert not placer.pinned
    assert (np.asarray(fields["d"]) == 7).all()
    rows = fields["r"].todense() if device is None else fields["r"].to_dense().numpy()
    assert rows.tolist() == [[3, 0, 0, 0, 0, 3], [0] * 6, [0, 3, 3, 3, 0, 0]]
    assert [part.dtype.itemsize for part in csr_parts(fields["r"])] == [4, 4, 4]


def test_without_torch_the_extra_is_named(monkeypatch):
    """A device without torch is a MissingExtraError; NumPy arrays need none."""
    monkeypatch.setitem(sys.modules, "torch", None)
    make_placer(None)
    with pytest.raises(MissingExtraError, match=r"rankwise\[train\]"):
        make_placer("cpu")


def test_other_devices_get_copies():
    """A device that is neither CPU nor CUDA gets a copy (here "meta", which keeps shape and dtype alone)."""
    buffer = HostBuffer()
    buffer.reserve({"d": RAGGED["d"]}, 3, {})
    placer = make_placer("meta")
    fields = placer.receive(placer.place(buffer, ["d"]))
    assert (fields["d"].device.type, fields["d"].shape) == ("meta", (3, 2))
    assert not placer.shares_memory
    assert placer.keys(np.arange(3)).device.type == "meta"
    with pytest.raises(ConfigError, match="not a device of torch"):
        make_placer("cuda:x")


class Large(FreeSource):
    """Samples of 1 MiB, each filled with its id."""

    fingerprint, chunk_samples, num_samples = "large", 1, 96
    fields = {"x": FieldSpec(shape=(2**18,), dtype=np.dtype("f4"))}  # noqa: RUF012

    def plan(self, share):
        return FreePlan(share)

    def hint(self, plan):
        pass

    def read(self, plan, into):
        into.reserve(self.fields, len(plan.share.ids), {})
        into.arrays("x")[0][:] = plan.share.ids[:, None]
        return ReadReport(valid=np.ones(len(plan.share.ids), dtype=np.bool_))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_batches_are_whole_and_stay_so():
    """On a GPU each batch arrives whole although its host buffer is filled again at once.

    Work that is still queued on the current stream when the loader moves on sees the values of its own batch.
    """
    sums, ids = [], []
    loader = loader_of(Large(), Order(96, batch_size=8), device="cuda", depth=2)
    for (batch,) in loader:
        assert batch["x"].is_cuda
        torch.cuda._sleep(20_000_000)  # the step is still running on the device when the next batch is pulled
        sums.append(batch["x"].double().mean(1))
        ids.append(torch.from_numpy(batch.ids))
    assert torch.equal(torch.cat(sums).cpu(), torch.cat(ids).double())


def test_bfloat16_shares_memory_too():
    """NumPy has no bfloat16 of its own; torch sees the same bits, without a copy."""
    import ml_dtypes

    buffer = HostBuffer()
    buffer.reserve({"x": FieldSpec(shape=(2,), dtype=np.dtype(ml_dtypes.bfloat16))}, 2, {})
    fields = make_placer("cpu").place(buffer, ["x"]).fields
    buffer.arrays("x")[0][:] = [[1.5, -2.0], [0.25, 3.0]]
    assert fields["x"].dtype == torch.bfloat16
    assert fields["x"].tolist() == [[1.5, -2.0], [0.25, 3.0]]
