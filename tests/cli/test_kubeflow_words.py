"""Options of `rankwise run` out of PET_* variables."""

import os
import subprocess
import sys

from rankwise.cli.kubeflow_words import announced_options


def test_the_variables_of_kubeflows_pods():
    """A TrainJob's and an elastic PyTorchJob's pods: each variable is the option that torchrun takes it for."""
    assert announced_options(
        {
            "PET_NNODES": "2",
            "PET_NODE_RANK": "1",
            "PET_NPROC_PER_NODE": "4",
            "PET_MASTER_ADDR": "a.b",
            "PET_MASTER_PORT": "29500",
        }
    ) == {"nnodes": "2", "node_rank": "1", "nproc": "4", "master_addr": "a.b", "master_port": "29500"}
    elastic = {
        "PET_NNODES": "1:4",
        "PET_RDZV_ENDPOINT": "w-0:23456",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_BACKEND": "c10d",
    }
    assert announced_options(elastic) == {"nnodes": "1:4", "rdzv_endpoint": "w-0:23456", "max_restarts": "3"}
    assert announced_options({"PET_NNODES": " "}) == {}


def test_the_command_line_goes_before(tmp_path):
    """In a pod for two ranks `rankwise run` starts two, with --nproc 1 one."""
    (tmp_path / "script.py").write_text("")
    pod = {**os.environ, "PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_NODE_RANK": "0"}
    for words, ranks in ([], "2"), (["--nproc", "1"], "1"):
        command = [sys.executable, "-m", "rankwise", "run", "--dry-run", *words, "script.py"]
        done = subprocess.run(command, cwd=tmp_path, env=pod, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert f"ranks      {ranks} on this machine" in done.stdout
