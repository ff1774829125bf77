"""`rankwise env` tells where a run would run, whatever is broken there, and keeps secrets."""

import json
import os
import subprocess
import sys

import pytest

from rankwise.diagnose import hardware
from rankwise.diagnose.environment import _place, _variables, collect_environment, describe_environment
from rankwise.launch.hardware import format_numbers

SECRETS = {
    "WANDB_API_KEY": "wandb-0123",
    "RANKWISE_SECRET": "secret-0123",
    "SLURM_JWT": "jwt-0123",
    "MLFLOW_TRACKING_PASSWORD": "password-0123",
    "MLFLOW_TRACKING_TOKEN": "token-0123",
    "https_proxy": "http://me:proxy-0123@proxy:3128",
}
SECTIONS = ["versions", "system", "cpu", "gpu", "memory", "disk", "network", "scheduler", "variables", "limits"]


def test_a_broken_torch_is_reported_and_not_imported(tmp_path):
    """With a torch that cannot be imported the command works, says which it is, and shows no secret."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.99: cannot open shared object file')")
    (tmp_path / "torch" / "version.py").write_text("cuda: str | None = '99.1'\nhip = None\n")
    env = {**os.environ, **SECRETS, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "rankwise", "env"]
    done = subprocess.run(
        [*command, "--json"], env=env, capture_output=True, text=True, check=True, timeout=240, cwd=tmp_path
    )
    facts = json.loads(done.stdout)
    assert list(facts) == SECTIONS
    assert facts["versions"]["torch"].endswith("(cuda 99.1)")
    assert facts["cpu"]["affinity"] == format_numbers(os.sched_getaffinity(0))
    assert facts["network"]["interfaces"]["lo"][0] == "127.0.0.1"
    assert facts["network"]["taken"]["on one machine"] == "lo"
    for name, secret in SECRETS.items():
        assert "***" in facts["variables"][name]
        assert secret not in done.stdout
    assert "0123" not in done.stdout


def test_nothing_heavy_is_loaded():
    """Neither torch nor any package that is reported is imported: the report is there in a moment."""
    program = (
        "import sys; from rankwise.diagnose.environment import *; describe_environment(collect_environment()); "
        "assert not {'torch', 'zarr', 'numba', 'jax'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_the_text_holds_every_section():
    """What JSON has is in the text, and a line is one fact."""
    facts = collect_environment()
    text = describe_environment(facts)
    assert [line for line in text.splitlines() if not line.startswith(" ")] == SECTIONS
    assert f"  open files: {facts['limits']['open files']}" in text.splitlines()
    assert f"  python: {facts['versions']['python']}" in text.splitlines()


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, "rank 0 of 1: no launcher started this process"),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "rank 3 of 8, local rank 1, by the variables of torchrun; the ranks meet at h:1",
        ),
        ({"RANK": "3"}, "cannot be determined: RANK=3 is set but WORLD_SIZE, LOCAL_RANK"),
    ],
)
def test_the_place_is_told(variables, place):
    """The report says which rank this would be, or why that cannot be known."""
    assert _place(variables).startswith(place)


def test_only_what_matters_to_a_run_is_shown():
    """Variables of others are left out; of paths the user's home."""
    home = os.path.expanduser("~")  # noqa: PTH111
    shown = _variables({"EDITOR": "vi", "NCCL_DEBUG": "INFO", "PYTHONPATH": f"{home}/a:/b", "SECRET_SAUCE": "x"})
    assert shown == {"NCCL_DEBUG": "INFO", "PYTHONPATH": "~/a:/b"}


def test_what_nvidia_smi_says(tmp_path, monkeypatch):
    """Its lines become devices; where it fails its first words are the report."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA X, GPU-1, 580.1, 81559, 10, 9.0, 00000000:FF:1F.0'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (device,) = hardware.gpus()["devices"]
    assert (device["name"], device["memory_total"], device["compute_cap"]) == ("NVIDIA X", "81559", "9.0")
    assert device["numa_node"] == "unknown"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert hardware.gpus()["note"] == "nvidia-smi failed with exit code 9: NVIDIA-SMI has failed"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert hardware.gpus()["note"] == "no nvidia-smi on PATH"
