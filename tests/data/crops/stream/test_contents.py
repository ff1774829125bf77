"""What batches hold: dtypes, several arrays, labels, boxes that stick out, NumPy arrays."""

from itertools import islice

import numpy as np
import pytest
import torch

import rankwise.data.crops as damacy


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", "bf16", "u16", "i32", "native"])
def test_every_dtype_comes_out(volume, dtype, config):
    """Floats, integers, the arrays' own: equal to what zarr-python reads, cast by NumPy (or torch for bfloat16)."""
    samples = list(volume.samples(4))
    with damacy.Pipeline(config(dtype=dtype)) as p:
        p.push(samples)
        batch = p.pop()
    wanted = torch.from_numpy(np.stack([volume.crop(s).astype("f8") for s in samples]))
    got = batch["image"]
    names = {"f32": "float32", "f16": "float16", "f64": "float64", "bf16": "bfloat16", "u16": "uint16", "i32": "int32"}
    assert str(got.dtype) == "torch." + names.get(dtype, "uint16")
    assert torch.equal(got.double(), wanted.to(got.dtype).double())
    assert batch.info.dtype == names.get(dtype, "uint16")


def test_native_is_one_dtype(volume, make, config):
    """The first array says what native means; another one is refused, by sample."""
    other = make("other", dtype="i4")
    with damacy.Pipeline(config(dtype="native")) as p:
        p.push([volume.sample(0, 0, 0), other.sample(0, 0, 0)])
        with pytest.raises(damacy.DtypeMismatch, match=r"sample 1 .* native dtype, which is uint16"):
            p.pop()
        assert p.pop()["image"].dtype == torch.uint16


def test_numpy_without_torch(volume, config, check):
    """device="numpy" gives NumPy arrays, which share memory like tensors do."""
    with damacy.Pipeline(config(device="numpy")) as p:
        assert p.device is None
        p.push(islice(volume.samples(100), 8))
        for batch in p:
            assert isinstance(batch["image"], np.ndarray)
            check(batch, volume)
            assert np.shares_memory(np.from_dlpack(batch), batch["image"])


def test_labels_and_meta_travel(volume, config):
    """Labels are stacked, anything else is found again, row by row."""
    samples = [volume.sample(i, 0, 0, label=(i, 2 * i), meta={"name": f"cell {i}"}) for i in range(6)]
    with damacy.Pipeline(config()) as p:
        p.push(samples)
        first, second = p
    assert first.labels.tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]
    assert [meta["name"] for meta in second.meta] == ["cell 4", "cell 5"]
    with damacy.Pipeline(config()) as p:
        p.push([volume.sample(0, 0, 0, label=1), volume.sample(1, 0, 0)])
        with pytest.raises(damacy.InvalidArgument, match=r"samples \[1\] have no label"):
            _ = p.pop().labels
    with damacy.Pipeline(config()) as p:
        p.push([volume.sample(0, 0, 0, label=1), volume.sample(1, 0, 0, label=(1, 2))])
        with pytest.raises(damacy.InvalidArgument, match="one shape"):
            _ = p.pop().labels


def test_several_arrays_make_a_sample(volume, make, config):
    """Image and label volume, each with its own box, scale and dtype, in one batch."""
    seg = make("seg", (10, 15, 20), seed=5, dtype="u1", chunks=(5, 5, 5), shards=(10, 15, 20))
    cfg = config(
        fields={"seg": damacy.Field(sample_shape=(2, 4, 4)), "wide": damacy.Field(sample_shape=(1, 8, 8), dtype="f16")},
        normalise=damacy.Scaling.unit(0, 1000),
    )
    samples = []
    for i in range(5):
        also = {
            "seg": damacy.Crop(seg.uri, ((i, i + 2), (i, i + 4), (i, i + 4))),
            "wide": damacy.Crop(volume.uri, ((i, i + 1), (0, 8), (0, 8))),
        }
        samples.append(volume.sample(2 * i, 2 * i, 2 * i, also=also))
    with damacy.Pipeline(cfg) as p:
        p.push(samples)
        batches = list(p)
    assert [len(b) for b in batches] == [4, 1]
    for batch in batches:
        assert batch.keys() == ("image", "seg", "wide")
        for i, s in zip(batch.numbers.tolist(), batch.samples, strict=True):
            row = i % 4
            np.testing.assert_allclose(batch["image"][row].numpy(), volume.crop(s) / 1000, rtol=1e-6)
            np.testing.assert_array_equal(batch["seg"][row].numpy(), seg.values[i : i + 2, i : i + 4, i : i + 4])
            np.testing.assert_array_equal(batch["wide"][row].numpy(), volume.values[i : i + 1, :8, :8].astype("f2"))
    with damacy.Pipeline(cfg) as p, pytest.raises(damacy.InvalidSample, match=r"additional fields \[\]"):
        p.push([volume.sample(0, 0, 0)])


def test_boxes_may_stick_out(volume, config):
    """With pad= boxes reach past the edges; the mask says which voxels are real."""
    with damacy.Pipeline(config(pad="edge")) as p:
        p.push([volume.sample(-2, -3, -1), volume.sample(18, 28, 36), volume.sample(0, 0, 0)])
        batch = p.pop()
    padded = np.pad(volume.values, 10, mode="edge").astype("f4")
    inside = np.pad(np.ones(volume.values.shape, bool), 10)
    for row, sample in enumerate(batch.samples):
        place = tuple(slice(a + 10, b + 10) for a, b in sample.aabb)
        np.testing.assert_array_equal(batch["image"][row].numpy(), padded[place])
        np.testing.assert_array_equal(batch.mask[row].numpy(), inside[place])
    assert "image_mask" in batch
    with damacy.Pipeline(config(pad="fill", mask=False)) as p:
        p.push([volume.sample(-2, 0, 0)])
        batch = p.pop()
        assert batch.keys() == ("image",)
        with pytest.raises(damacy.InvalidArgument, match="no mask"):
            _ = batch.mask


def test_whole_numbers_scale(volume, config):
    """A scaling may be written without decimal points."""
    (sample,) = volume.samples(1)
    with damacy.Pipeline(config(normalise=damacy.Scaling(2, 1))) as p:
        p.push([sample])
        np.testing.assert_array_equal(p.pop()["image"][0], volume.crop(sample) * 2.0 + 1.0)
