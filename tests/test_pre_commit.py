"""The hook that a repository names in its .pre-commit-config.yaml, installed and run by pre-commit itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BAD = "import torch\n\nnet = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n"
CLEAN = "import torch\n\nnet = torch.nn.Linear(1, 1)\n"


@pytest.fixture
def run(tmp_path):
    """Run a command and say how it ended, with no settings of git but our own."""
    who = {f"GIT_{role}_{part}": "tester@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PRE_COMMIT_HOME": str(tmp_path / "hooks")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))}
    env = inherited | who | alone | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}

    def run(*command, cwd):
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)
        return done.returncode, done.stdout + done.stderr

    return run


def repository(run, folder):
    """Commit what lies in a folder; return the commit."""
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        code, said = run("git", *words, cwd=folder)
        assert code == 0, said
    return run("git", "rev-parse", "HEAD", cwd=folder)[1].strip()


def test_the_hook_refuses_a_commit(run, tmp_path):
    """A commit with a bad script is refused with file, line and rule; the mended one goes through."""
    ours, theirs = tmp_path / "rankwise", tmp_path / "theirs"
    shutil.copytree(ROOT / "src", ours / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, ours)
    theirs.mkdir()
    (theirs / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {ours}\n    rev: {repository(run, ours)}\n    hooks:\n      - id: rankwise-lint\n"
    )
    repository(run, theirs)
    code, said = run(sys.executable, "-m", "pre_commit", "install", cwd=theirs)
    assert code == 0, said

    (theirs / "bad.py").write_text(BAD)
    (theirs / "clean.py").write_text(CLEAN)
    (theirs / "notes.txt").write_text(BAD)
    run("git", "add", ".", cwd=theirs)
    code, said = run("git", "commit", "--message", "train", cwd=theirs)
    assert code == 1, said
    assert "- exit code: 1" in said
    assert "RW210" in said
    assert "bad.py:3:7" in said
    assert "1 warning in 2 files" in said, "clean.py is read too, notes.txt is not"

    (theirs / "bad.py").write_text(CLEAN)
    run("git", "add", ".", cwd=theirs)
    code, said = run("git", "commit", "--message", "train", cwd=theirs)
    assert code == 0, said
    assert "Passed" in said
