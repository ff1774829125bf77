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
# Each page runs in a fork of one process that has loaded the slowest imports of most pages: its lines in are folders of
# a page, its lines out how each page ended. A page that has come to its end leaves as Python does, but without taking
# every module apart, which costs half a second.
PAGE_SERVER = """
import atexit, os, runpy, signal, sys, threading
import anndata, torch
import numba, torch.distributed.fsdp
import rankwise.data.crops, rankwise.data.rows, rankwise.data.samples, rankwise.train
while folder := sys.stdin.readline().rstrip():
    page = os.fork()
    if page == 0:
        signal.alarm(240)  # ends a page that hangs
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.path[0], sys.argv = folder, [f"{folder}/page.py"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(page, 0)[1]), flush=True)
"""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page):
    return str(page.relative_to(ROOT))


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(command, folder):
    env = environment()
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def page_server():
    # Lightning warns wherever Slurm is installed
    warnings = ["-W", "error::UserWarning", "-W", "ignore:The `srun` command is available"]
    command = [sys.executable, *warnings, "-c", PAGE_SERVER]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as server:
        yield server


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "README.md" and BLOCK.search(p.read_text())], ids=name_of
)
def test_python_blocks_run(page, tmp_path, page_server):
    """All Python blocks of a page, one after the other in one process, with warnings as errors."""
    (tmp_path / "page.py").write_text("\n".join(BLOCK.findall(page.read_text())))
    page_server.stdin.write(f"{tmp_path}\n")
    ended = page_server.stdout.readline()
    assert ended == "0\n", f"{ended}{(tmp_path / 'said.txt').read_text()}"


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
