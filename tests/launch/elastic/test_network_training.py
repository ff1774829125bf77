"""A model that trains over the network, and goes on without a node that dies."""

import json
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "train_over_hosts.py"


def test_a_model_trains_on_without_a_dead_node(nodes):
    """Two hosts with gloo between them; one is killed: the other ends with the parameters of an undisturbed run."""
    import torch

    alone, together = nodes.folder / "alone", nodes.folder / "together"
    alone.mkdir()
    together.mkdir()
    env = {**nodes.env, "RANKWISE_RUN_DIR": str(alone / "run")}
    undisturbed = subprocess.Popen([sys.executable, SCRIPT, alone], env=env, stdout=subprocess.DEVNULL)
    options = ("--nproc", "1", "--nnodes", "1:2", "--rdzv", "anna", "--run-dir", nodes.folder / "run")
    for host in ("anna", "bert"):
        nodes.start(host, *options, SCRIPT, script=together, env={"STEP_S": "0.2"})

    def steps():
        path = together / "steps"
        text = path.read_text() if path.exists() else ""
        return [tuple(map(int, line.split())) for line in text[: text.rfind("\n") + 1].splitlines()]

    nodes.until(lambda: any(done >= 12 and size == 2 for done, size, _ in steps()), nodes.all_consoles)
    nodes.kill_node("bert")
    assert nodes.ends("anna") == 0, nodes.all_consoles()
    found = steps()
    assert found[-1][:2] == (60, 1)
    resumed = next(done for (done, size, _), (_, before, _) in zip(found[1:], found, strict=False) if size < before)
    last, attempt = max((done, attempt) for done, size, attempt in found if size == 2)
    assert 10 < resumed <= last + 1  # from a checkpoint of the two
    assert "gloo on eth0" in nodes.console("anna")
    (loss,) = json.loads((nodes.folder / "run" / "failure.json").read_text())["failures"]
    assert re.match(r"node bert \(10\.77\.0\.\d\) was lost", loss["cause"])
    assert (loss["attempt"], loss["rank"]) == (attempt, 1)
    assert undisturbed.wait(240) == 0
    ours, theirs = (torch.load(folder / "end.pt") for folder in (together, alone))
    assert (ours - theirs).abs().max() < 1e-9
