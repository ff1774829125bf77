"""Where a run lives when nobody says so."""

from pathlib import Path

import pytest

from rankwise.errors import ConfigError
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


@pytest.mark.parametrize("script", ["/x/ipykernel_launcher.py", "/x/colab_kernel_launcher.py", "/usr/bin/ipython"])
def test_a_notebook_has_no_name(monkeypatch, script):
    """All would share one directory: the error asks for a name. The launcher's word counts all the same."""
    monkeypatch.delenv("RANKWISE_RUN_DIR", raising=False)
    with pytest.raises(ConfigError, match=r"needs a name, .*Trainer\(run='runs/NAME'\)"):
        default_run_dir([script, "-f", "kernel.json"])
    monkeypatch.setenv("RANKWISE_RUN_DIR", "here")
    assert default_run_dir([script]) == Path("here")


def test_the_launcher_decides(monkeypatch):
    """--run-dir arrives as RANKWISE_RUN_DIR."""
    monkeypatch.setenv("RANKWISE_RUN_DIR", "/data/run 7")
    assert default_run_dir(["train.py"]) == Path("/data/run 7")
