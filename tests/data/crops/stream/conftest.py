"""A small configuration of pipelines, and how their batches are looked at."""

import re
import time

import numpy as np
import pytest

import rankwise.data.crops as damacy

SMALL = {"samples_per_batch": 4, "sample_shape": (4, 8, 8), "device": "cpu", "pop_timeout_s": 60.0}


@pytest.fixture(scope="session")
def config():
    """A small configuration: ``config(dtype="f16", ...)``."""
    return lambda **values: damacy.Config(**{**SMALL, **values})


@pytest.fixture(scope="session")
def check():
    """Every voxel of a batch is that of the array: ``check(batch, volume)``."""

    def compare(batch, volume, dtype=np.float32):
        crops = np.asarray(batch["image"])
        assert crops.dtype == dtype
        for row, sample in zip(crops, batch.samples, strict=True):
            np.testing.assert_array_equal(row, volume.crop(sample).astype(dtype))

    return compare


@pytest.fixture(scope="session")
def patient_pops():
    """So many pops, which go on after a timeout: ``patient_pops(pipeline, 2)``."""

    def pops(pipeline, number):
        while number:
            try:
                yield pipeline.pop()
                number -= 1
            except damacy.PoolStarved:
                continue

    return pops


@pytest.fixture(scope="session")
def says_in_time():
    """Whether pops that run out of time come to say it, whatever they say before: ``says_in_time(pipeline, r"...")``.

    A pop's time may be over on a busy machine before the threads behind it have come to where they wait.
    """

    def says(pipeline, pattern):
        deadline, told = time.monotonic() + 120, ""
        while not re.search(pattern, told) and time.monotonic() < deadline:
            with pytest.raises(damacy.PoolStarved) as caught:
                pipeline.pop()
            told = str(caught.value)
        assert re.search(pattern, told), told
        return True

    return says
