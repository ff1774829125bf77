"""A real Open MPI: `mpirun -n 4 python train.py` finds its place, and ends together."""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankwise.testing.patience import until

MPIRUN = shutil.which("mpirun")

pytestmark = pytest.mark.skipif(
    MPIRUN is None and not os.environ.get("CI"), reason="no mpirun here: install Open MPI (Debian's openmpi-bin)"
)

# Ragged steps of unequal shares, so that a mean of means, or a rank in the wrong place, would show in the weights.
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import torch
import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.train import ExactStep

torch.manual_seed(0)
x = torch.randn(37, 3, dtype=torch.float64)
source = ArraySource({"x": x.numpy(), "y": x.pow(2).sum(1).numpy()})
with rankwise.bind(device="cpu", timeout=200) as world:
    loader = SampleLoader(source, order=rankwise.Order(source, batch_size=10, seed=3))
    model = rankwise.prepare(torch.nn.Linear(3, 1).double(), world)
    losses = lambda model, batch: (model(batch["x"]).squeeze(1) - batch["y"]).pow(2)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.05), losses, world=world)
    seen = []
    for batches in loader:
        step(batches)
        seen += [parameter.flatten().tolist() for parameter in model.parameters()]
    place = (world.rank, world.world_size, world.local_rank, world.local_world_size, world.node_rank, world.num_nodes)
    Path(f"rank-{world.rank}.json").write_text(json.dumps({"pid": os.getpid(), "place": place, "weights": seen}))
    world.barrier()
    if sys.argv[1:] == ["dies"] and world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1:] == ["dies"]:
        signal.pause()  # hears of nothing by itself
"""


def mpirun(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    command = [MPIRUN, "--oversubscribe", "-n", "4", sys.executable, "train.py", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_four_ranks_train_as_one_does_and_die_together(tmp_path, monkeypatch):
    """Each process has its own place; after each step its weights are one process's; a killed rank ends all."""
    assert MPIRUN, "CI installs openmpi-bin before the tests"
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    runpy.run_path("train.py")
    one = json.loads(Path("rank-0.json").read_text())
    assert one["place"] == [0, 1, 0, 1, 0, 1]

    done = mpirun(tmp_path, "dies")
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    found = [json.loads(Path(f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert [rank["place"] for rank in found] == [[rank, 4, rank, 4, 0, 1] for rank in range(4)]
    for rank in found:
        assert np.concatenate(rank["weights"]) == pytest.approx(np.concatenate(one["weights"]), rel=1e-12)
        assert until(lambda pid=rank["pid"]: not alive(pid))
