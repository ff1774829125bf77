"""A real Slurm for the tests of this folder, started once for each worker."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rankwise.testing.slurm_lab import SlurmLab, why_no_slurm

DEADLINE_S = 240.0  # for machines that many share
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Slurm with two nodes; where it cannot run the tests are skipped, but not in CI."""
    why = why_no_slurm()
    if why:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    # short paths: Slurm's sockets lie there, and pytest keeps the folder of a failed test
    with SlurmLab(tmp_path_factory.mktemp("lab")) as made:
        yield made


class Cluster:
    """Runs commands as a user of the lab's login node, in a folder of the test's own."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWISE_", "TORCHELASTIC_", "SLURM_"))}
        path = f"{Path(sys.executable).parent}:{clean['PATH']}"
        self.env = {
            **clean,
            **lab.env,
            "PATH": path,
            "XDG_STATE_HOME": str(folder / "state"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT / "tests" / "main_job"),
        }

    def write(self, name, text):
        path = self.folder / name
        path.write_text(textwrap.dedent(text).lstrip())
        return str(path)

    def start(self, *command, **popen):
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | popen
        return subprocess.Popen([*map(str, command)], cwd=self.folder, env=self.env, text=True, **popen)

    def run(self, *command, check=True):
        process = self.start(*command)
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if check:
            assert process.returncode == 0, out + err
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def rankwise(self, *words, check=True):
        return self.run(sys.executable, "-P", "-m", "rankwise", *words, check=check)

    def sbatch(self, *options, script):
        """Submit a batch script and return its number."""
        path = self.write("batch.sh", script)
        return self.run(
            "sbatch", "--parsable", "--open-mode=append", "--output=batch.log", *options, path
        ).stdout.strip()

    def until(self, condition, seconds=DEADLINE_S):
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.05)
        return value

    def text(self, name):
        path = self.folder / name
        return path.read_text() if path.exists() else ""


@pytest.fixture
def cluster(lab, tmp_path):
    """The lab, with nothing of another test in its queue."""
    yield Cluster(lab, tmp_path)
    lab.command("scancel", "--user=root")
    lab.wait_idle()
