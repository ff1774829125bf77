"""Memory that a batch gave belongs to whoever holds it, in every loader; who holds nothing pays nothing."""

import gc
import os
import queue
import threading
from contextlib import closing, nullcontext

import numpy as np
import pytest
import torch
import zarr
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAUROC

from rankwise import Order, Trainer
from rankwise.data import crops
from rankwise.data.rows import Loader, OrderedLoader, RowSource
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.testing.stores.row_stores import make_stores
from rankwise.testing.stores.small_rows import csr_parts

jax = pytest.importorskip("jax", reason="JAX is not installed")

NUM, SHAPE = 250, (4, 8, 8)
rng = np.random.default_rng(0)
IMAGES, LABELS = rng.random((NUM, 6, 40), dtype="f4"), rng.integers(0, 2, NUM)


class Pairs:
    """A map-style dataset whose samples are views of one array."""

    def __len__(self):
        return NUM

    def __getitem__(self, at):
        return {"x": IMAGES[at], "y": LABELS[at]}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    where = str(tmp_path_factory.mktemp("volume") / "v.zarr")
    data = rng.integers(0, 60_000, (24, 32, 32)).astype("u2")
    zarr.create_array(where, data=data, chunks=(8, 16, 16))
    return where


def doubled(fields, _key):
    return {"x": fields["x"] * 2, "y": fields["y"]}


def samples(batch_size=12, **options):
    source = ArraySource({"x": IMAGES, "y": LABELS})
    return SampleLoader(source, order=Order(source, batch_size=batch_size), **options)


def ordered(stores, **options):
    of_source = {name: options.pop(name) for name in ("matrices", "dense") if name in options}
    source = RowSource(stores.places, threads=1, obs=("n",), **of_source)
    return OrderedLoader(source, order=Order(source, batch_size=9), **options)


def drawn(stores, *, stored=True, **options):
    loader = Loader(batch_size=10, chunk_size=4, preload_nchunks=5, shuffle=True, rng=0, **options)
    matrices = {"sparse": "X", "dense": "layers/full"}
    for place in stores.places:
        adata = zarr.open_group(place, mode="r")[matrices["dense"]]
        loader.add_dataset(adata if stored else adata[:])
    return loader


def drawn_sparse(stores, **options):
    from anndata.io import sparse_dataset

    loader = Loader(batch_size=10, chunk_size=4, preload_nchunks=5, shuffle=True, rng=0, **options)
    for place in stores.places:
        loader.add_dataset(sparse_dataset(zarr.open_group(place, mode="r")["X"]))
    return loader


def indexed(volume, **options):
    index = crops.CropIndex([volume], shape=SHAPE)
    return crops.IndexPipeline(index, order=Order(index, batch_size=7), **options)


class Pushed:
    """A pipeline of pushed samples, as a loader: each pass pushes them again."""

    def __init__(self, volume, **options):
        config = crops.Config(samples_per_batch=5, sample_shape=SHAPE, host_buffer_waves=2, **options)
        self._pipeline, self._volume = crops.Pipeline(config), volume

    def set_epoch(self, epoch):
        pass

    def __iter__(self):
        starts = np.random.default_rng(1).integers(0, 16, (60, 3)).tolist()
        boxes = [tuple((a, a + n) for a, n in zip(start, SHAPE, strict=True)) for start in starts]
        self._pipeline.push([crops.Sample(self._volume, box) for box in boxes])
        return iter(self._pipeline)

    def close(self):
        self._pipeline.close()


LOADERS = {
    "samples": lambda _s, _v: samples(),
    "samples_one_thread": lambda _s, _v: samples(depth=0),
    "samples_far_ahead": lambda _s, _v: samples(depth=6),
    "samples_numpy": lambda _s, _v: samples(device=None),
    "samples_jax": lambda _s, _v: samples(device="jax"),
    "samples_micro": lambda _s, _v: samples(micro_batch=5),
    "samples_transformed": lambda _s, _v: samples(transform=doubled),
    "samples_batch_transformed": lambda _s, _v: samples(batch_transform=lambda f, _: {"x": f["x"][:, 1:], "y": f["y"]}),
    "dataset": lambda _s, _v: DatasetLoader(Pairs(), order=Order(NUM, batch_size=12)),
    "ordered_sparse": lambda s, _v: ordered(s),
    "ordered_sparse_numpy": lambda s, _v: ordered(s, device=None, matrices=("X", "layers/counts")),
    "ordered_dense": lambda s, _v: ordered(s, matrices=("layers/full", "obsm/pca")),
    "ordered_spread": lambda s, _v: ordered(s, dense=True, micro_batch=4),
    "ordered_jax": lambda s, _v: ordered(s, device="jax"),
    "drawn_dense": lambda s, _v: drawn(s),
    "drawn_dense_torch": lambda s, _v: drawn(s, to="torch"),
    "drawn_dense_jax": lambda s, _v: drawn(s, to="jax"),
    "drawn_in_memory": lambda s, _v: drawn(s, stored=False, to="torch"),
    "drawn_sparse": lambda s, _v: drawn_sparse(s),
    "drawn_sparse_torch": lambda s, _v: drawn_sparse(s, to="torch"),
    "drawn_sparse_jax": lambda s, _v: drawn_sparse(s, to="jax"),
    "crops": lambda _s, v: indexed(v),
    "crops_numpy": lambda _s, v: indexed(v, device=None),
    "crops_jax": lambda _s, v: indexed(v, device="jax"),
    "pushed": lambda _s, v: Pushed(v, device="cpu"),
    "pushed_numpy": lambda _s, v: Pushed(v, device="numpy"),
}


def fields_of(item):
    """The fields of what a loader gave, in order."""
    if isinstance(item, tuple):
        return [field for batch in item for field in fields_of(batch)]
    if isinstance(item, dict):
        return [item["X"]]
    names = item.data if hasattr(item, "data") else item
    return [item[name] for name in names]


def leaves_of(item):
    """Arrays and tensors: a sparse field has three."""
    return [leaf for field in fields_of(item) for leaf in (csr_parts(field) or (field,))]


def over_the_same_memory(leaf):
    """What others make of an array or tensor without a copy."""
    if isinstance(leaf, jax.Array):
        return [leaf, np.asarray(leaf)]
    made = [np.asarray(leaf), np.from_dlpack(leaf), jax.numpy.asarray(np.asarray(leaf))]
    return [*made, torch.from_dlpack(leaf) if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf)]


def views_of(leaf):
    return [leaf[1:], leaf[::2], leaf.swapaxes(0, -1)]


KEPT = {
    "batches": lambda item: [item],
    "fields": fields_of,
    "parts": leaves_of,
    "views": lambda item: [view for leaf in leaves_of(item) for view in views_of(leaf)],
    "others": lambda item: [other for leaf in leaves_of(item) for other in over_the_same_memory(leaf)],
}


def seen_in(kept, how):
    """What is to be seen of something that was kept, as arrays."""
    if how in {"batches", "fields"}:
        leaves = leaves_of(kept) if how == "batches" else (csr_parts(kept) or (kept,))
        return [np.asarray(leaf) for leaf in leaves]
    return [np.asarray(kept)]


# Whatever of these is kept holds the memory by the same object. All are tried with a loader of each kind of batch, and
# with every loader what holds least: what other libraries make of it.
EACH_KIND = {"samples", "dataset", "ordered_sparse", "drawn_dense", "drawn_sparse", "crops", "crops_jax", "pushed"}


def cases():
    for kind in LOADERS:
        for how in KEPT:
            often = kind in EACH_KIND or how == "others"
            yield pytest.param(kind, how, marks=() if often else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "how"), list(cases()))
def test_what_is_kept_stays(kind, how, stores, volume):
    """Whatever is kept of every batch of two epochs is at the end what a copy at arrival was, after closing too."""
    loader, kept, copies = LOADERS[kind](stores, volume), [], []
    with closing(loader) if hasattr(loader, "close") else nullcontext():
        for epoch in range(2):
            loader.set_epoch(epoch)
            for item in loader:
                for one in KEPT[how](item):
                    kept.append(one)
                    copies.append([seen.copy() for seen in seen_in(one, how)])
        again = [item for item in loader if kind != "pushed"][:3]  # more is read, perhaps into the same memory
    del loader, again
    gc.collect()
    assert len(kept) >= 20
    for one, wanted in zip(kept, copies, strict=True):
        for seen, copy in zip(seen_in(one, how), wanted, strict=True):
            np.testing.assert_array_equal(seen, copy)


@pytest.mark.parametrize("kind", ["samples", "samples_numpy", "ordered_sparse", "drawn_dense", "crops", "pushed"])
def test_a_list_is_right(kind, stores, volume):
    """``list(loader)`` holds what a loop over the same loader sees."""
    seen = [[np.asarray(leaf).copy() for leaf in leaves_of(item)] for item in LOADERS[kind](stores, volume)]
    listed = list(LOADERS[kind](stores, volume))
    assert len(listed) == len(seen)
    for item, wanted in zip(listed, seen, strict=True):
        for leaf, copy in zip(leaves_of(item), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(leaf), copy)


def test_a_metric_that_keeps_its_inputs_is_right():
    """AUROC of torchmetrics, which keeps what it is given, is that of scikit-learn."""
    metric, scores, targets = BinaryAUROC(), [], []
    for (batch,) in samples():
        score = batch["x"][:, 0, 0]  # a view: nothing of it is copied by the metric
        metric.update(score, batch["y"])
        scores.append(score.numpy().copy())
        targets.append(batch["y"].numpy().copy())
    wanted = roc_auc_score(np.concatenate(targets), np.concatenate(scores))
    assert float(metric.compute()) == pytest.approx(wanted, abs=1e-6)


def allocated(loader):
    return sum(pool.num_pieces for pool in loader._memory)


@pytest.mark.parametrize("options", [{}, {"depth": 0}, {"depth": 1}, {"depth": 5}, {"micro_batch": 4}])
def test_who_keeps_nothing_pays_nothing(options):
    """However many epochs: as many batches as lie ready, the one in use, and one that was left a moment ago."""
    loader, most = samples(batch_size=50, **options), max(1, options.get("depth", 2)) + 2
    for epoch in range(5):
        loader.set_epoch(epoch)
        for *_, batch in loader:
            x, y = batch["x"], batch["y"]
            (x.sum() + y.sum()).item()
    num_fields, num_micro = 2, -(-50 // options.get("micro_batch", 50))
    assert allocated(loader) <= num_fields * num_micro * most


def test_who_keeps_labels_does_not_keep_images():
    """Each field has memory of its own: that of images is used again while every label is kept."""
    loader = samples(batch_size=5)
    labels = [batch["y"] for (batch,) in loader]
    sizes = [IMAGES[:5].nbytes, LABELS[:5].nbytes]
    assert loader._memory[0].num_bytes <= 6 * sizes[0] + len(labels) * (sizes[1] + 64)


def test_who_drops_late_has_it_used_again():
    """What was kept for an epoch, and is dropped, is what later epochs are read into; the rest is given away."""
    loader = samples(batch_size=25)
    kept = list(loader)
    most = allocated(loader)
    assert most >= 2 * len(kept)
    held = loader._memory[0].num_bytes
    kept.clear()
    for epoch in range(1, 4):
        loader.set_epoch(epoch)
        for (batch,) in loader:
            batch["x"].sum()
    assert allocated(loader) == most
    assert loader._memory[0].num_bytes < held / 2


def test_steps_of_a_window_are_kept_one_by_one(stores):
    """Of steps that are read as one, one that is kept keeps them all; the next window is read beside it."""
    loader = ordered(stores, depth=4)
    first, number, copy = None, 0, None
    for epoch in range(3):
        loader.set_epoch(epoch)
        for (batch,) in loader:
            number += 1
            if first is None:
                first = batch["n"][1:]
                copy = first.clone()
    assert number > 20
    assert torch.equal(first, copy)


def test_released_batches_leave_views_alone():
    """`release` lets go of a batch; a view of it stays, and so does its memory, until the view is gone."""
    loader, views = samples(), []
    for (batch,) in loader:
        views.append((batch["x"][2:], batch["x"][2:].clone()))
        batch.release()
    assert all(torch.equal(view, copy) for view, copy in views)


def test_a_trainer_leaves_what_a_step_function_keeps(tmp_path):
    """A step function that stores its batches finds them as they were, and the trainer goes on."""
    kept, copies = [], []

    def step(model, batch):
        kept.append(batch["x"])
        copies.append(batch["x"].clone())
        return model(batch["x"].flatten(1)).square().sum()

    model = torch.nn.Linear(240, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    Trainer(model, optimizer, step, run=tmp_path / "run", progress=False).fit(samples(), epochs=2)
    assert len(kept) >= 40
    assert all(torch.equal(one, copy) for one, copy in zip(kept, copies, strict=True))


def test_batches_end_in_other_threads():
    """Batches that are handed to a thread, and forgotten there at any time, are never overwritten before."""
    handed, wrong = queue.Queue(maxsize=8), []

    def look():
        while (item := handed.get()) is not None:
            batch, copy = item
            if not torch.equal(batch["x"], copy):
                wrong.append(batch)
            del item, batch, copy
            gc.collect(0)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    loader = samples(batch_size=5)
    for epoch in range(3):
        loader.set_epoch(epoch)
        for (batch,) in loader:
            handed.put((batch, batch["x"].clone()))
            del batch
    for _ in threads:
        handed.put(None)
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_cycles_and_tracebacks_keep_their_batches():
    """What lies in a cycle or in the frames of an exception is kept as long as these are, and nobody waits for it."""
    cycles, errors, copies = [], [], []

    def fail(batch):
        x = batch["x"]
        raise ValueError(len(x))

    loader = samples(batch_size=5)
    for (batch,) in loader:
        copies.append(batch["x"].clone())
        cycle = [batch["x"]]
        cycle.append(cycle)
        cycles.append(cycle[0])
        try:
            fail(batch)
        except ValueError as error:
            errors.append(error)
    frames = [error.__traceback__.tb_next.tb_frame.f_locals["x"] for error in errors]
    assert all(torch.equal(x, copy) for x, copy in zip(frames, copies, strict=True))
    assert all(torch.equal(x, copy) for x, copy in zip(cycles, copies, strict=True))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_may_forget_what_the_parent_holds():
    """A child that drops batches, and ends, neither waits nor changes what its parent reads into."""
    loader, kept, copies = samples(batch_size=5), [], []
    for number, (batch,) in enumerate(loader):
        kept.append(batch)
        copies.append(batch["x"].clone())
        if number in {3, 20}:
            child = os.fork()
            if child == 0:
                kept.clear()
                del batch
                gc.collect()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert all(torch.equal(batch["x"], copy) for batch, copy in zip(kept, copies, strict=True))


def test_a_cap_is_an_error_and_no_wait(volume):
    """Where memory is capped, keeping everything ends with what is kept and what helps; a plain loop fits."""
    batch_bytes = 7 * 4 * int(np.prod(SHAPE))
    options = {"max_host_memory_bytes": 8 * batch_bytes, "cache": 0}
    assert sum(1 for _ in indexed(volume, **options)) > 10
    kept = []
    with pytest.raises(crops.BudgetExceeded, match=r"batches that are kept use \d+ of the \d+ bytes.*max_host_memory"):
        kept.extend(indexed(volume, **options))
