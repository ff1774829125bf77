"""Rows of AnnData stores as samples."""

import pickle
import re
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anndata
import numpy as np
import pytest
import scipy.sparse
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.rows import DatasetCollection, RowSource
from rankwise.errors import ConfigError, DataError
from rankwise.testing.shares import loader_of, share_of
from rankwise.testing.small import PlainMemory
from rankwise.testing.stores.row_stores import NUM_COLS, make_stores
from rankwise.testing.stores.small_rows import random_csr, write_anndata, write_csr

ALL = ("X", "layers/counts", "layers/full", "obsm/pca")
OBS = ("kind", "n")


@pytest.fixture(scope="module", params=[(2, False), (3, False), (3, True)], ids=["v2", "v3", "sharded"])
def held(request, tmp_path_factory):
    zarr_format, sharded = request.param
    return make_stores(tmp_path_factory.mktemp("stores"), zarr_format=zarr_format, sharded=sharded)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


def read(source, ids, into=None):
    """The fields of samples, CSR ones as SciPy matrices."""
    buffer = PlainMemory() if into is None else into
    plan = source.plan(share_of(ids))
    source.hint(plan)
    report = source.read(plan, buffer)
    fields = {}
    for name, spec in source.fields.items():
        arrays = buffer.arrays(name)
        fields[name] = scipy.sparse.csr_matrix(arrays, shape=(len(ids), spec.shape[0])) if spec.ragged else arrays[0]
    return fields, report


def check(fields, held, rows, source):
    """Row identity, matrices and obs alike; return how many values were compared."""
    num = 0
    for name in set(fields) & set(ALL):
        got = fields[name].toarray() if hasattr(fields[name], "toarray") else fields[name]
        np.testing.assert_array_equal(got, held.dense(name)[rows].astype(got.dtype))
        num += got.size
    if "kind" in fields:
        kinds = [source.categories["kind"][code] if code >= 0 else None for code in fields["kind"]]
        assert kinds == [None if kind != kind else kind for kind in held.obs["kind"].to_numpy()[rows]]  # noqa: PLR0124
        np.testing.assert_array_equal(fields["n"], held.obs["n"].to_numpy()[rows].astype(int))
        num += 2 * len(rows)
    return num


def test_every_row_is_itself(held):
    """Matrices and obs of several stores, in any order, also several times; every way in which anndata writes."""
    with RowSource(held.places, matrices=ALL, obs=OBS, threads=2) as source:
        assert (len(source), source.fields["X"].ragged, source.fields["obsm/pca"].shape) == (93, True, (2, 3))
        ids = np.random.default_rng(0).integers(0, 93, 200)
        fields, report = read(source, ids)
        check(fields, held, ids, source)
        assert report.valid.all()
        assert fields["X"].indices.dtype == fields["X"].indptr.dtype == np.int32


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_choice_of_rows_and_fields(one, data):
    """Subsets, choices of fields, dense or sparse, dtypes: a sample is the row that `row_numbers` says."""
    names = data.draw(st.lists(st.sampled_from(ALL), min_size=1, max_size=4, unique=True))
    rows = data.draw(st.none() | st.lists(st.integers(0, 92), min_size=1, max_size=60, unique=True))
    dtype = data.draw(st.sampled_from([None, "f4", "f8"]))
    dense = data.draw(st.booleans())
    with RowSource(one.places, matrices=names, obs=OBS, rows=rows, dense=dense, dtype=dtype, threads=1) as source:
        ids = np.array(data.draw(st.lists(st.integers(0, len(source) - 1), max_size=70)), dtype=np.int64)
        fields, _ = read(source, ids)
        numbers = source.row_numbers(ids)
        assert rows is None or set(numbers.tolist()) <= set(rows)
        check(fields, one, numbers, source)
        if dtype is not None:
            assert {source.fields[name].dtype for name in names} == {np.dtype(dtype)}


@pytest.mark.parametrize("genes", [["gene7", "gene0", 3], np.arange(NUM_COLS)[::-1]])
def test_chosen_genes(one, genes):
    """By name and number, in the order asked for, of X and layers alone; memory of earlier batches does not shine."""
    columns = [7, 0, 3] if len(genes) == 3 else list(genes)
    with RowSource(one.places, matrices=ALL, genes=genes) as source:
        buffer = PlainMemory()
        for ids in (np.arange(93), np.arange(20, 5, -1), np.arange(0)):
            fields, _ = read(source, ids, buffer)
            for name in ALL[:3]:
                np.testing.assert_array_equal(fields[name], one.dense(name)[ids][:, columns])
            np.testing.assert_array_equal(fields["obsm/pca"], one.dense("obsm/pca")[ids])


def test_nothing_and_empty_rows(one):
    """Shares without rows, and rows without elements, sparse and dense."""
    empty = np.flatnonzero(np.diff(one.matrices["X"].indptr) == 0)
    assert len(empty) > 2
    for dense in (False, True):
        with RowSource(one.places, dense=dense, obs=OBS) as source:
            for ids in ([], empty):
                fields, _ = read(source, ids)
                assert fields["X"].shape == (len(ids), NUM_COLS)
                assert not fields["X"].sum()


def test_the_order_knows_its_chunks(one, tmp_path):
    """Chunks, lanes and fingerprint follow from metadata: equal for a copy, different for a subset or other stores."""
    source = RowSource(one.places)
    for number, place in enumerate(one.places):
        shutil.copytree(place, tmp_path / f"{number}.zarr")
    copied = RowSource([tmp_path / "0.zarr", tmp_path / "1.zarr"], obs=OBS, dense=True)
    assert copied.fingerprint == source.fingerprint
    others = [RowSource(one.places[::-1]), RowSource(one.places[0]), source.subset([1, 2]), source.subset([1, 3])]
    assert len({source.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert source.locality.chunk_samples == 53
    assert source.subset(np.arange(0, 93, 2)).locality.chunk_samples == 24
    order = Order(copied, batch_size=16)
    assert order.fingerprint == source.fingerprint
    assert order.grid.lanes * order.grid.window * copied.locality.chunk_bytes <= 128 << 20
    assert source.locality.layout(4096) == (64, None)


def test_subsets_and_splits(one):
    """A split by donor keeps donors whole, shares no row, and more stores move no old row."""
    source = RowSource(one.places, obs=("n",))
    parts = source.split(by="donor", fractions={"train": 0.6, "val": 0.4}, seed=1)
    rows = {name: part.row_numbers(np.arange(len(part))) for name, part in parts.items()}
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(93))
    donors = one.obs["donor"].to_numpy()
    assert not set(donors[rows["train"]]) & set(donors[rows["val"]])
    first = RowSource(one.places[0]).split(by="donor", fractions=(0.6, 0.4), seed=1)
    assert first[0].row_numbers(np.arange(len(first[0]))).tolist() == [r for r in rows["train"].tolist() if r < 53]
    inner = parts["val"].split(by="row", fractions=(0.5, 0.5), seed=1)
    assert sum(map(len, inner)) == len(parts["val"])
    fields, _ = read(inner[1], np.arange(len(inner[1])))
    check(fields, one, inner[1].row_numbers(np.arange(len(inner[1]))), inner[1])
    assert read(parts["val"].select(["n"]), [0, 1])[0].keys() == {"n"}


def test_rows_to_look_at(one):
    """One row by its number in the part, as a transform is given it; the table of a part's rows, in their order."""
    source = RowSource(one.places, matrices=ALL, obs=OBS)
    part, _ = source.split(by="row", fractions=(0.3, 0.7), seed=2)
    rows = part.row_numbers(np.arange(len(part)))
    table = part.obs(["n", "kind"])
    assert table.index.tolist() == one.obs.index[rows].tolist()
    assert table["n"].tolist() == one.obs["n"].to_numpy()[rows].tolist()
    assert part.obs().columns.tolist() == one.obs.columns.tolist()
    for place in (0, 5, -1):
        row = part[place]
        assert (row["X"].shape, list(row)) == ((1, NUM_COLS), [*ALL, *OBS])
        fields = {name: np.array([value]) if name in OBS else value for name, value in row.items()}
        fields |= {name: row[name][None] for name in ALL[2:]}
        check(fields, one, rows[[place]], part)
    with pytest.raises(IndexError):
        part[len(part)]
    with pytest.raises(ConfigError, match=r"no obs columns \['donors'\] in .*; there are \['kind', 'donor', 'n'\]"):
        part.obs(["donors"])
    with pytest.raises(ConfigError, match=r"write columns=\['n'\]"):
        part.obs("n")
    drawn = part.drawn(balance="kind")
    for look in (lambda: drawn[0], drawn.obs):
        with pytest.raises(ConfigError, match="read the rows that they are drawn from"):
            look()


def test_few_donors_come_out_as_asked(one):
    """So many donors in each part, named ones where they are to be, and of each kind its fraction of the rows."""
    source = RowSource(one.places, obs=OBS)
    donors, kinds = one.obs["donor"].to_numpy(), one.obs["kind"].to_numpy()
    num_donors = len(set(donors))

    def rows(part):
        return part.row_numbers(np.arange(len(part)))

    for seed in range(5):
        train, val = source.split(by="donor", fractions=(0.7, 0.3), exact=True, seed=seed)
        assert len(set(donors[rows(val)])) == round(0.3 * num_donors)
        assert not set(donors[rows(train)]) & set(donors[rows(val)])
        assert len(train) + len(val) == len(source)
    parts = source.split(by="donor", groups={"val": [donors[7], donors[50]]})
    assert set(donors[rows(parts["val"])]) == {donors[7], donors[50]}
    assert len(parts["train"]) + len(parts["val"]) == len(source)
    inner = parts["train"].split(by="donor", fractions={"a": 0.5, "b": 0.5}, exact=True)  # donors that are left
    sizes = [len(set(donors[rows(part)])) for part in inner.values()]
    assert abs(sizes[0] - sizes[1]) <= 1
    half, _ = source.split(by="row", fractions=(0.5, 0.5), stratify="kind")
    for kind in set(map(str, kinds)):
        assert abs((kinds[rows(half)].astype(str) == kind).sum() - (kinds.astype(str) == kind).sum() / 2) < 1
    with pytest.raises(ConfigError, match="stratify= needs a column with one value for all rows of one 'donor'"):
        source.split(by="donor", fractions=(0.5, 0.5), stratify="kind")


def test_it_travels_and_is_shared(one):
    """A pickled source reads the same; threads read through one source at a time."""
    source = RowSource(one.places, matrices=ALL, obs=OBS, dense=True)
    again = pickle.loads(pickle.dumps(source.subset(np.arange(10, 80))))
    each = 3 * 11 + 6 + 2  # three matrices, an obsm of 2 x 3 and two columns
    assert check(read(again, np.arange(70))[0], one, np.arange(10, 80), again) == 70 * each
    rng = np.random.default_rng(5)
    shares = [rng.permutation(93) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for ids, (fields, _) in zip(shares, pool.map(lambda ids: read(source, ids), shares), strict=True):
            assert check(fields, one, ids, source) == 93 * each
    source.close()


def test_a_damaged_chunk_fails_its_rows_alone(tmp_path):
    """Rows whose elements cannot be decoded are named with dataset and row; the others are right. Dense ones too."""
    held = make_stores(tmp_path)
    chunk = next(p for p in Path(held.places[1], "X", "data").rglob("*") if p.is_file() and p.name == "0")
    chunk.write_bytes(b"nonsense")
    for dense in (False, True):
        source = RowSource(held.places, obs=("n",), dense=dense)
        fields, report = read(source, np.arange(93)[::-1])
        full = np.diff(held.matrices["X"].indptr)[::-1] > 0
        second = np.arange(93)[::-1] >= 53
        assert report.valid.tolist() == (~(second & full)).tolist()
        error = next(
            error for error in report.errors if error.sample == int(np.flatnonzero(full[::-1] & second[::-1])[0])
        )
        assert error.damage
        assert f"(row {error.sample - 53} of {held.places[1]}) cannot be read" in str(error)
        assert "X/data" in error.place
        rows = np.arange(93)[::-1][report.valid]
        got = fields["X"][report.valid]
        np.testing.assert_array_equal(got if dense else got.toarray(), held.dense("X")[rows])


def test_columns_that_are_not_there_are_damage(tmp_path):
    """Column numbers beyond the matrix never reach who multiplies by it."""
    held = make_stores(tmp_path, sizes=(30,))
    indices = zarr.open_array(f"{held.places[0]}/X/indices", mode="a")
    bounds = held.matrices["X"].indptr
    row = int(np.flatnonzero(np.diff(bounds))[3])
    for wrong in (NUM_COLS, -1):
        indices[bounds[row]] = wrong
        for dense in (False, True):
            _, report = read(RowSource(held.places, dense=dense), np.arange(30))
            assert [error.sample for error in report.errors] == [row]
            assert "has column numbers outside the matrix" in str(report.errors[0])


def test_what_does_not_fit_is_refused(one, tmp_path):
    """Names, genes, stores that do not fit together: each says what there is."""
    other = make_stores(tmp_path, sizes=(20,))
    names = zarr.open_array(f"{other.places[0]}/var/_index", mode="a")
    names[3] = "geneX"
    for options, said in (
        ({"matrices": "X"}, r"write matrices=\['X'\]"),
        ({"matrices": None}, r"write matrices=\[...\]"),
        ({"obs": 3}, r"got 3: omit it or write obs="),
        ({"cache": "1GB"}, "a number of bytes, got '1GB'"),
        ({"threads": "two"}, "threads of a reader must be an integer of at least 1, got 'two'"),
        ({"genes": 5}, r"write genes=\[5\]"),
        ({"matrices": ("X", "X")}, "each with its own name"),
        ({"matrices": ()}, "at least one field"),
        ({"matrices": ("layers/raw",)}, "has no 'layers/raw'"),
        ({"genes": ["gene1", "geneX"]}, r"1 names that do not exist, such as \['geneX'\]; there are 11"),
        ({"genes": [1, 11]}, r"numbers from 0 to 10; got \[11\]"),
        ({"genes": [1, 1]}, "more than once"),
        ({"genes": [1.5]}, "a list of names or numbers"),
        ({"genes": "gene1"}, r"write genes=\['gene1'\]"),
        ({"genes": [0], "matrices": ("obsm/pca",)}, "of X and layers"),
        ({"rows": [93]}, "from 0 to 92"),
    ):
        with pytest.raises(ConfigError, match=said):
            RowSource(one.places, **options)
    with pytest.raises(ConfigError, match=r"the same variables in the same order; .* differing from number 3 on"):
        RowSource([*one.places, *other.places])
    with pytest.raises(IndexError, match="samples 93 to 93, the source has 93"):
        read(RowSource(one.places), [93])
    with pytest.raises(ConfigError, match="fields X; asked for"):
        RowSource(one.places).select(["y"])
    with pytest.raises(DataError, match="there is no"):
        RowSource(tmp_path / "nothing.zarr")


def test_collections_are_read(one, tmp_path):
    """A collection by its object or its path: every row of what was added, once."""
    collection = DatasetCollection(tmp_path / "cells.zarr")
    collection.add_adatas(one.places)
    by_object, by_path = RowSource(collection, obs=("n",)), RowSource(tmp_path / "cells.zarr", obs=("n",))
    assert by_object.fingerprint == by_path.fingerprint
    fields, _ = read(by_object, np.arange(93))
    numbers = one.obs["n"].to_numpy().astype(int)
    rows = [int(np.flatnonzero(numbers == n)[0]) for n in fields["n"]]
    assert sorted(rows) == list(range(93))
    np.testing.assert_array_equal(fields["X"].toarray(), one.dense("X")[rows])


def test_chunks_are_decoded_once_an_epoch(tmp_path):
    """With the cache at its default an epoch decodes each chunk of a store in many chunks once."""
    held = make_stores(tmp_path, (400,), chunk=40)
    with RowSource(held.places, threads=1) as source:
        assert source.locality.chunk_samples == round(40 / held.matrices["X"].nnz * 400)
        list(loader_of(source, Order(source, batch_size=16)))
        num_chunks = -(-held.matrices["X"].nnz // 40)
        assert source.stats.chunks_decoded == 2 * num_chunks + -(-401 // 40)  # data, indices, row pointers


def test_damaged_row_pointers_are_told(tmp_path):
    """Rows of whose chunk one would begin after it ends are not valid, with the array; they hold nothing."""
    held = make_stores(tmp_path, (30,))
    indptr = zarr.open_array(f"{held.places[0]}/X/indptr", mode="a")
    indptr[7] = 10_000
    fields, report = read(RowSource(held.places, obs=("n",)), [3, 9])
    assert not report.valid.any()
    assert fields["X"].nnz == 0
    for error, row in zip(report.errors, (3, 9), strict=True):
        assert re.search(r"row pointers .*0.zarr/X/indptr are damaged: in chunk \(0,\) row 7", str(error))
        assert (error.sample, error.damage) == (row, True)


@pytest.mark.parametrize("options", [{}, {"dense": True}, {"genes": range(0, 2000, 2)}])
def test_memory_is_that_of_batches(tmp_path, options):
    """An epoch of dense rows takes some batches and the cache, far from the whole matrix, dense or sparse."""
    matrix = random_csr(2000, 2000, density=0.05)
    write_anndata(anndata.AnnData(matrix), tmp_path / "a.zarr")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="a", use_consolidated=False)
    del group["X"]
    write_csr(group, "X", matrix, chunk=2000, shard=20_000)
    source = RowSource(tmp_path / "a.zarr", threads=1, cache=2**18, **options)
    loader = loader_of(source, Order(source, batch_size=50, lanes=2, window=1))
    tracemalloc.start()
    try:
        for _ in loader:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    batch = 50 * 2000 * 4
    assert peak < 2 * 2**18 + 5 * batch + 2**20  # three batches, the rows of one of them, plans; all rows: 40 batches


def test_obs_alone(one):
    """Columns without any matrix are a source too: nothing is read from disk for a batch."""
    source = RowSource(one.places, matrices=(), obs=OBS, rows=range(5, 60))
    assert (source.fields.keys(), source.locality.chunk_samples) == ({"kind", "n"}, 1)
    fields, report = read(source, np.arange(55))
    check(fields, one, np.arange(5, 60), source)
    assert report.valid.all()
    assert source.stats.boxes == 0
    assert sorted(i for (b,) in loader_of(source, Order(source, batch_size=20)) for i in b.ids) == list(range(55))
