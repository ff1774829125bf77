"""Batches as JAX takes them over: the same memory, by pointer, on a CPU."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import rankwise.data.crops as damacy
from rankwise import Order

jax = pytest.importorskip("jax", reason="JAX is not installed")

SMALL = {"samples_per_batch": 3, "sample_shape": (4, 8, 8)}
DTYPES = {"f32": "float32", "f16": "float16", "u16": "uint16", "i32": "int32"}


def address(values):
    return values.ctypes.data if isinstance(values, np.ndarray) else values.data_ptr()


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_and_its_fields_are_shared(volume, device, dtype):
    """The batch itself, and its field, become JAX arrays over their own memory, whichever way JAX is asked."""
    with damacy.Pipeline(damacy.Config(**SMALL, device=device, dtype=dtype)) as p:
        p.push([volume.sample(i, 0, 0) for i in range(3)])
        batch = p.pop()
    for array in (jax.dlpack.from_dlpack(batch), jax.numpy.from_dlpack(batch), jax.dlpack.from_dlpack(batch["image"])):
        assert array.unsafe_buffer_pointer() == batch.info.device_ptr == address(batch["image"])
        assert array.dtype == DTYPES[dtype]
        wanted = np.stack([volume.crop(sample) for sample in batch.samples]).astype(array.dtype)
        np.testing.assert_array_equal(np.asarray(array), wanted)


def test_bfloat16_is_shared(volume):
    """Bfloat16, which NumPy does not know, goes from torch to JAX."""
    with damacy.Pipeline(damacy.Config(**SMALL, device="cpu", dtype="bf16")) as p:
        p.push([volume.sample(i, 0, 0) for i in range(3)])
        batch = p.pop()
    array = jax.dlpack.from_dlpack(batch)
    assert array.dtype == jax.numpy.bfloat16
    assert array.unsafe_buffer_pointer() == batch.info.device_ptr


def test_arrays_are_held_while_others_come(volume):
    """JAX arrays of several batches keep their crops while further batches are read, after release and after close."""
    config = damacy.Config(**SMALL, device="cpu", host_buffer_waves=4)
    with damacy.Pipeline(config) as p:
        p.push(volume.samples(60))
        held = []
        for _ in range(2):
            with p.pop() as batch:
                held.append((batch.samples, jax.dlpack.from_dlpack(batch)))
        pointers = [array.unsafe_buffer_pointer() for _, array in held]
        for batch in p.batches(8):
            assert batch.info.device_ptr not in pointers
            del batch  # held by nobody, so that its buffer can come back
    del p
    gc.collect()
    for samples, array in held:
        np.testing.assert_array_equal(np.asarray(array), np.stack([volume.crop(s) for s in samples]).astype("f4"))


@pytest.fixture
def index(make):
    """An index whose fields have odd sizes: 3 x 5 x 7 voxels, a mask of as many bools."""
    take = damacy.Take(dtype="float32", pad="edge", mask=True)
    return damacy.CropIndex(make("odd", (9, 13, 17)).uri, shape=(3, 5, 7), edges="pad", fields={"image": take})


@pytest.mark.parametrize("device", ["cpu", None])
def test_ordered_batches_are_shared(index, device):
    """Every field of every micro-batch of an ordered pipeline lies where JAX can use it: no copy, whatever its size."""
    order, num_batches = Order(index, batch_size=10), 0
    with damacy.IndexPipeline(index, order=order, micro_batch=3, device=device) as p:
        for batches in p:
            for batch in batches:
                for name in ("image", "image_mask"):
                    array = jax.dlpack.from_dlpack(batch[name])
                    assert array.unsafe_buffer_pointer() == address(batch[name])
                    np.testing.assert_array_equal(np.asarray(array), np.asarray(batch[name]))
                num_batches += 1
    assert num_batches >= len(index) // 3


def test_a_step_may_still_run_when_the_batch_is_released(index):
    """Steps are computed behind Python's back: releasing with their result holds the memory until they are through."""

    @jax.jit
    def step(image, big):
        # the crops are read last, once the products before are there
        return (big @ big @ big)[:, :105] @ image.reshape(len(image), -1).T

    big = jax.numpy.full((700, 700), 0.01)
    results, copies = [], []
    with damacy.IndexPipeline(index, order=Order(index, batch_size=2), device=None, depth=1) as p:
        for (batch,) in p:
            copies.append(batch["image"].copy())
            results.append(step(jax.dlpack.from_dlpack(batch["image"]), big))
            batch.release(results[-1])
    assert len(results) == 14
    for result, copy in zip(results, copies, strict=True):
        np.testing.assert_array_equal(result, step(jax.numpy.array(copy), big))


def test_a_pushed_batch_is_released_with_a_result(volume):
    """The same for pushed samples; what is neither an event nor a result is refused."""
    with damacy.Pipeline(damacy.Config(**SMALL, device="cpu", host_buffer_waves=2)) as p:
        p.push(volume.samples(30))
        for batch in p:
            array = jax.dlpack.from_dlpack(batch)
            wanted = float(np.asarray(batch["image"], "f8").sum())
            total = array.sum()
            batch.release(total)
            assert float(total) == pytest.approx(wanted, rel=1e-4)
            del array


def test_jax_is_not_imported_for_others(volume):
    """Nobody who does not use JAX waits for its import."""
    code = (
        "import sys, rankwise.data.crops as c\n"
        "with c.Pipeline(c.Config(samples_per_batch=1, sample_shape=(4, 8, 8), device='numpy')) as p:\n"
        f"    p.push([c.Sample({volume.uri!r}, ((0, 4), (0, 8), (0, 8)))])\n"
        "    p.pop().release()\n"
        "assert 'jax' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
