"""What every source keeps to, whatever its samples are: one suite against slow references, by public names.

The batches are read into memory that has what the protocol asks for and nothing else.
"""

import itertools
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from rankwise import Order
from rankwise.data.contract import ListedIds, OrderState, Source, Step, shares
from rankwise.data.crops import CropIndex, IndexPipeline
from rankwise.data.rows import RowSource
from rankwise.data.samples import ArraySource
from rankwise.errors import ConfigError, SampleError
from rankwise.testing.shares import share_of
from rankwise.testing.small import PlainMemory
from rankwise.testing.stores.row_stores import make_stores


def images(seed):
    rng = np.random.default_rng(seed)
    return {"x": rng.random((50, 3, 4), dtype="f4"), "label": rng.integers(0, 9, 50)}


def in_memory(_folder, seed=0):
    wanted = images(seed)
    return ArraySource(wanted), wanted


def on_disk(folder, seed=0):
    wanted = images(seed)
    if not folder.exists():
        for name, values in wanted.items():
            chunks, shards = (3, *values.shape[1:]), (9, *values.shape[1:])
            zarr.create_array(folder / name, data=values, chunks=chunks, shards=shards if seed else None)
    return ArraySource({name: folder / name for name in wanted}, threads=2), wanted


def rows(folder, seed=0, **options):
    """A source over two stores, what they hold, and the rows in the source's order; another seed turns that around."""
    if not folder.exists():
        folder.mkdir()
        (folder / "made").write_bytes(pickle.dumps(make_stores(folder)))
    made = pickle.loads((folder / "made").read_bytes())
    numbers = [1, 0] if seed else [0, 1]
    places = [str(folder / Path(made.places[number]).name) for number in numbers]
    order = [row for number in numbers for row, name in enumerate(made.obs.index) if name.startswith(f"{number}-")]
    return RowSource(places, threads=2, **options), made, order


def sparse_rows(folder, seed=0):
    source, made, order = rows(folder, seed, obs=("n",))
    return source, {"X": made.dense("X")[order], "n": made.obs["n"].to_numpy(np.int64)[order]}


def dense_rows(folder, seed=0):
    source, made, order = rows(folder, seed, matrices=("layers/full", "obsm/pca"))
    return source, {name: made.dense(name)[order] for name in ("layers/full", "obsm/pca")}


def tiles(folder, seed=0):
    values = np.random.default_rng(seed).integers(0, 60_000, (24, 32, 16)).astype("u2")
    if not folder.exists():
        zarr.create_array(folder, data=values, chunks=(8, 16, 8 if seed else 16))
    index = CropIndex([str(folder)], shape=(8, 8, 8))
    places = index.describe(np.arange(len(index)), seed=0)
    corners = [tuple(place.start) for place in places]
    assert sorted(corners) == list(itertools.product(range(0, 24, 8), range(0, 32, 8), range(0, 16, 8)))
    boxes = [values[z : z + 8, y : y + 8, x : x + 8] for z, y, x in corners]
    (name,) = index.fields
    pipeline = IndexPipeline(index, order=Order(index, batch_size=4), device=None)
    return pipeline.samples, {name: np.stack(boxes)}


KINDS = {made.__name__: made for made in (in_memory, on_disk, sparse_rows, dense_rows, tiles)}
# a chunk of each that lies on the disk, and the file that holds it
CHUNKS = {"on_disk": "x/c/1/0/0", "sparse_rows": None, "dense_rows": None, "tiles": "c/1/1/0"}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def made(kind, tmp_path):
    """A source and what its fields hold, as arrays of all samples."""
    return KINDS[kind](tmp_path / "data")


def read_share(source, share, memory=None):
    """The fields of a share, dense, and the report."""
    memory = PlainMemory() if memory is None else memory
    plan = source.plan(share)
    assert plan.share is share
    assert min(plan.num_chunks, plan.read_bytes, plan.decode_bytes) >= 0
    report = source.read(plan, memory)
    found = {}
    for name, spec in source.fields.items():
        arrays = memory.arrays(name)
        if spec.ragged:
            data, columns, pointers = arrays
            size = int(pointers[-1])
            arrays = (sp.csr_array((data[:size], columns[:size], pointers), (len(share.ids), *spec.shape)).toarray(),)
        found[name] = arrays[0].copy()
    return found, report


def read(source, ids, memory=None):
    return read_share(source, share_of(ids), memory)


def check(found, wanted, ids):
    for name, values in found.items():
        held = wanted[name][list(ids)]
        assert values.astype(held.dtype).tobytes() == np.ascontiguousarray(held).tobytes(), name


def test_nothing_but_the_declared_is_needed(made):
    """Each member of the protocol is there; samples are counted, and fields are said with shape and dtype."""
    source, wanted = made
    declared = {name for protocol in Source.__mro__[:-3] for name in vars(protocol) if not name.startswith("_")}
    assert {"fingerprint", "plan", "read", "hint", "close", "select", "stateless", "locality"} <= declared
    assert all(hasattr(source, member) for member in declared)
    assert source.num_samples == len(next(iter(wanted.values())))
    assert {name: tuple(spec.shape) for name, spec in source.fields.items()} == {
        name: values.shape[1:] for name, values in wanted.items()
    }
    assert source.locality.chunk_samples >= 1


def test_samples_are_those_of_the_reference(made):
    """Any ids, in any order, also several times, into memory that is used again; none at all gives empty arrays."""
    source, wanted = made
    rng, memory = np.random.default_rng(1), PlainMemory()
    for ids in ([0], [source.num_samples - 1, 0, 0], rng.permutation(source.num_samples), rng.integers(0, 20, 31), []):
        for _ in range(2):  # the second time chunks may come from a cache
            found, report = read(source, ids, memory)
            check(found, wanted, ids)
            assert report.valid.all()
            assert not report.errors


def test_shares_do_not_change_samples(made):
    """A step cut for 1, 2 and 3 ranks and 2 micro-batches is the same samples; a hint changes none of them."""
    source, wanted = made
    ids = np.random.default_rng(2).permutation(source.num_samples)[:17]
    state = OrderState(seed=1, epoch=0, position=17, recipe="r")
    members = ListedIds(ids=ids, lanes=np.arange(17) % 2)
    step = Step(epoch=0, index=0, start=0, count=17, size=17, members=members, resume=state)
    for world_size in (1, 2, 3):
        seen = []
        for rank in range(world_size):
            for share in shares(step, rank=rank, world_size=world_size, num_micro=2):
                source.hint(source.plan(share))
                check(read_share(source, share)[0], wanted, share.ids)
                seen += share.ids.tolist()
        assert sorted(seen) == sorted(ids.tolist())


def test_many_threads_read_the_same(made):
    """Plans and reads of several threads at once."""
    source, wanted = made
    batches = [np.random.default_rng(seed).integers(0, source.num_samples, 9) for seed in range(24)]
    together = threading.Barrier(4)  # four at a time, of which each begins when all are there

    def read_together(ids):
        together.wait(60)
        return read(source, ids)

    with ThreadPoolExecutor(4) as pool:
        came = list(pool.map(read_together, batches))
    for ids, (found, report) in zip(batches, came, strict=True):
        assert report.valid.all()
        assert found.keys() == wanted.keys()
        check(found, wanted, ids)


def test_fingerprint_follows_the_data(kind, tmp_path):
    """Equal when opened again and for a copy elsewhere, other for other data; it is what an order keeps to."""
    source, _ = KINDS[kind](tmp_path / "data")
    assert KINDS[kind](tmp_path / "data")[0].fingerprint == source.fingerprint
    if kind != "in_memory":
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        assert KINDS[kind](tmp_path / "copy")[0].fingerprint == source.fingerprint
    assert KINDS[kind](tmp_path / "other", seed=1)[0].fingerprint != source.fingerprint
    assert Order(source, batch_size=4).fingerprint in (None, source.fingerprint)


def test_fields_are_selected(made):
    """Only they are read; one that is not there is refused with the names that are."""
    source, wanted = made
    name = max(wanted)
    chosen = source.select([name])
    assert list(chosen.fields) == [name]
    found, _ = read(chosen, [3, 1])
    assert list(found) == [name]
    check(found, wanted, [3, 1])
    with pytest.raises(ConfigError, match=name):
        source.select(["nowhere"])


def test_it_travels_and_closes(made):
    """To another process as a pickle; closed twice it opens anew, and the copy is not closed with it."""
    source, wanted = made
    arrived = pickle.loads(pickle.dumps(source))
    assert arrived.fingerprint == source.fingerprint
    with source:
        check(read(source, [2, 5])[0], wanted, [2, 5])
    source.close()
    check(read(arrived, [4, 1])[0], wanted, [4, 1])
    check(read(source, [7, 5])[0], wanted, [7, 5])


@pytest.mark.parametrize("kind", CHUNKS)
def test_damage_is_told_of_its_samples_alone(kind, tmp_path):
    """A file of nonsense: its samples are not valid and named with the file or array; all others are right."""
    folder = tmp_path / "data"
    KINDS[kind](folder)
    if CHUNKS[kind] is not None:
        (folder / CHUNKS[kind]).write_bytes(b"nonsense")
    else:
        inner = "X/data" if kind == "sparse_rows" else "obsm/pca"
        chunks = [path for path in folder.rglob("*") if path.is_file() and f"/{inner}/" in path.as_posix()]
        data = sorted(path for path in chunks if not path.name.startswith((".", "zarr")))
        data[0].write_bytes(b"nonsense")
    source, wanted = KINDS[kind](folder)
    ids = list(range(source.num_samples))
    found, report = read(source, ids)
    lost = np.flatnonzero(~report.valid).tolist()
    assert 0 < len(lost) < len(ids)
    assert sorted(error.sample for error in report.errors) == lost
    assert all(isinstance(error, SampleError) and error.damage for error in report.errors)
    assert all(str(folder) in str(error) and "chunk" in str(error) for error in report.errors)
    kept = np.flatnonzero(report.valid)
    check({name: values[kept] for name, values in found.items()}, wanted, kept)
