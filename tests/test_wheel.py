"""What a user installs: the wheel, in an empty environment, without torch."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import rankwise

ROOT = Path(__file__).parents[1]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)  # installs twice, and other tests run beside it
def test_the_wheel_works_without_torch(tmp_path):
    """Built, installed and called in a fresh environment: --help, --version, python -m, and no torch anywhere."""
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    tree = tmp_path / "tree"  # built in a copy: an old build/ folder would travel in the wheel
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(tree))
    [wheel] = tmp_path.glob("rankwise-*.whl")
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    run(python, *pip, "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = str(home / "bin" / "rankwise")
    assert rankwise.__version__ in run(command, "--version", cwd=tmp_path, env=clean)
    for start in ([command], [python, "-m", "rankwise"]):
        assert "run" in run(*start, "--help", cwd=tmp_path, env=clean)
    code = "import importlib.util as u, rankwise.data.order, rankwise.launch; print([u.find_spec('torch')])"
    assert run(python, "-c", code, cwd=tmp_path, env=clean).strip() == "[None]"
    (tmp_path / "job.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    assert "rank 0 of 2" in run(command, "run", "--nproc", "2", "job.py", cwd=tmp_path, env=clean)
