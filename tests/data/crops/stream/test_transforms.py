"""`transform=` and `batch_transform=` of a pipeline."""

import numpy as np
import pytest
import torch

import rankwise.data.crops as damacy


def test_an_error_of_batch_transform_names_the_samples(volume, config):
    """The user's own exception arrives, with the samples of its batch as a note."""

    def fail(fields, _keys):
        raise ValueError("as a user's code does")

    with damacy.Pipeline(config(batch_transform=fail, pop_timeout_s=None)) as p:
        p.push(volume.samples(5))
        with pytest.raises(ValueError, match="as a user's") as caught:
            p.pop()
    assert caught.value.__notes__[0].startswith("in batch_transform= of the samples 0, 1")


def test_transforms_see_the_key(volume, config):
    """transform= gets NumPy arrays and the sample's key, batch_transform= the batch and its keys, on the device."""
    seen = {}

    def jitter(fields, key):
        image = fields["image"]
        seen[key] = image.copy()
        return {"image": image[:, ::2], "mean": image.mean()}

    def shift(fields, keys):
        assert isinstance(fields["image"], torch.Tensor)
        return {**fields, "image": fields["image"] + 1, "keys": keys}

    samples = [*volume.samples(5), volume.sample(0, 0, 0, key=-5)]
    keys = []
    with damacy.Pipeline(config(transform=jitter, batch_transform=shift)) as p:
        p.push(samples)
        for batch in p:
            keys += batch.key.tolist()
            assert batch["keys"].tolist() == batch.key.tolist()
            for row, (key, sample) in enumerate(zip(batch.key.tolist(), batch.samples, strict=True)):
                wanted = volume.crop(sample).astype("f4")
                np.testing.assert_array_equal(seen[key], wanted)
                np.testing.assert_array_equal(batch["image"][row].numpy(), wanted[:, ::2] + 1)
                assert batch["mean"][row].item() == pytest.approx(wanted.mean())
    assert len(set(keys)) == 6
    assert keys[-1] == -5
    with damacy.Pipeline(config()) as p:
        p.push(samples)
        assert [k for batch in p for k in batch.key.tolist()] == keys


def test_a_failing_transform_is_raised_and_names_its_sample(volume, config):
    """The user's own exception comes through, with the sample; later batches go on."""

    def fail(fields, key):
        if key == 13:
            raise ZeroDivisionError
        return fields

    with damacy.Pipeline(config(transform=fail)) as p:
        p.push([volume.sample(0, 0, 0, key=13), *volume.samples(7)])
        with pytest.raises(ZeroDivisionError) as caught:
            p.pop()
        assert "of sample 0 (key 13)" in caught.value.__notes__[0]
        assert p.pop().numbers.tolist() == [4, 5, 6, 7]


def test_kept_errors_of_a_batch_transform_keep_no_memory(volume, config):
    """A loop that collects the errors of batch_transform= goes on: an error holds no batch buffer."""
    errors = []

    def fail(fields, keys):
        raise ZeroDivisionError(keys)

    with damacy.Pipeline(config(batch_transform=fail, host_buffer_waves=2, pop_timeout_s=20.0)) as p:
        p.push(volume.samples(24))
        for _ in range(6):
            with pytest.raises(ZeroDivisionError) as caught:
                p.pop()
            errors.append(caught.value)
        with pytest.raises(damacy.TryAgain):
            p.pop()


def test_a_transform_that_enlarges_meets_the_cap(volume, config):
    """The cap holds for what really comes out, not only for what was expected."""
    cap = 2 * 4 * 4 * 8 * 8 * 4
    big = config(transform=lambda fields, _key: {"image": np.repeat(fields["image"], 9, 0)}, max_gpu_memory_bytes=cap)
    with damacy.Pipeline(big) as p:
        p.push(volume.samples(4))
        with pytest.raises(damacy.BudgetExceeded, match=r"transform= or a stage .* may have made the samples larger"):
            p.pop()
