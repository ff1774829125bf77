"""`DatasetLoader`: any map-style dataset in our order."""

import sys
import textwrap
from multiprocessing import forkserver

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from rankwise import Order
from rankwise.data.samples import ArraySource, DatasetLoader, sample_key
from rankwise.errors import ConfigError
from rankwise.testing.patience import until
from rankwise.testing.shares import RankPlace
from rankwise.world import World


class Noisy:
    """Draws from every global generator, as datasets in the wild do."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        import random

        drawn = [random.random(), np.random.random(), float(torch.rand(()))]  # noqa: NPY002
        return {"id": index, "noise": torch.tensor(drawn)}


def numbers(num_samples=53):
    return TensorDataset(torch.arange(num_samples, dtype=torch.float32) * 2, torch.arange(num_samples))


def ids_of(loader, *, steps=None):
    got = []
    for number, batches in enumerate(loader):
        if number == steps:
            break
        for batch in batches:
            assert torch.equal(batch[1], torch.from_numpy(batch.ids))
            assert torch.equal(batch[0], 2.0 * batch[1])
            got += batch[1].tolist()
        loader.mark_done(batches[0].resume)
    return got


@pytest.mark.parametrize("later_world", [1, 3])
def test_positions_are_consumed_not_pulled(later_world):
    """Two workers prefetch four batches each, and yet the state is that of the last step marked done.

    New loaders at another world size go on with exactly the remaining samples.
    """
    order = Order(53, batch_size=6)
    loader = DatasetLoader(numbers(), order=order, num_workers=2, prefetch_factor=4, micro_batch=4)
    done = ids_of(loader, steps=3)
    assert loader.state_dict()["position"] == 18
    assert len(loader) == 6
    rest = []
    for rank in range(later_world):
        later = DatasetLoader(numbers(), order=order, world=RankPlace(rank, later_world))
        later.load_state_dict(loader.state_dict())
        rest += ids_of(later)
    assert (len(done), sorted(done + rest)) == (18, list(range(53)))
    assert sorted(ids_of(loader)) == sorted(rest)  # the same workers begin anew after the early stop


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_each_step(world_size):
    """Together the ranks have the samples of each step; a rank without samples gets zero rows; equally many passes."""
    order = Order(23, batch_size=5)
    ranks = [
        [[(b[1].tolist(), b[0].shape, b.count) for b in batches] for batches in loader]
        for loader in (
            DatasetLoader(numbers(23), order=order, world=RankPlace(r, world_size), micro_batch=2)
            for r in range(world_size)
        )
    ]
    state = order.start()
    for step in range(5):
        wanted, state = order.step(state).ids.tolist(), order.step(state).resume
        parts = [rank[step] for rank in ranks]
        assert len({len(part) for part in parts}) == 1
        assert sorted(i for part in parts for ids, _, _ in part for i in ids) == sorted(wanted)
        assert all(shape == (len(ids),) and count == len(ids) for part in parts for ids, shape, count in part)


def noise_of(**options):
    made = {}
    for batches in DatasetLoader(Noisy(), order=Order(23, batch_size=6), **options):
        for batch in batches:
            made.update({int(i): tuple(row.tolist()) for i, row in zip(batch["id"], batch["noise"], strict=True)})
    return made


def test_randomness_belongs_to_the_sample():
    """What a dataset draws from Python's, NumPy's and torch's generators is the same at any world size."""
    one = noise_of()
    two = {}
    for rank in range(2):
        two.update(noise_of(world=RankPlace(rank, 2), micro_batch=1))
    assert one == two
    assert len(set(one.values())) == 23


def test_randomness_of_workers_is_that_of_one_process(tmp_path, monkeypatch):
    """Workers draw what the training process would have drawn, and `sample_key` tells them the same key."""
    (tmp_path / "keyed_dataset.py").write_text(
        textwrap.dedent("""
        import torch
        from rankwise.data.samples import sample_key

        class Keyed:
            def __len__(self):
                return 9

            def __getitem__(self, index):
                return index, sample_key(), float(torch.rand(()))
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    from keyed_dataset import Keyed

    def drawn(num_workers):
        loader = DatasetLoader(Keyed(), order=Order(9, batch_size=4), num_workers=num_workers)
        return [
            (batch.ids.tolist(), batch[1].tolist(), batch[2].tolist(), batch.key.tolist())
            for (batch,) in loader
        ]  # fmt: skip

    here, there = drawn(0), drawn(2)
    assert here == there
    assert all(keys == wanted for _, keys, _, wanted in here)
    sys.modules.pop("keyed_dataset")


def test_the_trainings_own_generators_are_untouched():
    """Fetching in this process, and starting an epoch, moves no global generator."""
    import random

    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = states()
    noise_of()
    assert states() == before


def test_reseed_can_be_left_to_the_dataset():
    """With reseed=False the dataset draws from the generators as they are; a batched dataset is fetched at once."""
    torch.manual_seed(0)
    assert noise_of(reseed=False) != noise_of(reseed=False)

    class Batched(Noisy):
        calls = []  # noqa: RUF012

        def __getitems__(self, indices):
            self.calls.append(list(indices))
            return [{"id": i} for i in indices]

    dataset = Batched()
    loader = DatasetLoader(dataset, order=Order(23, batch_size=10))
    assert [batch["id"].tolist() for (batch,) in loader] == dataset.calls
    with pytest.raises(ConfigError, match="only works inside a dataset"):
        sample_key()


def test_collated_batches_are_reached_by_name_or_number():
    """Dicts by name, tuples by number, anything as `data`; a wrong field says what there is."""
    dataset = [{"x": torch.ones(2), "name": "a"}, {"x": torch.zeros(2), "name": "b"}]
    (batch,) = next(iter(DatasetLoader(dataset, order=Order(2, batch_size=2, kind="sequential"))))
    assert batch["x"].shape == (2, 2)
    assert batch.data["name"] == ["a", "b"]
    with pytest.raises(KeyError, match="a dict with 'x', 'name'"):
        batch["y"]
    (batch,) = next(iter(DatasetLoader(numbers(4), order=Order(4, batch_size=2))))
    with pytest.raises(KeyError, match=r"use batch\[0\] to batch\[1\]"):
        batch["x"]
    (batch,) = next(iter(DatasetLoader([1.0, 2.0], order=Order(2, batch_size=2), collate_fn=torch.tensor)))
    assert sorted(batch.data.tolist()) == [1.0, 2.0]
    with pytest.raises(KeyError, match=r"use batch\.data"):
        batch[0]


def test_a_rank_without_samples_keeps_the_structure():
    """Zero rows of dicts, texts and named arrays; a collate function that returns numbers is refused with the mend."""
    dataset = [{"x": torch.ones(2), "name": "a", "pair": (1, 2.0)}] * 4
    options = {"order": Order(4, batch_size=1), "world": RankPlace(0, 3)}
    (batch,) = next(iter(DatasetLoader(dataset, **options)))
    assert len(batch) == batch.count == 0
    assert batch["x"].shape == (0, 2)
    assert batch["name"] == []
    assert [part.shape for part in batch["pair"]] == [(0,), (0,)]
    with pytest.raises(ConfigError, match='remainder="drop"'):
        next(iter(DatasetLoader(dataset, collate_fn=len, **options)))


def test_array_sources_and_subsets_are_datasets(tmp_path):
    """An ArraySource is a map-style dataset, and so is a torch Subset of one."""
    source = ArraySource({"x": np.arange(20) * 3})
    got = {}
    for (batch,) in DatasetLoader(Subset(source, range(5, 15)), order=Order(10, batch_size=4)):
        got.update(zip(batch.ids.tolist(), batch["x"].tolist(), strict=True))
    assert got == {i: (i + 5) * 3 for i in range(10)}
    loader = DatasetLoader(source, order=Order(source, batch_size=7))
    assert sorted(x for (batch,) in loader for x in batch["x"].tolist()) == [3 * i for i in range(20)]


def test_an_error_in_the_dataset_names_the_sample():
    """The dataset's own exception arrives with sample and key."""

    class Broken(Noisy):
        def __getitem__(self, index):
            if index == 7:
                raise OSError("unreadable")
            return index

    with pytest.raises(OSError, match="unreadable") as caught:
        list(DatasetLoader(Broken(), order=Order(23, batch_size=6)))
    assert "while fetching sample 7 (key" in caught.value.__notes__[0]


def test_only_one_iteration_at_a_time():
    """Starting a second iteration ends the first one with an error instead of mixing their batches."""
    loader = DatasetLoader(numbers(), order=Order(53, batch_size=6))
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second)[0].ids.tolist() == Order(53, batch_size=6).step(loader.order.start()).ids.tolist()
    with pytest.raises(ConfigError, match="ended when another one started"):
        next(first)


def test_arguments_are_checked():
    """Iterable datasets, lengths that differ from the order's, and prefetching without workers are refused."""
    with pytest.raises(ConfigError, match="map-style"):
        DatasetLoader(iter([1]), order=Order(1, batch_size=1))
    with pytest.raises(ConfigError, match="has 50 samples, the data have 53"):
        DatasetLoader(numbers(), order=Order(50, batch_size=6))
    with pytest.raises(ConfigError, match="needs workers"):
        DatasetLoader(numbers(), order=Order(53, batch_size=6), prefetch_factor=4)
    with pytest.raises(ConfigError, match="num_workers"):
        DatasetLoader(numbers(), order=Order(53, batch_size=6), num_workers=-1)


class Counted:
    """Numbers that workers note in a file when they fetch them."""

    def __init__(self, place):
        self.place = place

    def __len__(self):
        return 53

    def __getitem__(self, index):
        with self.place.open("a") as noted:
            noted.write(f"{index}\n")
        return 2.0 * index, index

    def fetched(self):
        return [int(line) for line in self.place.read_text().split()] if self.place.exists() else []


def test_workers_that_begin_early(tmp_path):
    """They fetch what the next iteration asks for before it does, once; one that begins elsewhere drops it."""
    dataset, order = Counted(tmp_path / "noted"), Order(53, batch_size=6)
    loader = DatasetLoader(dataset, order=order, num_workers=1)
    first = order.step(order.start(0))
    wanted = [*first.ids.tolist(), *order.step(first.resume).ids.tolist()]  # two batches, which is the prefetch factor
    for _ in range(2):
        assert loader.start_prefetch()
        assert until(lambda: dataset.fetched() == wanted)
    assert loader.state_dict()["position"] == 0
    shown = []
    for (batch,) in loader:
        assert not loader.start_prefetch()
        shown += batch[1].tolist()
    assert sorted(shown) == sorted(dataset.fetched()) == list(range(53))
    assert loader.start_prefetch()
    plain = DatasetLoader(numbers(), order=order)
    for one in (loader, plain):
        one.set_epoch(5)
    assert ids_of(loader) == ids_of(plain)


def test_nothing_begins_early_without_workers(monkeypatch):
    """Nor where workers cannot be started, which the iteration tells."""
    loader = DatasetLoader(numbers(), order=Order(53, batch_size=6))
    assert not loader.start_prefetch()
    loader = DatasetLoader(numbers(), order=Order(53, batch_size=6), num_workers=1)

    def refuse(self):
        raise RuntimeError("no processes")

    monkeypatch.setattr("torch.utils.data.DataLoader.__iter__", refuse)
    assert not loader.start_prefetch()
    with pytest.raises(RuntimeError, match="no processes"):
        next(iter(loader))


@pytest.mark.timeout(600)
def test_a_closed_loader_has_no_workers():
    """Neither those that stay from epoch to epoch, nor those that were started early; nothing starts new ones."""
    with DatasetLoader(numbers(), order=Order(53, batch_size=6), num_workers=1) as loader:
        assert len(ids_of(loader)) > 1
        (worker,) = loader._loader._iterator._workers
        assert worker.is_alive()
    with DatasetLoader(numbers(), order=Order(53, batch_size=6), num_workers=1) as early:
        assert early.start_prefetch()
        (other,) = early._early.batches._workers
    for process in (worker, other):
        process.join(120)
        assert not process.is_alive()
    for ask in (loader.start_prefetch, lambda: next(iter(loader))):
        with pytest.raises(ConfigError, match="the loader was closed"):
            ask()


class Asking:
    """Looks who it is, and opens a source, where it runs."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        world, source = World.current(), ArraySource({"x": np.arange(10)})
        return torch.tensor([world.rank, world.world_size, int(source[index]["x"]), index])


@pytest.fixture
def own_fork_server():
    """A fork server hands on the variables of its start: none that is there before, or stays behind."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("own_fork_server")
@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_are_of_their_rank(method, monkeypatch):
    """Workers inherit a launcher's variables: they serve the rank that started them, whichever way they start."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    order = Order(10, batch_size=4)
    loader = DatasetLoader(Asking(), order=order, num_workers=1, multiprocessing_context=method, timeout=300)
    got = torch.cat([batch.data for (batch,) in loader])
    wanted = [sample for (batch,) in DatasetLoader(Asking(), order=order) for sample in batch.ids.tolist()]
    assert got.tolist() == [[1, 2, sample, sample] for sample in wanted]
    assert len(wanted) == 5
