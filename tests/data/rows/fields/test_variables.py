"""Chosen variables of stores that have others, and of modalities."""

import warnings

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from rankwise import Order
from rankwise.data.rows import OrderedLoader, RowSource
from rankwise.errors import ConfigError
from rankwise.testing.stores.small_rows import random_csr, write_anndata

GENES = (["a", "b", "c", "d"], ["d", "x", "b", "y", "a"])


def made(names, seed, num_rows=20):
    obs = pd.DataFrame({"n": np.arange(num_rows) + 100 * seed}, index=[f"{seed}-{row}" for row in range(num_rows)])
    counts = random_csr(num_rows, len(names), seed=seed, density=0.7)
    found = anndata.AnnData(X=counts, obs=obs, var=pd.DataFrame(index=names))
    found.layers["full"] = counts.toarray() * 2
    return found


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two stores with different variables, and a modality with others again."""
    folder, places, tables = tmp_path_factory.mktemp("stores"), [], {"X": [], "protein": []}
    for seed, names in enumerate(GENES):
        one = made(names, seed)
        protein = made([f"p{k}" for k in range(3 + seed)][:: 1 - 2 * seed], seed + 7)
        places.append(write_anndata(one, folder / f"{seed}.zarr"))
        zarr.open_group(places[-1], mode="a", use_consolidated=False).create_group("mod")
        write_anndata(protein, folder / f"{seed}.zarr" / "mod" / "protein")
        with warnings.catch_warnings(action="ignore"):  # of zarr, about consolidated metadata of version 3
            zarr.consolidate_metadata(places[-1])
        for name, held in (("X", one), ("protein", protein)):
            tables[name].append(pd.DataFrame(held.X.toarray(), columns=held.var_names))
    return places, {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}


def rows_of(loader, name):
    """A field of all rows, in the order of the rows."""
    rows = {}
    for (batch,) in loader:
        rows.update(zip(batch.ids.tolist(), batch[name].tolist(), strict=True))
    return [rows[number] for number in sorted(rows)]


@pytest.mark.parametrize("genes", [["b", "d"], ["d", "a", "b"]])
def test_genes_by_name_in_each_store(stores, genes):
    """A name is found where each store has it; rows of all stores mix in one batch."""
    places, tables = stores
    source = RowSource(places, genes=genes)
    loader = OrderedLoader(source, order=Order(source, batch_size=7), device=None)
    assert rows_of(loader, "X") == tables["X"][genes].to_numpy().tolist()


def test_modalities(stores):
    """A modality has variables of its own, and genes= of its own; all come in one batch."""
    places, tables = stores
    genes = {"X": ["a", "d"], "mod/protein/X": ["p2", "p0"]}
    source = RowSource(places, matrices=("X", "mod/protein/X"), genes=genes)
    loader = OrderedLoader(source, order=Order(source, batch_size=9), device=None)
    assert rows_of(loader, "X") == tables["X"][["a", "d"]].to_numpy().tolist()
    assert rows_of(loader, "mod/protein/X") == tables["protein"][["p2", "p0"]].to_numpy().tolist()
    one = RowSource(places[0], matrices=("X", "mod/protein/X"), genes=["c"])
    fields = {name: (spec.shape, spec.ragged) for name, spec in one.fields.items()}
    assert fields == {"X": ((1,), False), "mod/protein/X": ((3,), True)}
    assert "mod/protein/X" in one.datasets[0].matrices
    assert "mod/protein/layers/full" in one.datasets[0].matrices


def test_dense_matrices_in_another_order(tmp_path):
    """Dense rows are taken by name, those of stores with fewer variables too; without genes they are refused."""
    names, places = (["a", "b", "c"], ["c", "a", "b"], ["a", "b"]), []
    values = [np.arange(5 * len(held)).reshape(5, -1) + 100 * k for k, held in enumerate(names)]
    for k, held in enumerate(names):
        one = anndata.AnnData(X=values[k].astype("f4"), var=pd.DataFrame(index=held))
        places.append(write_anndata(one, tmp_path / f"{k}.zarr"))
    source = RowSource(places[:2], genes=["b", "c"])
    rows = rows_of(OrderedLoader(source, order=Order(source, batch_size=4), device=None), "X")
    assert rows == [*values[0][:, [1, 2]].tolist(), *values[1][:, [2, 0]].tolist()]
    source = RowSource(places, genes=["b", "a"])
    rows = rows_of(OrderedLoader(source, order=Order(source, batch_size=4), device=None), "X")
    wanted = [held[:, [names[k].index(gene) for gene in "ba"]] for k, held in enumerate(values)]
    assert rows == np.concatenate(wanted).tolist()
    with pytest.raises(ConfigError, match="the same variables in the same order"):
        RowSource(places)


@pytest.mark.parametrize("drawn", [{}, {"mix": [0.5, 0.5]}, {"balance": "n"}])
def test_an_order_wants_no_genes(stores, drawn):
    """An order of stores with different variables counts rows; the loader alone is told which of them it reads."""
    places, tables = stores
    order = Order(places, batch_size=8, **drawn)
    assert order.recipe == Order(RowSource(places, genes=["a"]), batch_size=8, **drawn).recipe
    loader = OrderedLoader(places, order=order, genes=["d", "b"], device=None)
    for (batch,) in loader:
        step = batch.share.step
        rows = loader.source.row_numbers(batch.ids, seed=step.resume.seed, epoch=step.epoch)
        assert batch["X"].tolist() == tables["X"][["d", "b"]].to_numpy()[rows].tolist()
    with pytest.raises(ConfigError, match=r"choose genes=\[...\] by names"):
        OrderedLoader(places, order=order)


def test_variables_left_open(stores):
    """Rows whose variables are still to be said are counted and split; what would read them says what it lacks."""
    places, tables = stores
    source = RowSource(places, genes=...)
    assert repr(source).startswith("RowSource(40 rows of 2 stores; X")
    part, _ = source.split(by="row", fractions=(0.5, 0.5))
    order = Order(part, batch_size=5)
    wanted = tables["X"][["a"]].to_numpy()[part.row_numbers(np.arange(len(part)))]
    assert rows_of(OrderedLoader(part, order=order, genes=["a"], device=None), "X") == wanted.tolist()
    with pytest.raises(ConfigError, match=r"genes=... does not select variables.* pass genes=\[...\] to the loader"):
        OrderedLoader(part, order=order)


def test_what_cannot_be_chosen(stores):
    """Genes that a store lacks are named with it; numbers mean nothing across different variables."""
    places, _ = stores
    for options, said in (
        ({"genes": ["a", "c", "b"]}, r"1.zarr lacks 1 of the 3 genes=, such as \['c'\]"),
        ({"genes": [0]}, "the same variables in the same order"),
        ({"genes": ["a", 0]}, "needs names, got the number 0"),
        ({}, r"differing from number 0 on: choose genes=\[...\] by names that all have"),
        ({"genes": {"layers/full": ["a"]}}, "genes= names 'layers/full', which are not among the matrices X"),
        ({"genes": {"X": "a"}}, r"write genes=\['a'\]"),
    ):
        with pytest.raises(ConfigError, match=said):
            RowSource(places, **options)


def test_damage_is_seen_in_its_own_store(tmp_path):
    """A column beyond its own matrix is damage, also where another store has as many."""
    places = [write_anndata(made(names, k), tmp_path / f"{k}.zarr") for k, names in enumerate(GENES)]
    indices = zarr.open_array(f"{places[0]}/X/indices", mode="a")
    bounds = sp.csr_matrix(made(GENES[0], 0).X).indptr
    row = int(np.flatnonzero(np.diff(bounds))[2])
    indices[bounds[row]] = 4
    source = RowSource(places, genes=["a", "b"])
    loader = OrderedLoader(source, order=Order(source, batch_size=10), device=None, on_bad_sample=3)
    seen = [number for (batch,) in loader for number in batch.ids.tolist()]
    assert set(range(40)) - set(seen) == {row}
