"""A process that is forked in the middle of an iteration has no reader thread: it is told so, and never waits."""

import os
import pickle
import signal
from copy import deepcopy

import anndata
import numpy as np
import pytest
import zarr

from rankwise import Order
from rankwise.data import crops
from rankwise.data.rows import Loader, OrderedLoader
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.errors import ConfigError

DATA = np.arange(64 * 16, dtype="i4").reshape(64, 16)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    where = tmp_path_factory.mktemp("stored")
    zarr.create_group(where / "a.zarr").create_array("x", data=DATA, chunks=(4, 8))
    return where


def samples(place, **options):
    source = ArraySource.open(place / "a.zarr")
    return SampleLoader(source, order=Order(source, batch_size=6), **options)


def rows(_place):
    made = anndata.AnnData(DATA.astype("f4"))
    return OrderedLoader(made, order=Order(made, batch_size=6))


def drawn(place):
    loader = Loader(batch_size=6, chunk_size=2, preload_nchunks=3, shuffle=True, rng=0)
    return loader.add_dataset(zarr.open_array(place / "a.zarr" / "x", mode="r"))


def indexed(place):
    index = crops.CropIndex(str(place / "a.zarr" / "x"), shape=(4, 4))
    return crops.IndexPipeline(index, order=Order(index, batch_size=6))


def pushed(place):
    config = crops.Config(samples_per_batch=2, sample_shape=(4, 4), device="cpu", host_buffer_waves=2)
    pipeline = crops.Pipeline(config)
    pipeline.push([crops.Sample(str(place / "a.zarr" / "x"), ((at, at + 4), (0, 4))) for at in range(40)])
    return pipeline


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("made", [samples, rows, drawn, indexed, pushed])
def test_a_fork_in_the_middle_of_an_iteration_is_told(made, place):
    """The child gets an error in place of an endless wait; the parent reads on."""
    batches = iter(made(place))
    next(batches)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits
        code = 3
        try:
            list(batches)
        except RuntimeError as error:
            code = 7 if "forked" in str(error) else 4
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(batches)) > 3


@pytest.mark.parametrize("copied", [lambda batch: pickle.loads(pickle.dumps(batch)), deepcopy])
def test_batches_can_be_sent(copied, place):
    """A batch can be pickled and copied, with its own rows only; a released one says that it was released."""
    with samples(place, depth=8) as loader:
        for (batch,) in loader:
            again = copied(batch)
            assert again["x"].numpy().tobytes() == DATA[batch.ids].tobytes()
            assert (again.resume, again.ids.tolist()) == (batch.resume, batch.ids.tolist())
            assert len(pickle.dumps(batch)) < DATA.nbytes  # the memory of a group of steps is that of all of them
    batch.release()
    with pytest.raises(ConfigError, match="was released"):
        copied(batch)
