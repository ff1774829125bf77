"""What is shown while a collection is written."""

from rankwise.data.rows import DatasetCollection
from rankwise.testing.small_rows import small_anndata


def test_rows_and_time_left_are_shown(tmp_path, capsys):
    """Both passes are shown to their end; nothing is printed where stderr is no terminal, unless asked."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    collection.add_adatas([small_anndata(40, 5)], progress=True, dataset_size=20)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.split(" rows")[0] for line in shown.err.splitlines()] == ["reading 40/40", "writing 40/40"]
    DatasetCollection(tmp_path / "d.zarr").add_adatas([small_anndata(40, 5)])
    assert capsys.readouterr() == ("", "")


def test_bars_on_a_terminal(tmp_path, capsys, monkeypatch):
    """A terminal shows both passes as bars, to their end."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(40, 5)], dataset_size=20)
    shown = capsys.readouterr().err
    assert "reading" in shown
    assert "writing" in shown
    assert shown.count("40/40") >= 2
