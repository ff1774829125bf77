"""What a user installs, in an environment of its own and without torch: as pre-commit does it for its hook."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise

ROOT = Path(__file__).parents[1]
BAD = "import torch\n\nnet = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n"
CLEAN = "import torch\n\nnet = torch.nn.Linear(1, 1)\n"

pytestmark = pytest.mark.timeout(900)  # downloads and installs, and other tests run beside it


def run(*command, cwd, env):
    """Run a command to its end; return how it ended and what it said."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stdout + done.stderr


def repository(folder, env):
    """Commit what lies in a folder; return the commit."""
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        code, said = run("git", *words, cwd=folder, env=env)
        assert code == 0, said
    return run("git", "rev-parse", "HEAD", cwd=folder, env=env)[1].strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A repository whose hook pre-commit has built and installed, with the variables of its user.

    Built from a copy: an old build/ folder would travel in the wheel. Few of the modules are ever imported, so pip
    compiles none. Settings of git are our own only.
    """
    home = tmp_path_factory.mktemp("installation")
    who = {f"GIT_{role}_{part}": "tester@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PRE_COMMIT_HOME": str(home / "hooks")}
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT", "PYTHON"))
    }
    env = inherited | who | alone | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_NO_COMPILE": "1"}
    ours, theirs = home / "rankwise", home / "theirs"
    shutil.copytree(ROOT / "src", ours / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, ours)
    theirs.mkdir()
    (theirs / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {ours}\n    rev: {repository(ours, env)}\n    hooks:\n      - id: rankwise-lint\n"
    )
    repository(theirs, env)
    code, said = run(sys.executable, "-m", "pre_commit", "install", "--install-hooks", cwd=theirs, env=env)
    assert code == 0, said
    return theirs, env


def test_the_hook_refuses_a_commit(installed):
    """A commit with a bad script is refused with file, line and rule; the mended one goes through."""
    theirs, env = installed
    (theirs / "bad.py").write_text(BAD)
    (theirs / "clean.py").write_text(CLEAN)
    (theirs / "notes.txt").write_text(BAD)
    run("git", "add", ".", cwd=theirs, env=env)
    code, said = run("git", "commit", "--message", "train", cwd=theirs, env=env)
    assert code == 1, said
    assert "- exit code: 1" in said
    assert "RW210" in said
    assert "bad.py:3:7" in said
    assert "1 warning in 2 files" in said, "clean.py is read too, notes.txt is not"

    (theirs / "bad.py").write_text(CLEAN)
    run("git", "add", ".", cwd=theirs, env=env)
    code, said = run("git", "commit", "--message", "train", cwd=theirs, env=env)
    assert code == 0, said
    assert "Passed" in said


def test_the_wheel_works_without_torch(installed, tmp_path):
    """Its command where it was installed: --help, --version, python -m, a job of two ranks, and no torch anywhere."""
    (python,) = Path(installed[1]["PRE_COMMIT_HOME"]).glob("repo*/py_env-*/bin/python")
    said = []
    (tmp_path / "job.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    code = (
        "import importlib.util as u, rankwise.data.order as o, rankwise.launch; print(u.find_spec('torch'), o.__file__)"
    )
    for words in (
        (python.with_name("rankwise"), "--version"),
        (python.with_name("rankwise"), "--help"),
        (python, "-m", "rankwise", "--help"),
        (python, "-c", code),
        (python.with_name("rankwise"), "run", "--nproc", "2", "job.py"),
    ):
        ended, output = run(*map(str, words), cwd=tmp_path, env=installed[1])
        assert ended == 0, output
        said.append(output)
    assert rankwise.__version__ in said[0]
    assert "run" in said[1]
    assert "run" in said[2]
    assert said[3].startswith(f"None {python.parents[1]}"), "no torch, and not the modules of the checkout"
    assert "rank 0 of 2" in said[4]
