"""CSR rows that come out dense: what SciPy makes of them, whatever they are stored as."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from rankwise.data.feed.memory.pool import MemoryPool
from rankwise.data.rows.fields.row_field import RowField, read_fields
from rankwise.data.rows.fields.variables import modality_of
from rankwise.data.rows.matrices.matrix import open_matrix
from rankwise.data.rows.matrices.stacks import stack_matrices
from rankwise.data.store import BoxReader

CODECS = {"raw": None, "zstd": ZstdCodec(), "blosc": BloscCodec(cname="lz4"), "gzip": GzipCodec()}
NUM_COLS = 23


@dataclass
class Stored:
    """Two matrices one over the other, and what they hold together."""

    places: list
    truth: np.ndarray
    dtypes: tuple


def random_rows(rng, num_rows, *, order, twice, truths=False):
    """CSR rows with explicit zeros, some empty; columns rise, or come in any order, or also several times."""
    lengths = np.where(rng.random(num_rows) < 0.2, 0, rng.integers(0, NUM_COLS, num_rows))
    picked = [rng.choice(NUM_COLS, n, replace=twice) for n in lengths]
    columns = np.concatenate([np.sort(row) if order == "rising" else row for row in picked]).astype("i4")
    values = rng.integers(0, 2 if truths else 9, lengths.sum()).astype("f4")
    return sp.csr_matrix((values, columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(num_rows, NUM_COLS))


def write(group, name, matrix, dtype, chosen):
    """As AnnData does; data and indices in chunks of their own sizes."""
    held = group.create_group(name)
    held.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    sizes = {"data": chosen["chunks"][0], "indices": chosen["chunks"][1], "indptr": 40}
    for part, part_dtype in {"data": dtype, "indices": chosen["index"], "indptr": "i8"}.items():
        values = getattr(matrix, part).astype(part_dtype)
        sharded = chosen["chunks"][2] and part != "indptr"
        array = held.create_array(
            part, shape=values.shape, dtype=values.dtype, chunks=(sizes[part],), compressors=CODECS[chosen["codec"]],
            shards=(16 * sizes[part],) if sharded else None,
        )  # fmt: skip
        array[:] = values


KINDS = {
    "as_written": {},
    "short_chunks": {"chunks": (16, 24, True), "index": "i4"},
    "one_grid": {"chunks": (48, 48, True), "stored": ("f4", "u1")},
    "one_grid_cast": {"chunks": (32, 32, False), "stored": ("f8", "i4"), "index": "i8", "order": "any", "twice": True},
    "long_chunks": {"chunks": (5000, 5000, False), "stored": ("u2", "u1"), "codec": "raw"},
    "any_order": {"chunks": (16, 5000, True), "stored": ("f8", "f4"), "order": "any"},
    "twice": {"chunks": (24, 16, True), "order": "any", "twice": True, "index": "i8"},
    "integers": {"stored": ("i8", "f8"), "codec": "zstd", "order": "any"},
    "halves": {"stored": ("f2", "f2"), "chunks": (5000, 48, True), "twice": True},
    "truths": {"stored": ("?", "?"), "index": "u1", "order": "any", "twice": True},
    "of_zarr_python": {"codec": "gzip", "chunks": (64, 64, False), "order": "any", "twice": True},
    "complex": {"stored": ("c16", "c16")},
}


def make(folder, **choices):
    chosen = {"stored": ("f4", "f4"), "codec": "blosc", "chunks": (64, 48, True), "index": "u2", "order": "rising"}
    chosen |= {"twice": False, **choices}
    rng = np.random.default_rng(len(str(folder)))
    group = zarr.open_group(str(folder), mode="w")
    parts = []
    for number, (num_rows, dtype) in enumerate(zip((61, 40), chosen["stored"], strict=True)):
        part = random_rows(rng, num_rows, order=chosen["order"], twice=chosen["twice"], truths=dtype == "?")
        write(group, f"m{number}", part, dtype, chosen)
        parts.append(part.toarray())
    truth = np.concatenate(parts)
    return Stored([f"{folder}/m{number}" for number in range(2)], truth, chosen["stored"])


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Stores of each kind."""
    folder = tmp_path_factory.mktemp("stores")
    return {name: make(folder / f"{name}.zarr", **choices) for name, choices in KINDS.items()}


def read(stored, rows, reader, *, genes=None, dtype=None, memory=None):
    """Dense rows, and how they came."""
    stack = stack_matrices([open_matrix(place, reader) for place in stored.places], dtype=dtype)
    field = RowField(stack, dense=True, columns=None if genes is None else [np.array(genes)])
    plan = field.plan(np.asarray(rows, dtype=np.int64), reader)
    out = np.empty((len(rows), *field.spec.shape), dtype=field.spec.dtype)
    out.view(np.uint8)[...] = 0xA5  # what a buffer held before does not matter
    done = read_fields({"X": field}, {"X": plan}, {"X": (out,)}, reader, memory or MemoryPool())["X"]
    return out, done


def expected(stored, rows, dtype, genes):
    picked = stored.truth[np.asarray(rows, dtype=np.int64)].astype(dtype)
    return picked if genes is None else picked[:, genes]


@pytest.fixture(params=["kernel", "threads"])
def reader(request, monkeypatch):
    monkeypatch.setenv("RANKWISE_DECODER", request.param)
    with BoxReader(cache=2**15, threads=2) as reader:
        yield reader


GENES = st.none() | st.lists(st.integers(0, NUM_COLS - 1), min_size=1, unique=True)
LAYOUTS = st.tuples(st.sampled_from([5, 64, 5000]), st.sampled_from([7, 64, 5000]), st.booleans())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_dense_rows_are_those_of_scipy(reader, held, data):
    """Any dtypes, codecs, chunks, orders of columns and chosen genes; rows in any order, also several times."""
    stored = held[data.draw(st.sampled_from(sorted(KINDS)))]
    genes = data.draw(GENES)
    dtype = None if stored.dtypes[0] == "c16" else data.draw(st.sampled_from([None, "f4", "f8"]))
    rows = data.draw(st.lists(st.integers(0, 100), max_size=60))
    out, done = read(stored, rows, reader, genes=genes, dtype=dtype)
    assert all(report.valid.all() for report in done.reports)
    assert done.outside is None
    np.testing.assert_array_equal(out, expected(stored, rows, out.dtype, genes))


def chunk_files(place, part):
    return sorted(path for path in Path(place, part).rglob("*") if path.is_file() and path.name != "zarr.json")


def lose(place, part):
    chunk_files(place, part)[-1].unlink()


def spoil(place, part):
    chunk_files(place, part)[0].write_bytes(b"nonsense")


def rename(column):
    """A row names another column: one that there is not, or one that it names before."""

    def damage(place, _part):
        indptr = zarr.open_array(f"{place}/indptr", mode="r")[:]
        indices = zarr.open_array(f"{place}/indices", mode="a")
        for row in np.flatnonzero(np.diff(indptr) > 2)[::7]:
            indices[indptr[row] + 1] = indices[indptr[row]] if column == "before" else column

    return damage


DAMAGES = {
    "lost": lose, "spoiled": spoil, "beyond": rename(NUM_COLS), "far_beyond": rename(60_000), "again": rename("before"),
}  # fmt: skip


CASES = [
    ("lost", "data"), ("lost", "indices"), ("spoiled", "data"), ("spoiled", "indices"), ("beyond", "indices"),
    ("far_beyond", "indices"), ("again", "indices"),
]  # fmt: skip


@pytest.mark.parametrize("genes", [None, [20, 3, 4, 5, 11]])
@pytest.mark.parametrize(("damage", "part"), CASES)
@pytest.mark.parametrize(("kind", "index_chunk"), [("as_written", 32), ("as_written", 48), ("any_order", 48)])
def test_damage_is_told_as_without_compiled_code(  # noqa: PLR0917
    tmp_path, monkeypatch, kind, index_chunk, damage, part, genes
):
    """The same rows fail; the others come out the same; chunks are counted alike, whatever grid columns have."""
    choices = {**KINDS[kind], "chunks": (48, index_chunk, False), "index": "u2"}
    stored = make(tmp_path / "m.zarr", **choices)
    DAMAGES[damage](stored.places[0], part)
    rows, found = np.random.default_rng(1).permutation(101), []
    for name in ("kernel", "threads"):
        monkeypatch.setenv("RANKWISE_DECODER", name)
        with BoxReader(threads=2, cache=0) as reader:
            out, done = read(stored, rows, reader, genes=genes)
        errors = {error.box: str(error.error) for report in done.reports for error in report.errors}
        outside = set() if done.outside is None else set(np.flatnonzero(done.outside).tolist()) - set(errors)
        good = sorted(set(range(101)) - set(errors) - outside)
        found.append((sorted(errors), sorted(outside), good))
        if damage in ("lost", "again"):  # values without a file count as zeros
            assert bool(errors) == ((damage, part) == ("lost", "indices"))
        if damage in ("beyond", "far_beyond"):
            assert outside
        if damage == "spoiled":
            assert errors
            assert len(good) > 40
        if damage != "lost":
            truth = expected(stored, rows, out.dtype, genes)
            clean = [at for at in good if rows[at] > 60]
            np.testing.assert_array_equal(out[clean], truth[clean])
        counts = [(report.fill_chunks, report.fast_chunks) for report in done.reports]
        found[-1] += (out[good].tobytes(), np.sum(counts, axis=0).tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("index_chunk", [32, 48])
def test_columns_that_no_index_holds_fail_their_rows(tmp_path, monkeypatch, index_chunk):
    """A number beyond 32 bits spoils the rows of its piece, not those beside it, whatever grid columns have."""
    stored = make(tmp_path / "m.zarr", chunks=(48, index_chunk, False), index="i8", order="any")
    rename(2**40)(stored.places[0], "indices")
    found = []
    for name in ("kernel", "threads"):
        monkeypatch.setenv("RANKWISE_DECODER", name)
        with BoxReader(threads=2, cache=0) as reader:
            out, done = read(stored, np.arange(101), reader)
        errors = {error.box: str(error.error) for report in done.reports for error in report.errors}
        good = np.setdiff1d(np.arange(101), sorted(errors))
        np.testing.assert_array_equal(out[good], stored.truth[good])
        found.append(sorted(errors))
    assert found[0] == found[1]
    assert 0 < len(found[0]) < 61


@pytest.mark.parametrize("kind", ["as_written", "of_zarr_python"])
def test_only_columns_lie_in_between(held, monkeypatch, kind):
    """Elements go straight to their places: besides the batch there is memory for columns, as narrow as stored.

    Where zarr-python decodes, elements lie in between as well.
    """
    monkeypatch.setenv("RANKWISE_DECODER", "kernel")
    taken = []

    class Counting(MemoryPool):
        def take(self, count, dtype):
            taken.append(count * dtype.itemsize)
            return super().take(count, dtype)

    with BoxReader(threads=1, cache=0) as reader:
        read(held[kind], np.arange(101), reader, memory=Counting())
        stack = stack_matrices([open_matrix(place, reader) for place in held[kind].places])
        elements = stack.plan(np.arange(101), reader).num_elements
    assert taken == ([2 * elements] if kind == "as_written" else [4 * elements, 4 * elements])


def test_whose_variables():
    """X and layers have the store's, those of a modality its own, others none."""
    names = ["X", "layers/counts", "obsm/X", "mod/protein/X", "mod/protein/layers/a", "mod/protein/obsm/pca"]
    assert [modality_of(name) for name in names] == ["", "", None, "mod/protein", "mod/protein", None]
