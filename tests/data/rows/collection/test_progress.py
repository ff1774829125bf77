"""What is shown while a collection is written."""

import json
import shutil
import threading

import pytest

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection import progress
from rankwise.data.rows.collection.progress import watched_progress
from rankwise.testing.stores.small_rows import small_anndata


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


@pytest.mark.parametrize("ends", [True, False])
def test_the_end_of_others_is_shown_where_they_came_to_it(tmp_path, monkeypatch, ends):
    """Who started the ranks shows all rows as written once their folder is gone, and not before; whatever its name."""
    work, seen, shown = tmp_path / "c [x].zarr.writing", [], threading.Event()
    work.mkdir()
    (work / "progress").write_text(json.dumps({"num_rows": 40, "spilled": 7}))
    monkeypatch.setattr(progress, "_LOOK_S", 0.01)
    monkeypatch.setattr(progress.Progress, "show", lambda _, *what: (seen.append(what), shown.set()))
    with watched_progress(tmp_path / "c [x].zarr", enabled=True):
        assert shown.wait(30)
        if ends:
            shutil.rmtree(work)
    assert seen[0] == ("spilled", 7)
    assert (("written", 40) in seen) == ends
