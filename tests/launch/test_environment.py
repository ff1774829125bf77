"""The variables of a rank are torchrun's."""

import json
import subprocess
import sys

DUMP = """
    import json, os, sys
    path = os.path.join(os.environ["WHERE"], "env-" + os.environ["RANK"])
    json.dump(dict(os.environ), open(path + ".tmp", "w"))
    os.rename(path + ".tmp", path)
"""
# what differs by nature (ports, ids), or on purpose: OMP_NUM_THREADS (theirs is 1), their store, their error file
DIFFERENT = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "OMP_NUM_THREADS",
    "WHERE",
}


def dumped(folder, names):
    return [json.loads((folder / name).read_text()) for name in names]


def test_same_variables_as_torchrun(launcher):
    """Every variable that torchrun gives a rank is there, with the same value unless it differs by nature."""
    script = launcher.script(DUMP)
    ours, theirs = launcher.folder / "ours", launcher.folder / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    done = launcher.run("--nproc", 2, "--max-restarts", 2, script, env={"WHERE": str(ours)})
    assert done.returncode == 0, done.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "--max-restarts", "2", script]
    env = {**launcher.env, "WHERE": str(theirs)}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=240)
    names = ["env-0", "env-1"]
    for mine, other in zip(dumped(ours, names), dumped(theirs, names), strict=True):
        added = {name: value for name, value in other.items() if launcher.env.get(name) != value}
        missing = set(added) - set(mine) - {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
        assert {name for name in missing if not name.startswith("TORCHELASTIC_")} == set()
        for name in set(added) & set(mine) - DIFFERENT:
            assert mine[name] == other[name], name
        assert int(mine["MASTER_PORT"]) > 0


def test_threads_are_shared_out(launcher):
    """OMP_NUM_THREADS is cores / ranks, stays what the user set, and is left alone for one rank."""
    script = launcher.script("import os; print(os.environ.get('OMP_NUM_THREADS'), flush=True)")
    launcher.env.pop("OMP_NUM_THREADS", None)
    from rankwise.launch.hardware import num_usable_cores

    assert launcher.run("--nproc", 2, script).stdout.strip() == str(max(1, num_usable_cores() // 2))
    assert launcher.run("--nproc", 1, script).stdout.strip() == "None"
    assert launcher.run("--nproc", 2, script, env={"OMP_NUM_THREADS": "7"}).stdout.strip() == "7"


def test_own_variables_of_options(launcher):
    """RANKWISE_RUN_DIR (absolute), _FRESH and _RESUME are what the options say, whatever they were before."""
    options = ["--run-dir", "runs/x", "--fresh", "--resume", "auto", "--env", "COLOUR=a=b"]
    outer = {"RANKWISE_RUN_DIR": "outer", "RANKWISE_RESUME": "must"}
    done = launcher.run("--nproc", 1, *options, launcher.script(OWN), env=outer)
    assert done.stdout.strip() == f"['{launcher.folder}/runs/x', '1', 'auto'] a=b"


def test_own_variables_without_options(launcher):
    """Without options, only what the user has set stays: no FRESH and no vitals of an outer launch."""
    outer = {"RANKWISE_FRESH": "1", "RANKWISE_VITALS": "/outer"}
    done = launcher.run("--nproc", 1, launcher.script(OWN), env=outer)
    assert done.stdout.strip() == "[None, None, None] None"


OWN = """
    import os
    assert os.environ["RANKWISE_VITALS"] != "/outer"
    print([os.environ.get("RANKWISE_" + name) for name in ("RUN_DIR", "FRESH", "RESUME")], os.environ.get("COLOUR"))
"""
