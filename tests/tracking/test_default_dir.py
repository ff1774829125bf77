"""Where a run lives when nobody says so."""

from pathlib import Path

import pytest

from rankwise.tracking import default_run_dir


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/home/me/train.py", "--lr", "1"], "train"),
        (["/site/package/__main__.py"], "package"),
        (["-c"], "session"),
        ([""], "session"),
        ([], "session"),
    ],
)
def test_named_after_the_script(monkeypatch, argv, name):
    """runs/<script>; a module by its package; an interactive session by that word."""
    monkeypatch.delenv("RANKWISE_RUN_DIR", raising=False)
    assert default_run_dir(argv) == Path("runs") / name


def test_the_launcher_decides(monkeypatch):
    """--run-dir arrives as RANKWISE_RUN_DIR."""
    monkeypatch.setenv("RANKWISE_RUN_DIR", "/data/run 7")
    assert default_run_dir(["train.py"]) == Path("/data/run 7")
