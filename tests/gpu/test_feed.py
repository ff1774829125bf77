"""Batches on a CUDA device: pinned memory, copies on a stream of their own, consumers that are still at work."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
SLOW = 200_000_000  # cycles of a kernel that does nothing: about a tenth of a second


def images(num_samples=2000, shape=(3, 32, 32)):
    """Arrays in memory, as stored."""
    generator = np.random.default_rng(1)
    return {
        "x": generator.integers(0, 60_000, (num_samples, *shape), dtype=np.uint16),
        "y": np.arange(num_samples, dtype=np.int64),
    }


def loader_of(arrays, batch_size=64, **options):
    source = ArraySource(arrays)
    return SampleLoader(source, order=Order(source, batch_size=batch_size, seed=4), device="cuda", **options)


def expected(arrays, ids):
    return torch.from_numpy(arrays["x"][ids].astype(np.int64))


def test_fields_come_as_stored_on_the_device():
    """uint16 travels as uint16, half the bytes of float32; every value is the stored one; every sample comes once."""
    arrays, seen = images(), []
    for (batch,) in loader_of(arrays):
        x = batch["x"]
        assert (x.device, x.dtype, batch["y"].device) == (CUDA, torch.uint16, CUDA)
        assert torch.equal(x.to(torch.int64).cpu(), expected(arrays, batch.ids))
        assert batch["y"].tolist() == batch.ids.tolist()
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(2000))


def test_a_batch_transform_casts_on_the_device():
    """`batch_transform=` runs on the GPU, on the whole batch: cast and scaled there, equal to the CPU's."""

    def scaled(fields, key):
        assert fields["x"].device == CUDA
        return {**fields, "x": fields["x"].to(torch.float32) / 60_000}

    arrays = images(500)
    for (batch,) in loader_of(arrays, batch_transform=scaled):
        wanted = expected(arrays, batch.ids).to(torch.float32) / 60_000
        torch.testing.assert_close(batch["x"].cpu(), wanted, rtol=1e-6, atol=0)


def test_buffers_are_page_locked():
    """The memory that the reader fills is pinned, all of it, so that copies to the device are asynchronous."""
    from rankwise.data.feed.memory.pool import allocate_bytes

    for num_bytes in (64, 100_000, 7_000_001):
        assert torch.from_numpy(allocate_bytes(num_bytes, pinned=True)).is_pinned()
    taken, real = [], torch.empty

    def watched(*size, **options):
        taken.append((size, options.get("pin_memory", False)))
        return real(*size, **options)

    torch.empty = watched
    try:
        assert sum(batch.count for (batch,) in loader_of(images())) == 2000
    finally:
        torch.empty = real
    assert any(pinned for _, pinned in taken), "no memory of the loader was pinned"


@pytest.mark.parametrize("own_stream", [False, True])
def test_a_slow_consumer_reads_what_it_was_given(own_stream):
    """Kernels that wait while the loader goes on to the end of the epoch read their own batch, not a later one."""
    arrays, sums, ids = images(1024), [], []
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        for (batch,) in loader_of(arrays, batch_size=32):
            torch.cuda._sleep(SLOW // 20)
            sums.append(batch["x"].to(torch.int64).sum(dim=(1, 2, 3)))
            ids.append(batch.ids.copy())
            del batch  # nobody holds the batch while its kernels wait
    torch.cuda.synchronize()
    for found, own in zip(sums, ids, strict=True):
        assert torch.equal(found.cpu(), expected(arrays, own).sum(dim=(1, 2, 3)))


def test_kept_batches_stay_what_they_were():
    """Tensors of a whole epoch, and slices of them, kept beyond it: none changes."""
    arrays = images(1000)
    kept = [(batch.ids.copy(), batch["x"], batch["x"][1:, 0]) for (batch,) in loader_of(arrays)]
    for ids, x, part in kept:
        wanted = expected(arrays, ids)
        assert torch.equal(x.to(torch.int64).cpu(), wanted)
        assert torch.equal(part.to(torch.int64).cpu(), wanted[1:, 0])


def test_copies_run_beside_kernels():
    """The copy of the next batch does not wait for the kernels of this one: they run on different streams."""
    arrays, streams = images(640), set()
    real = torch.Tensor.to

    def watched(tensor, *where, **how):
        if not tensor.is_cuda:
            streams.add(torch.cuda.current_stream().cuda_stream)
        return real(tensor, *where, **how)

    torch.Tensor.to = watched
    try:
        for (batch,) in loader_of(arrays):
            assert batch.count
    finally:
        torch.Tensor.to = real
    assert streams
    assert torch.cuda.current_stream().cuda_stream not in streams


def test_sparse_rows_are_csr_tensors_on_the_device(memory_rows):
    """Ragged fields: torch.sparse_csr on the GPU, equal row for row, also under a consumer that is slow."""
    order, kept = Order(memory_rows, batch_size=48, seed=2), []
    for (batch,) in SampleLoader(memory_rows, order=order, device="cuda"):
        torch.cuda._sleep(SLOW // 50)
        kept.append((batch.ids.tolist(), batch["row"], batch["row"].to_dense()))
    for ids, sparse, dense in kept:
        assert (sparse.layout, sparse.device) == (torch.sparse_csr, CUDA)
        wanted = torch.from_numpy(memory_rows.dense(ids))
        assert torch.equal(dense.cpu(), wanted)
        assert torch.equal(sparse.to_dense().cpu(), wanted)


def test_resumed_batches_are_the_same():
    """Stopped in mid-epoch and continued: the ids of the uninterrupted run, on the device as on the CPU."""
    arrays = images(640)
    whole = [batch.ids.tolist() for (batch,) in loader_of(arrays)]
    first = loader_of(arrays)
    for index, (batch,) in enumerate(first):
        first.mark_done(batch.resume)
        if index == 3:
            break
    second = loader_of(arrays)
    second.load_state_dict(first.state_dict())
    assert [batch.ids.tolist() for (batch,) in second] == whole[4:]


JAX = """
import json, os, sys
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax, numpy as np
from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
platform = jax.devices()[0].platform
x = np.arange(600 * 12, dtype=np.int32).reshape(600, 12)
source = ArraySource({"x": x})
right, kept = 0, []
for (batch,) in SampleLoader(source, order=Order(source, batch_size=32), device="jax"):
    kept.append((batch.ids.copy(), batch["x"], (batch["x"] * 2).sum(axis=1)))
for ids, array, twice in kept:
    right += len(ids) * bool((np.asarray(array) == x[ids]).all() and (np.asarray(twice) == 2 * x[ids].sum(1)).all())
print(json.dumps([platform, right, {d.platform for _, a, _ in kept for d in a.devices()} == {platform}]))
"""


def test_jax_arrays_on_the_gpu():
    """`device="jax"`: arrays on JAX's GPU, equal, and still so at the end of the epoch."""
    jaxlib = pytest.importorskip("jaxlib")
    done = subprocess.run([sys.executable, "-c", JAX], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, (jaxlib.__version__, done.stderr)
    platform, right, same_device = json.loads(done.stdout.splitlines()[-1])
    if platform == "cpu":
        pytest.skip("this JAX is built for CPUs")
    assert (right, same_device) == (600, True)


def test_preload_to_gpu(tmp_path):
    """As in annbatch, `preload_to_gpu=True` gives X of every batch on the current device; needs zarr and anndata."""
    pytest.importorskip("zarr")
    anndata = pytest.importorskip("anndata")
    from scipy import sparse

    from rankwise.data.rows import Loader, write_sharded

    x = sparse.random(300, 50, density=0.1, format="csr", dtype=np.float32, random_state=1)
    import zarr

    write_sharded(zarr.open_group(tmp_path / "a.zarr", mode="w"), anndata.AnnData(x))
    loader = Loader(batch_size=32, chunk_size=16, preload_nchunks=4, preload_to_gpu=True, to="torch", return_index=True)
    loader.add_datasets([tmp_path / "a.zarr"])
    for batch in loader:
        assert batch["X"].is_cuda
        np.testing.assert_array_equal(batch["X"].to_dense().cpu().numpy(), x[batch["index"]].toarray())
