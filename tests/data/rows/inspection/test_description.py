"""What `rankwise rows info` prints."""

import pandas as pd

from rankwise.data.rows import DatasetCollection, RowSource
from rankwise.data.rows.inspection.description import describe_rows, text_of_rows
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


def test_it_fits_a_terminal(tmp_path, monkeypatch):
    """Matrices, chunks, waste and columns in lines of at most 80; datasets that are alike are told once."""
    monkeypatch.chdir(tmp_path)
    inputs = [small_anndata(20, 5, seed=seed) for seed in range(7)]
    for number, made in enumerate(inputs):
        made.obs = pd.concat([made.obs, pd.DataFrame(0, made.obs.index, [f"column_{k}" for k in range(9)])], axis=1)
        made.write_h5ad(f"{number}.h5ad")
    names = [f"{number}.h5ad" for number in range(7)]
    DatasetCollection("c.zarr").add_adatas(names, rng=0, dataset_size=70, n_obs_per_chunk=16)
    lines = text_of_rows(describe_rows("c.zarr")).replace(f"{tmp_path}/", "").splitlines()
    assert lines[0] == "c.zarr: 140 rows in 2 datasets"
    assert lines[1] == "c.zarr/dataset_0: 70 rows, 5 variables"
    assert lines[2].startswith("  X: csr float32[5], ")
    assert lines[3:5] == [
        "    chunks of 16 rows with edges on row edges, sharded",
        "    runs of 1, 32, 64, 512 rows decode 16, 1, 1, 1 times what they hold",
    ]
    assert lines[11:15] == [
        "  obs: kind, n, name, column_0, column_1, column_2, column_3, column_4,",
        "    column_5, column_6, column_7, column_8, src_path, src_row",
        "c.zarr/dataset_1: 70 rows, 5 variables",
        "  as the one before",
    ]
    assert lines[15].startswith("written with seed 0 from 0.h5ad (20 rows), ")
    assert lines[15].endswith(", 4.h5ad (20 rows) and 2 more as dataset_0, dataset_1")
    assert max(len(line) for line in lines[:15]) <= 80


def test_what_little_a_conversion_would_buy(tmp_path):
    """Where chunks are small beside runs of 64 rows, it is said how much they waste."""
    for chunk, words in ((16, "at most 1 times what they hold: a conversion would buy nothing but"), (4, "at most 1 ")):
        place = tmp_path / f"{chunk}.zarr"
        DatasetCollection(place).add_adatas([small_anndata(200, 9)], rng=0, n_obs_per_chunk=chunk)
        assert words in text_of_rows(describe_rows(place))
    place = tmp_path / "annbatch.zarr"
    DatasetCollection(place).add_adatas([small_anndata(200, 9)], rng=0, n_obs_per_chunk=16, align_rows=False)
    assert "decode at most 1.25 times what they hold: a conversion would buy little but" in text_of_rows(
        describe_rows(place)
    )


def test_raw_is_told(tmp_path):
    """Its kind and shape, that it is read by name, and how it is written; a store without one says nothing of it."""
    made = small_anndata(20, 5)
    made.raw = small_anndata(20, 8, seed=1)
    place = write_anndata(made, tmp_path / "raw.zarr")
    facts = describe_rows(place)
    raw = facts["datasets"][0]["raw"]
    assert (raw["kind"], raw["row_shape"], raw["dtype"]) == ("csr", [8], "float32")
    lines = text_of_rows(facts).splitlines()
    told = [line for line in lines if line.startswith("  raw/X: csr float32[8], with variables of its own")]
    assert len(told) == 1
    assert "    load_adata=lambda path: anndata.read_zarr(path).raw.to_adata()" in lines
    at = lines.index(told[0])
    assert max(len(line) for line in lines[at : at + 3]) <= 80
    assert RowSource(place, matrices=["raw/X"]).fields["raw/X"].shape == (8,)
    assert "raw/X" not in facts["datasets"][0]["matrices"]
    plain = describe_rows(write_anndata(small_anndata(20, 5), tmp_path / "plain.zarr"))
    assert plain["datasets"][0]["raw"] is None
    assert "raw" not in text_of_rows(plain).replace(str(tmp_path), "")
