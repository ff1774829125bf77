"""`SampleLoader`: from stores on disk to the batches of every rank."""

import contextlib
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.errors import ConfigError, SampleError
from rankwise.testing import run_ranks
from rankwise.testing.new_threads import threads_since
from rankwise.testing.shares import RankPlace
from rankwise.world import World


def store(path, num_samples=203):
    rng = np.random.default_rng(0)
    image, label = rng.integers(0, 255, (num_samples, 6, 5)).astype("u1"), np.arange(num_samples)
    group = zarr.create_group(path)
    group.create_array("image", data=image, chunks=(8, 3, 5), shards=(32, 6, 5))
    group.create_array("label", data=label, chunks=(16,))
    return image


def taken(loader, image, *, steps=None):
    """Ids of each step, every value checked; marks as many steps done as are taken."""
    ids = []
    for number, batches in enumerate(loader):
        if number == steps:
            break
        here = []
        for batch in batches:
            np.testing.assert_array_equal(batch["image"].numpy(), image[batch.ids])
            np.testing.assert_array_equal(batch["label"].numpy(), batch.ids)
            here += batch.ids.tolist()
            resume = batch.resume
        loader.mark_done(resume)
        ids.append(here)
    return ids


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_exactly_once_at_any_world_and_restart(tmp_path_factory, data):
    """Ranks together show each sample once, byte for byte, also when they stop and go on as another world."""
    batch_size, stop_at = data.draw(st.integers(1, 60)), data.draw(st.integers(0, 9))
    world_size, later_world = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    micro = data.draw(st.none() | st.integers(1, 9))
    path = tmp_path_factory.mktemp("store")
    image = store(path, num_samples=data.draw(st.integers(1, 150)))
    source = ArraySource.open(path)
    order = Order(source, batch_size=batch_size, remainder="split")
    reference = [order.step(state).ids.tolist() for state in _states(order)]

    def world(size, state, steps):
        loaders = [SampleLoader(source, order=order, world=RankPlace(r, size), micro_batch=micro) for r in range(size)]
        for loader in loaders:
            loader.load_state_dict(state)
        ranks = [taken(loader, image, steps=steps) for loader in loaders]
        states = [loader.state_dict() for loader in loaders]
        assert states == states[:1] * size
        return [list(chain(*parts)) for parts in zip(*ranks, strict=True)], states[0]

    first, state = world(world_size, order.start().to_json(), stop_at)
    second, _ = world(later_world, state, None) if stop_at < len(reference) else ([], None)
    assert [sorted(ids) for ids in first + second] == [sorted(ids) for ids in reference]
    assert sorted(chain(*first, *second)) == list(range(source.num_samples))


def _states(order):
    state = order.start()
    for _ in range(order.num_steps(state)):
        yield state
        state = order.step(state).resume


def test_an_epoch_decodes_each_chunk_about_once(tmp_path):
    """The window of the order fits the cache: a shuffled epoch decodes each chunk once, and a few twice at most."""
    num_samples, chunk = 1024, 8
    zarr.create_array(tmp_path, data=np.arange(num_samples * 8).reshape(-1, 8), chunks=(chunk, 8), shards=(128, 8))
    source = ArraySource({"x": tmp_path}, cache=4 * 4 * chunk * 64 * 2)
    order = Order(source, batch_size=32, lanes=4, window=4)
    loader = SampleLoader(source, order=order, device=None, across_epochs=False)  # of one epoch alone
    for _ in loader:
        pass
    num_chunks = num_samples // chunk
    assert num_chunks <= loader.stats.chunks_decoded <= 1.15 * num_chunks
    assert loader.stats.chunks_decoded == source.stats.chunks_decoded


@pytest.mark.parametrize(("depth", "times"), [(None, 1), (1, 3)])
def test_a_window_is_read_as_one(tmp_path, depth, times):
    """The steps of a window decode each of its chunks once, with no cache at all; read step by step they do not."""
    num_samples, chunk = 1024, 8
    zarr.create_array(tmp_path, data=np.arange(num_samples * 8).reshape(-1, 8), chunks=(chunk, 8), shards=(128, 8))
    source = ArraySource({"x": tmp_path}, cache=0)
    loader = SampleLoader(source, order=Order(source, batch_size=32, lanes=4, window=4), device=None, depth=depth)
    found = np.concatenate([batch["x"][:, 0].copy() for (batch,) in loader])
    assert sorted(found.tolist()) == list(range(0, num_samples * 8, 8))
    num_chunks = num_samples // chunk
    assert times * num_chunks <= loader.stats.chunks_decoded < (times + 1) * num_chunks


@pytest.mark.parametrize(("row", "gains"), [((64, 64), True), ((512, 513), False)])
def test_large_samples_are_not_copied_once_more(tmp_path, row, gains):
    """Steps are read as one where chunks hold many samples; samples of over 256 KiB go straight into their batch."""
    zarr.create_array(tmp_path, shape=(4, *row), chunks=(2, *row), dtype="u1")
    source = ArraySource({"x": tmp_path, "label": np.arange(4)})
    assert source.locality.group_steps is gains
    assert not source.select(["label"]).locality.group_steps


def test_one_process_is_a_world_of_one(tmp_path):
    """Without launcher, group or arguments the loader has all samples, as tensors on the CPU."""
    image = store(tmp_path)
    source = ArraySource.open(tmp_path)
    assert World.current().world_size == 1
    loader = SampleLoader(source, order=Order(source, batch_size=64), fields=["image"])
    ids = []
    for (batch,) in loader:
        assert list(batch) == ["image"]
        assert torch.equal(batch["image"], torch.from_numpy(image[batch.ids]))
        ids += batch.ids.tolist()
    assert sorted(ids) == list(range(203))


def _epoch(world, path):
    from rankwise import Order
    from rankwise.data.samples import ArraySource, SampleLoader

    source = ArraySource.open(path)
    loader = SampleLoader(source, order=Order(source, batch_size=10), micro_batch=3)
    return [int(label) for batches in loader for batch in batches for label in batch["label"]]


def test_real_ranks_share_the_epoch(tmp_path):
    """In a group of two processes each loader finds its own place; together they show each sample once."""
    store(tmp_path)
    ranks = run_ranks(_epoch, 2, str(tmp_path))
    assert sorted(chain(*ranks)) == list(range(203))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 21


def test_damage_stops_the_loader_with_the_place(tmp_path):
    """A damaged chunk surfaces as SampleError with sample, array, file and step."""
    store(tmp_path)
    file = tmp_path / "image" / "c" / "2" / "0" / "0"
    file.write_bytes(file.read_bytes()[:-100])
    source = ArraySource.open(tmp_path)
    with pytest.raises(SampleError, match=r"sample \d+ cannot be read: .*image/c/2/0/0 .*checksum") as caught:
        for _ in SampleLoader(source, order=Order(source, batch_size=20)):
            pass
    assert 64 <= caught.value.sample < 96
    assert "while reading step" in caught.value.__notes__[0]


def test_damaged_samples_are_left_out_within_a_budget(tmp_path):
    """With on_bad_sample= the samples of a damaged chunk are left out and counted; the others arrive."""
    image = store(tmp_path)
    (tmp_path / "label" / "c" / "3").write_bytes(b"nonsense")
    source = ArraySource.open(tmp_path)
    loader = SampleLoader(source, order=Order(source, batch_size=20), world=RankPlace(0, 1), on_bad_sample=16)
    assert sorted(chain(*taken(loader, image))) == [i for i in range(203) if not 48 <= i < 64]
    assert (loader.stats.skipped, loader.stats.samples) == (16, 187)


def test_an_order_of_other_data_is_refused(tmp_path):
    """The order of the training data does not serve the validation data, even at equal length."""
    store(tmp_path / "a")
    source = ArraySource.open(tmp_path / "a")
    other = ArraySource({"x": np.arange(203)})
    with pytest.raises(ConfigError, match="made for other data"):
        SampleLoader(other, order=Order(source, batch_size=8))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed by Linux only")
def test_closing_between_epochs(tmp_path):
    """What was read for the next epoch is dropped: no thread and no open file is left. Also with an array in memory.

    The source stays usable: another loader opens it again.
    """
    image = store(tmp_path)
    for arrays, is_early in (
        ({"image": tmp_path / "image", "label": tmp_path / "label"}, True),
        ({"image": tmp_path / "image", "label": np.arange(203)}, False),
    ):
        source = ArraySource(arrays)
        assert source.stateless == is_early
        for _ in range(2):
            loader = SampleLoader(source, order=Order(source, batch_size=50), world=RankPlace())
            assert sorted(chain.from_iterable(taken(loader, image))) == list(range(203))
            loader.close()
            assert not threads_since("rankwise-reader")
            assert not open_files(tmp_path)
            assert loader.state_dict()["epoch"] == 1


def open_files(folder):
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.append(str(entry.readlink()))
    return [place for place in found if place.startswith(str(folder))]
