"""`rankwise run`: its own options, torchrun's, and what is left to the script."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def run(tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1:])\n"
    )

    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}

    def call(*words):
        command = [sys.executable, "-m", "rankwise", "run", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)

    return call


def test_torchruns_spellings(run):
    """A torchrun command line of one machine runs as it is; what has no effect here is said once."""
    words = (
        "--standalone --nnodes=1 --nproc_per_node=2 --max_restarts 1 --rdzv_backend c10d --rdzv-endpoint localhost:0"
    )
    words += " --monitor-interval 1 --start-method spawn --master_addr 127.0.0.1 --node-rank 0 -t 3"
    done = run(*words.split(), "script.py", "--nproc", "9", "-m")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2 ['--nproc', '9', '-m']", "[1] 1 2 ['--nproc', '9', '-m']"]
    ignored = "--rdzv-backend, --rdzv-endpoint, --monitor-interval, --start-method"
    assert done.stderr.splitlines() == [f"rankwise: not needed here, ignored: {ignored}"]


def test_several_machines_need_a_place_to_meet(run):
    """Without one nothing starts, and the error says what is wanted."""
    done = run("--nnodes", "2", "script.py")
    assert done.returncode == 2
    assert "--rdzv HOST:PORT" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--slurm --nproc many", "--nproc must be a number of at least 1"),
        ("--slurm --nproc 2 --gpus-per-node 4", "--nproc 2 and --gpus-per-node 4 differ"),
        ("--partition gpu", "--partition is only valid for Slurm jobs: add --slurm"),
        ("--nodes 2", "--nodes is only valid for Slurm jobs: add --slurm"),
    ],
)
def test_options_for_slurm_that_contradict_are_refused(run, options, why):
    """Before Slurm is asked anything."""
    done = run(*options.split(), "script.py")
    assert done.returncode == 2
    assert f"rankwise: {why}" in done.stderr
    assert "Traceback" not in done.stderr


def test_dry_run_starts_nothing(run, tmp_path):
    """--dry-run prints command, ranks, logs and variables, and touches nothing."""
    done = run("--nproc", "2", "--run-dir", "runs/x", "--max-restarts", "3", "--dry-run", "script.py", "a b")
    assert done.returncode == 0
    assert f"{sys.executable} script.py 'a b'" in done.stdout
    assert "2 on this machine" in done.stdout
    assert "up to 3" in done.stdout
    assert "WORLD_SIZE=2" in done.stdout
    assert f"RANKWISE_RUN_DIR={tmp_path}/runs/x" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_folder_has_a_name(run, tmp_path):
    """An empty variable, as in --run-dir "$RUN", does not write into the current folder."""
    for option in (("--run-dir", ""), ("--run-dir=",), ("--log-dir", "")):
        done = run(*option, "script.py")
        assert done.returncode == 2
        assert 'it names a folder or file, got ""' in " ".join(done.stderr.replace("│", " ").split())
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_help_is_for_the_command_only_before_the_script(run):
    """`rankwise run --help` explains; `rankwise run script.py --help` is the script's."""
    assert "--max-restarts" in run("--help").stdout
    assert run("--nproc", "1", "script.py", "--help").stdout == "0 1 ['--help']\n"


def test_auto_on_a_machine_without_gpu_is_one_and_said(run):
    """--nproc auto on CPU starts one rank and says how to get more."""
    done = run("--env", "X=1", "script.py")
    assert done.returncode == 0
    assert done.stdout == "0 1 []\n"
    assert "no GPU is visible, starting 1 rank" in done.stderr
