"""Documentation is executed: an example that does not run does not exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page):
    return str(page.relative_to(ROOT))


def run(command, folder, timeout=240):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "README.md" and BLOCK.search(p.read_text())], ids=name_of
)
def test_python_blocks_run(page, tmp_path):
    """All Python blocks of a page, one after the other in one process, with warnings as errors."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text())))
    # Lightning warns wherever Slurm is installed
    warnings = ["-W", "error::UserWarning", "-W", "ignore:The `srun` command is available"]
    done = run([sys.executable, *warnings, str(script)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_example_runs_on_two_ranks(tmp_path):
    """The README's complete example, saved as train.py, under its own commands: on two ranks, then finished on one."""
    (tmp_path / "train.py").write_text(BLOCK.findall((ROOT / "README.md").read_text())[0])
    command = [sys.executable, "-m", "rankwise", "run", "--nproc", "2", "train.py"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs" / "train" / "finished.json").exists()
    again = run([sys.executable, "train.py"], tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "is finished (5 epochs, 80 steps, 2 ranks): its model was restored and nothing was trained" in again.stdout
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]


def test_the_first_example_of_samples_runs_on_two_ranks(tmp_path):
    """As it stands, under `rankwise run`: the ranks share the samples, each of them once."""
    (tmp_path / "train.py").write_text(BLOCK.findall((ROOT / "docs/samples.md").read_text())[0])
    done = run([sys.executable, "-m", "rankwise", "run", "--nproc", "2", "train.py"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    """Every relative link names a file that is there."""
    targets = [t.split("#")[0] for t in LINK.findall(page.read_text()) if "://" not in t and not t.startswith("#")]
    assert [t for t in targets if not (page.parent / t).exists()] == []
