"""Damaged stores: an error names row, store, array and chunk; the rows that are whole stay readable."""

import json
import shutil
from dataclasses import replace

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from rankwise import Order
from rankwise.data.rows import Loader, OrderedLoader, RowSource, write_sharded
from rankwise.data.rows.samplers import SequentialSampler
from rankwise.errors import SampleError
from rankwise.testing.stores.row_stores import make_stores
from rankwise.testing.stores.small_rows import random_csr, write_anndata

NUM_ROWS, NUM_COLS, INTACT = 60, 11, 7  # chunks of 4 rows, files of 12; an intact store of 7 rows lies before


def table(matrix):
    made = ad.AnnData(matrix)
    made.obs["n"] = np.arange(matrix.shape[0])
    return made


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores without and with checksums on chunks, an intact small one, and the rows of all."""
    folder = tmp_path_factory.mktemp("whole")
    first, second = random_csr(INTACT, NUM_COLS, seed=1), random_csr(NUM_ROWS, NUM_COLS, seed=3, density=0.9)
    for name, matrix, codecs in (
        ("intact", first, None),
        ("plain", second, None),
        ("checked", second, (BloscCodec(cname="lz4"), Crc32cCodec())),
    ):
        group = zarr.open_group(str(folder / f"{name}.zarr"), mode="w", zarr_format=3)
        write_sharded(group, table(matrix), n_obs_per_chunk=4, shard_size=16, compressors=codecs)
    return folder, sp.vstack([first, second]).toarray()


def shard(place, array, number=1):
    return place / "X" / array / "c" / str(number)


def cut(path):
    path.write_bytes(path.read_bytes()[:40])


def flip(path, where=slice(20, 60)):
    held = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
    held[where] ^= 0xFF
    path.write_bytes(held.tobytes())


def other_dtype(path):
    """The metadata of an array and of the store as a whole say something else."""
    array = path.parents[1] / "zarr.json"
    array.write_text(array.read_text().replace('"float32"', '"float64"'))
    root = path.parents[3] / "zarr.json"
    root.write_text(json.dumps({k: v for k, v in json.loads(root.read_text()).items() if k != "consolidated_metadata"}))


def stray(path):
    indices = zarr.open_array(str(path.parents[1]), mode="a")
    indices[200] = NUM_COLS


ALL = set(range(12, 24))  # rows of the second file
CASES = {
    "a file that was cut": ("plain", "data", cut, r"has 40 bytes, but its shard index alone needs", ALL),
    "a file that is missing": (
        "plain",
        "data",
        lambda path: path.unlink(),
        r"chunk \(3,\) of the array .* not in the",
        ALL,
    ),
    "missing column numbers": (
        "plain",
        "indices",
        lambda path: path.unlink(),
        r"chunk \(3,\) of .* not in the store",
        ALL,
    ),
    "a shard index": ("plain", "data", lambda path: flip(path, -20), "does not match its checksum", ALL),
    "flipped bytes": ("plain", "data", flip, r"chunk \(3,\) of the array .* is damaged", {12, 13, 14, 15}),
    "flipped bytes, checksum": ("checked", "data", flip, r"chunk \(3,\) of .* checksum do not match", {12, 13, 14, 15}),
    "flipped column numbers": ("checked", "indices", flip, r"chunk \(3,\) .* checksum do not match", {12, 13, 14, 15}),
    "another dtype": ("plain", "data", other_dtype, r"decodes to \d+ bytes, but a chunk has", None),
    "a column there is not": ("plain", "indices", stray, "it has column numbers outside the matrix .*it has", "one"),
}


@pytest.fixture(params=CASES)
def damaged(request, stores, tmp_path):
    """(places, all rows, rows that cannot be read, what is said, the array)."""
    name, array, harm, said, lost = CASES[request.param]
    folder, whole = stores
    shutil.copytree(folder / f"{name}.zarr", tmp_path / "bad.zarr")
    place = tmp_path / "bad.zarr"
    pointers = zarr.open_array(str(place / "X" / "indptr"), mode="r")[:]
    harm(shard(place, array))
    full = set(np.flatnonzero((whole[INTACT:] != 0).any(axis=1)).tolist())
    if lost == "one":
        lost = {int(np.searchsorted(pointers, 200, side="right")) - 1}
    lost = sorted(INTACT + row for row in (full if lost is None else lost & full))
    return [str(folder / "intact.zarr"), str(place)], whole, lost, said, f"{place}/X"


def test_through_a_loader(damaged):
    """The first damaged row is named with its place in its store; the batches without one are right."""
    places, whole, lost, said, array = damaged
    loader = Loader(places, batch_sampler=SequentialSampler(1, 16, 1))
    arrived = []
    with pytest.raises(SampleError, match=said) as caught:
        arrived.extend(iter(iter(loader).__next__, None))
    np.testing.assert_array_equal(sp.vstack([batch["X"] for batch in arrived]).toarray(), whole[: lost[0]])
    assert len(arrived) == caught.value.sample == lost[0]
    assert f"(row {lost[0] - INTACT} of {array})" in str(caught.value)
    assert array in caught.value.place
    assert caught.value.damage
    rest = len(whole) - lost[-1] - 1
    if rest:
        (batch,) = Loader(places, batch_sampler=SequentialSampler(rest, 1, rest, mask=slice(lost[-1] + 1, None)))
        np.testing.assert_array_equal(batch["X"].toarray(), whole[lost[-1] + 1 :])


@pytest.mark.parametrize("dense", [False, True])
def test_in_an_order(damaged, dense):
    """It ends the epoch; within a budget only the damaged rows are left out, with their obs, and counted."""
    places, whole, lost, said, array = damaged
    source = RowSource(places, obs=("n",), dense=dense, threads=1)

    def loader(**options):
        return OrderedLoader(source, order=Order(source, batch_size=16, kind="sequential"), device=None, **options)

    with pytest.raises(SampleError, match=said) as caught:
        list(loader())
    assert caught.value.sample == lost[0]
    assert f"(row {lost[0] - INTACT} of {array.removesuffix('/X')})" in str(caught.value)
    assert array in caught.value.place
    skipping, seen = loader(on_bad_sample=len(lost)), []
    for (batch,) in skipping:
        x = batch["X"] if dense else batch["X"].toarray()
        np.testing.assert_array_equal(x, whole[batch.ids])
        assert batch["n"].tolist() == [row if row < INTACT else row - INTACT for row in batch.ids]
        seen += batch.ids.tolist()
    assert sorted({*range(len(whole))} - {*seen}) == lost
    assert skipping.stats.skipped == len(lost)


def falls(path):
    zarr.open_array(str(path.parents[1]), mode="a")[40] = 5


POINTERS = {
    "pointers that fall": (falls, r"row pointers .* in chunk \(2,\) row 39 would begin after it ends"),
    "pointers that are missing": (lambda path: path.unlink(), r"in chunk \(2,\) row 32 .* would be empty"),
    "pointers that were cut": (cut, r"chunk \(2,\) of the array .*indptr"),
}


@pytest.fixture(scope="module")
def pointed(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("pointed"), (20, 53), chunk=16)


@pytest.fixture(params=POINTERS)
def lost_pointers(request, pointed, tmp_path):
    """Two stores, of the second of which the rows 31 to 47 lie nobody knows where; and what is said of them."""
    harm, said = POINTERS[request.param]
    place = shutil.copytree(pointed.places[1], tmp_path / "1.zarr")
    harm(place / "X/indptr/c/2")
    return replace(pointed, places=[pointed.places[0], str(place)]), said


def test_row_pointers_through_a_loader(lost_pointers):
    """A damaged chunk of them costs its rows: those before arrive, the first is named with store, array and chunk."""
    held, said = lost_pointers
    whole, loader = held.dense("X"), Loader(held.places, batch_sampler=SequentialSampler(1, 16, 1))
    arrived = []
    with pytest.raises(SampleError, match=said) as caught:
        arrived.extend(iter(iter(loader).__next__, None))
    np.testing.assert_array_equal(sp.vstack([batch["X"] for batch in arrived]).toarray(), whole[:51])
    assert f"row 51 (row 31 of {held.places[1]}/X)" in str(caught.value)
    assert "(2,)" in caught.value.place
    assert f"{held.places[1]}/X/indptr" in caught.value.place
    behind = SequentialSampler(5, 1, 5, mask=slice(68, None))
    (batch,) = Loader(held.places, batch_sampler=behind)
    np.testing.assert_array_equal(batch["X"].toarray(), whole[68:])


@pytest.mark.parametrize("dense", [False, True])
def test_row_pointers_in_an_order(lost_pointers, dense):
    """Within a budget its rows are left out and counted, and the epoch goes on; beyond it the first is named."""
    held, said = lost_pointers
    whole, source = held.dense("X"), RowSource(held.places, obs=("n",), dense=dense, threads=1)

    def loader(budget):
        return OrderedLoader(source, order=Order(source, batch_size=16), device=None, on_bad_sample=budget)

    skipping, seen = loader(17), []
    for (batch,) in skipping:
        np.testing.assert_array_equal(batch["X"] if dense else batch["X"].toarray(), whole[batch.ids])
        assert batch["n"].tolist() == held.obs["n"].iloc[batch.ids].tolist()
        seen += batch.ids.tolist()
    assert sorted({*range(73)} - {*seen}) == list(range(51, 68))
    assert len(seen) == 73 - skipping.stats.skipped == 56
    with pytest.raises(SampleError, match=said) as caught:
        list(loader(16))
    assert caught.value.damage
    assert 51 <= caught.value.sample < 68


def test_a_part_of_the_fields_may_be_lost(lost_pointers):
    """A row is bad where one of its matrices is; a source of the others reads all."""
    held, _ = lost_pointers
    source = RowSource(held.places, matrices=("X", "layers/counts"), threads=1)
    both = OrderedLoader(source, order=Order(source, batch_size=16), device=None, on_bad_sample=17)
    assert sum(len(batch) for (batch,) in both) == 56
    sound = source.select(["layers/counts"])
    for (batch,) in OrderedLoader(sound, order=Order(source, batch_size=73), device=None):
        np.testing.assert_array_equal(batch["layers/counts"].toarray(), held.dense("layers/counts")[batch.ids])


def test_stored_zeros_may_be_left_out_of_the_store(tmp_path):
    """Column 0 alone in every row: Zarr leaves the chunks of column numbers out, and they are what they were."""
    matrix = sp.csr_matrix(np.arange(1.0, 21)[:, None] * [[1, 0, 0]])
    write_anndata(table(matrix), tmp_path / "a.zarr")
    assert not [path for path in (tmp_path / "a.zarr/X/indices").rglob("*") if path.name not in ("zarr.json", "c")]
    (batch,) = Loader(
        tmp_path / "a.zarr", batch_size=20, chunk_size=20, preload_nchunks=1, shuffle=True, return_index=True
    )
    np.testing.assert_array_equal(batch["X"].toarray(), matrix.toarray()[batch["index"]])
