"""Columns about the rows as numbers, and as groups."""

import tracemalloc

import anndata
import numpy as np
import pandas as pd
import pytest

from rankwise.data.rows import obs as columns
from rankwise.data.rows.datasets.in_memory import MemoryDataset
from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.obs import read_column, read_groups, read_tables
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError
from rankwise.testing.stores.small_rows import write_anndata


def table(kinds, categories, *, seed=0):
    num = len(kinds)
    return pd.DataFrame(
        {
            "kind": pd.Categorical(kinds, categories=categories),
            "age": np.arange(num, dtype="f4") + seed,
            "many": np.arange(num, dtype="i2" if seed else "i8"),
            "sick": np.arange(num) % 2 == 0,
            "free": [f"text {seed} {row}" for row in range(num)],
            "maybe": pd.array([1, None, *range(2, num)], dtype="Int64" if seed else "Int16"),
            "small": pd.array([None, *range(1, num)], dtype="UInt8"),
            "yes": pd.array([True, None, *[False] * (num - 2)], dtype="boolean"),
            "text": ["z", "b", "b", "a"][:num] if not seed else pd.Categorical(["q", "a", "b"]),
            "gaps": pd.array(["x", None, *["y"] * (num - 2)], dtype="string"),
            "whole": pd.array(range(num), dtype="Int32"),
            "mixed": pd.Categorical(kinds) if seed else np.arange(num),
        },
        index=[f"{seed}-{row}" for row in range(num)],
    )


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    tables = [table(["a", "c", None, "a"], ["a", "b", "c"]), table(["d", "a", "c"], ["d", "c", "a"], seed=5)]
    places = []
    for number, obs in enumerate(tables):
        made = anndata.AnnData(X=np.zeros((len(obs), 2), "f4"), obs=obs)
        places.append(write_anndata(made, folder / f"{number}.zarr"))
    with BoxReader(threads=1) as reader:
        yield [Dataset(place, reader) for place in places]


def taken(column, rows):
    out = np.empty(len(rows), dtype=column.spec.dtype)
    column.take(np.array(rows), out)
    return out


def test_one_table_of_categories(datasets):
    """Codes mean the same in all datasets, -1 is missing; the first dataset's categories keep their numbers."""
    column = read_column(datasets, "kind")
    assert column.categories == ("a", "b", "c", "d")
    assert column.spec.dtype == np.int32
    assert taken(column, [6, 0, 1, 2, 3, 4, 5]).tolist() == [2, 0, 2, -1, 0, 3, 0]


@pytest.mark.parametrize(("name", "dtype"), [("age", "f4"), ("many", "i8"), ("sick", "?"), ("whole", "i4")])
def test_numbers_as_they_are(datasets, name, dtype):
    """Floats, whole numbers, truth values; what all datasets' dtypes have in common."""
    column = read_column(datasets, name)
    assert (column.spec.dtype, column.categories) == (np.dtype(dtype), None)
    wanted = np.concatenate([dataset.obs([name])[name].to_numpy() for dataset in datasets])
    assert taken(column, [5, 0, 3]).tolist() == wanted[[5, 0, 3]].tolist()


def test_text_is_a_category(datasets, monkeypatch):
    """Few different texts are codes of one table, with categories of other stores; missing ones are -1."""
    text, gaps = read_column(datasets, "text"), read_column(datasets, "gaps")
    assert (text.categories, gaps.categories) == (("a", "b", "z", "q"), ("x", "y"))
    assert taken(text, range(7)).tolist() == [2, 1, 1, 0, 3, 0, 1]
    assert taken(gaps, range(7)).tolist() == [0, -1, 1, 1, 0, -1, 1]
    monkeypatch.setattr(columns, "_MOST_TEXTS", 3)
    with pytest.raises(ConfigError, match=r"column 'free' of .* holds 4 different texts or objects, not numbers"):
        read_column(datasets, "free")


@pytest.mark.parametrize(("name", "dtype"), [("maybe", "f8"), ("small", "f4"), ("yes", "f4")])
def test_numbers_that_are_missing(datasets, name, dtype):
    """Whole numbers and truth values with gaps are floats with NaN, wide enough for all datasets."""
    column = read_column(datasets, name)
    wanted = np.concatenate([d.obs([name])[name].to_numpy(dtype="f8", na_value=np.nan) for d in datasets])
    assert column.spec.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(taken(column, range(7)), wanted)
    assert np.isnan(wanted).sum() == 2


@pytest.mark.parametrize("largest", [2**53, 2**53 + 1, -(2**53) - 1])
@pytest.mark.parametrize("why", ["missing", "floats elsewhere", "both signs"])
def test_whole_numbers_that_floats_round_are_said(tmp_path, caplog, why, largest):
    """Once, by what the column holds; whole columns of one kind stay exact, and small numbers need no word."""
    first = [largest, None] if why == "missing" else [largest, 1]
    ids = pd.array(first, dtype="Int64") if why == "missing" else np.array(first, dtype="i8")
    other = np.array([2, 3], dtype={"missing": "i8", "floats elsewhere": "f4", "both signs": "u8"}[why])
    name = f"id of {why} {largest}"
    places = []
    for number, values in enumerate((ids, other)):
        obs = pd.DataFrame({name: values}, index=["a", "b"])
        made = anndata.AnnData(X=np.zeros((2, 1), "f4"), obs=obs)
        places.append(write_anndata(made, tmp_path / f"{number}.zarr"))
    with BoxReader(threads=1) as reader:
        both = [Dataset(place, reader) for place in places]
        assert read_column(both[1:], name).spec.dtype == other.dtype
        assert not caplog.records
        for _ in range(2):
            column = read_column(both, name)
    assert column.spec.dtype == np.float64
    assert int(taken(column, [0])[0]) == int(float(largest))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (abs(largest) > 2**53)
    assert all(f"'{name}' of {places[0]} holds int64 and becomes float64" in text for text in said)
    assert all("integers beyond 9,007,199,254,740,992 are rounded" in text for text in said)


def test_tables_say_what_they_round(tmp_path, caplog):
    """Integers of a column that another store lacks become floats, as in anndata.concat: said if that rounds them."""
    places = []
    for name, values in (("small", [1, 2]), ("large", [1, 2**53 + 1])):
        obs = pd.DataFrame({f"table {name}": values}, index=["a", "b"])
        places.append(write_anndata(anndata.AnnData(X=np.zeros((2, 1), "f4"), obs=obs), tmp_path / f"{name}.zarr"))
    with BoxReader(threads=1) as reader:
        both = [Dataset(place, reader) for place in places]
        assert read_tables(both[1:], None)["table large"].tolist() == [1, 2**53 + 1]
        assert not caplog.records
        assert read_tables(both, None)["table small"].tolist()[:2] == [1.0, 2.0]
    [said] = [record.getMessage() for record in caplog.records]
    assert f"'table large' of {places[1]} holds int64 and becomes float64: integers beyond" in said


def test_what_batches_cannot_hold(datasets):
    """Mixed kinds, columns that are not there: each with its mend."""
    for name, said in (
        ("mixed", "a category in some datasets, but not in .*0.zarr"),
        ("other", "has no obs columns 'other'"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_column(datasets, name)


def test_groups_are_equal_values(datasets):
    """Categories and text make groups over all datasets; a missing value is in none."""
    kinds, text = read_groups(datasets, "kind"), read_groups(datasets, "free")
    assert [kinds.labels[code] if code >= 0 else None for code in kinds.codes] == ["a", "c", None, "a", "d", "a", "c"]
    assert [text.labels[code] for code in text.codes[3:5]] == ["text 0 3", "text 5 0"]
    assert read_groups(datasets, "kind", np.array([4, 2], "u4")).codes.tolist() == [3, -1]


def test_bytes_of_a_row(tmp_path):
    """A column of labels takes one byte a row as a field and as groups, over several stores too."""
    num = 400_000
    obs = pd.DataFrame({"kind": pd.Categorical.from_codes(np.arange(num) % 5, list("abcde"))})
    obs.index = obs.index.astype(str)
    place = write_anndata(anndata.AnnData(X=np.zeros((num, 1), "i1"), obs=obs), tmp_path / "long.zarr")
    with BoxReader(threads=1) as reader:
        stores = [Dataset(place, reader)] * 3
        for read, part in ((read_column, "values"), (read_groups, "codes")):
            assert getattr(read(stores, "kind"), part).nbytes == 3 * num
            tracemalloc.start()
            read(stores, "kind")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # those of all stores as they are read, those that come out, and a block of places
            assert peak < 6 * num + 4 * num + 8 * 2**18


def test_tables_of_which_some_lack_a_category():
    """The column stays a category: where it is missing, where all its values are, and with other kinds of labels."""
    tables = [
        pd.DataFrame({"c": pd.Categorical(["b", "a"], ["b", "a"], ordered=True)}, index=["0", "1"]),
        pd.DataFrame({"n": [1]}, index=["1"]),
        pd.DataFrame({"c": pd.Categorical.from_codes([-1], pd.Index([], dtype=float))}, index=["3"]),
    ]
    joined = columns.join_tables(tables)
    assert joined["c"].dtype == tables[0]["c"].dtype
    assert joined["c"].astype(object).where(joined["c"].notna(), None).tolist() == ["b", "a", None, None]
    joined = columns.join_tables([*tables, pd.DataFrame({"c": pd.Categorical([7, 7])}, index=["4", "5"])])
    assert joined["c"].cat.categories.tolist() == ["b", "a", 7]
    assert joined["c"].cat.codes.tolist() == [0, 1, -1, -1, 2, 2]


def test_columns_of_arrow():
    """Nullable numbers of pyarrow are read like those of pandas."""
    pytest.importorskip("pyarrow")
    made = anndata.AnnData(np.ones((3, 2), "f4"), obs=pd.DataFrame(index=list("xyz")))
    made.obs["n"] = pd.array([1, None, 2**40], dtype="int64[pyarrow]")
    column = read_column([MemoryDataset(made)], "n")
    np.testing.assert_array_equal(column.values, [1, np.nan, 2.0**40])
