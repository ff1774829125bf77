"""A real Slurm for the tests of this folder, started once for each worker."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from rankwise.testing.slurm_lab import SlurmLab, why_no_slurm

DEADLINE_S = 240.0  # for machines that many share
ROOT = Path(__file__).parents[2]

# with "hold" the first attempt stands in its fifth step until a file is there, and goes on slowly; with "late" in its
# 45th, after the checkpoint of the first epoch
TRAIN = """
import os
import sys
import time

import numpy as np
import torch

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader

hold = "hold" in sys.argv and not os.path.exists("go")
at = 45 if "late" in sys.argv else 5
done = 0


def step(model, batch):
    global done
    done += 1
    if hold and done == at and os.environ.get("SLURM_NODEID") == "0":
        open("holding", "w").close()
    while hold and done >= at and not os.path.exists("go"):
        time.sleep(0.05)
    if hold and done > at:
        time.sleep(0.05)
    return (model(batch["x"]) ** 2).mean(1)


with rankwise.bind(threads=1, timeout=200) as world:
    print("rank", world.rank, "of", world.world_size, "on", os.uname().nodename, flush=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    source = ArraySource({"x": np.random.default_rng(0).normal(size=(400, 3))})
    loader = SampleLoader(source, order=rankwise.Order(source, batch_size=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = rankwise.Trainer(model, optimizer, step, progress=False)
    result = trainer.fit(loader, epochs=2)
    if world.is_main:
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        np.save(os.path.join(result.run_dir, "weights.npy"), weights.numpy())
        print("steps", result.num_steps, flush=True)
"""


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Slurm with two nodes; where it cannot run the tests are skipped, but not in CI."""
    why = why_no_slurm()
    if why:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    # short paths: Slurm's sockets lie there, and pytest keeps the folder of a failed test
    with SlurmLab(tmp_path_factory.mktemp("lab")) as made:
        yield made


def weights(folder):
    return np.load(folder / "weights.npy")


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

    def write_training(self):
        return self.write("train.py", TRAIN)

    def weights(self, run_dir="run"):
        return weights(self.folder / run_dir)

    def restored_steps(self, run_dir="run"):
        """The step from which each attempt of a run has begun."""
        events = map(json.loads, (self.folder / run_dir / "metrics.jsonl").read_text().splitlines())
        return [event["restored_step"] for event in events if event.get("event") == "attempt"]

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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, run_python):
    """Weights of a run of two ranks on this machine that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "train.py").write_text(TRAIN)
    run_python(folder, "-m", "rankwise", "run", "--nproc", 2, "--run-dir", "run", "train.py")
    return weights(folder / "run")
