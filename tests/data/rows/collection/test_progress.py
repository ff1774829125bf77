"""What is shown while a collection is written."""

from rankwise.data.rows import DatasetCollection
from rankwise.testing.small_rows import small_anndata


def test_rows_and_time_left_are_shown(tmp_path, capsys):
    """Both passes are shown to their end; nothing is printed where stderr is no terminal, unless asked."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    collection.add_adatas([small_anndata(40, 5)], progress=True, dataset_size=20)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "reading" in shown.err
    assert "writing" in shown.err
    assert shown.err.count("40/40") >= 2
    DatasetCollection(tmp_path / "d.zarr").add_adatas([small_anndata(40, 5)])
    assert capsys.readouterr() == ("", "")
