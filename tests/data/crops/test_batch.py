"""`Batch`: fields, DLPack of both versions, release; all over one memory."""

import gc

import numpy as np
import pytest
import torch

import rankwise.data.crops as damacy


@pytest.fixture(params=["cpu", "numpy"])
def batch(request, volume):
    config = damacy.Config(samples_per_batch=3, sample_shape=(4, 8, 8), device=request.param)
    with damacy.Pipeline(config) as p:
        p.push([volume.sample(i, 0, 0) for i in range(3)])
        return p.pop()


def pointer(values):
    return values.ctypes.data if isinstance(values, np.ndarray) else values.data_ptr()


def test_everybody_sees_the_same_memory(batch):
    """NumPy and torch take the crops over without a copy, however they ask; so the pointer is one."""
    address = batch.info.device_ptr
    assert pointer(batch["image"]) == address
    assert pointer(torch.from_dlpack(batch)) == address
    assert pointer(np.from_dlpack(batch)) == address
    assert pointer(np.from_dlpack(batch, copy=False)) == address
    assert address % 64 == 0
    torch.from_dlpack(batch)[1, 2, 3, 4] = -7
    assert np.from_dlpack(batch)[1, 2, 3, 4] == -7


def test_both_versions_of_the_protocol(batch):
    """The first version of DLPack unless the consumer understands 1.0; the device is the CPU."""
    assert batch.__dlpack_device__() == (1, 0)
    for stream in (None, -1, 1, 2):
        assert '"dltensor"' in repr(batch.__dlpack__(stream=stream))
    assert '"dltensor"' in repr(batch.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(batch.__dlpack__(max_version=(1, 0)))
    copied = np.from_dlpack(batch, copy=True)
    copied[:] = -1
    assert (np.from_dlpack(batch) > 0).all()


def test_a_capsule_keeps_the_memory(volume):
    """A DLPack capsule that nobody took over yet holds the memory beyond the batch, the pipeline and its end."""
    config = damacy.Config(samples_per_batch=3, sample_shape=(4, 8, 8), host_buffer_waves=2)
    with damacy.Pipeline(config) as p:
        p.push(volume.sample(i % 16, 0, 0) for i in range(30))
        batch = p.pop()
        capsule = batch.__dlpack__()
        wanted = np.asarray(batch["image"]).copy()
        batch.release()
        for _ in range(4):
            p.pop()
    del p, batch
    gc.collect()
    np.testing.assert_array_equal(torch.utils.dlpack.from_dlpack(capsule).numpy(), wanted)


def test_bfloat16(volume):
    """Torch hands bfloat16 over; NumPy cannot, and says who can."""
    for device in ("cpu", "numpy"):
        config = damacy.Config(samples_per_batch=3, sample_shape=(4, 8, 8), dtype="bf16", device=device)
        with damacy.Pipeline(config) as p:
            p.push([volume.sample(i, 0, 0) for i in range(3)])
            batch = p.pop()
        assert batch.info.dtype == "bfloat16"
        if device == "cpu":
            tensor = torch.from_dlpack(batch)
            assert tensor.dtype == torch.bfloat16
            assert tensor.data_ptr() == batch.info.device_ptr
        else:
            with pytest.raises(BufferError, match="torch can"):
                batch.__dlpack__()
            assert batch["image"].astype("f4")[0, 0, 0, 0] > 0


def test_information(batch):
    """The documented facts about a batch."""
    info = batch.info
    assert (info.shape, info.dtype, info.ready_stream, info.batch_id) == ((3, 4, 8, 8), "float32", 0, 0)
    assert (len(batch), batch.count, list(batch), batch.keys()) == (3, 3, ["image"], ("image",))
    assert "image" in batch
    assert "label" not in batch
    assert "samples=3: image" in repr(batch)
    with pytest.raises(KeyError, match="no field 'label'; it has 'image'"):
        batch["label"]


def test_a_released_batch_refuses(batch):
    """After release every way to the memory is an error of the RuntimeError family; what it is about stays known."""
    with batch as same:
        assert same is batch
    batch.release()
    ways = (
        lambda: batch["image"],
        lambda: batch.info,
        lambda: batch.mask,
        lambda: torch.from_dlpack(batch),
        lambda: np.from_dlpack(batch),
        batch.__dlpack_device__,
        lambda: list(batch),
        batch.keys,
        lambda: "image" in batch,
    )
    for way in ways:
        with pytest.raises(RuntimeError, match="batch 0 was released"):
            way()
    assert len(batch.samples) == len(batch) == 3
    assert "released" in repr(batch)


def test_a_batch_without_its_main_field(volume):
    """transform= may leave the crops out: fields are there by name, and DLPack says why it has nothing."""
    config = damacy.Config(
        samples_per_batch=2, sample_shape=(4, 8, 8), transform=lambda f, _k: {"m": f["image"].mean()}
    )
    with damacy.Pipeline(config) as p:
        p.push([volume.sample(i, 0, 0) for i in range(2)])
        batch = p.pop()
    assert batch["m"].shape == (2,)
    with pytest.raises(damacy.InvalidArgument, match="dropped the field 'image'"):
        torch.from_dlpack(batch)
