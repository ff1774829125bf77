"""`rankwise doctor`: what is fine passes, what is planted is named with its mend, what was not looked at is not run."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zarr

import rankwise
from rankwise._process.place import find_place
from rankwise.diagnose.doctor import Check, examine, exit_code, group, job, render
from rankwise.diagnose.doctor.collectives import SIZES
from rankwise.diagnose.doctor.group import check_group
from rankwise.diagnose.doctor.host import (
    check_data,
    check_devices,
    check_host,
    check_locked_memory,
    check_open_files,
    check_shared_memory,
    is_network,
    kind_of,
)
from rankwise.diagnose.doctor.job import check_facts, check_other_hosts, check_rank_devices, check_shared_folder
from rankwise.diagnose.doctor.variables import check_variables
from rankwise.diagnose.variables import KNOWN, NEVER_EXISTED, RENAMED, check_variable_name
from rankwise.errors import ConfigError
from rankwise.testing.held_ports import hold_port
from rankwise.testing.patience import until

LO = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.5"], "ib0": []}
RANK = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "status", "evidence", "mend"),
    [
        ({}, "pass", "none set", ""),
        (RANK, "pass", "RANK=0, WORLD_SIZE=2", ""),
        (RANK | {"RANK": "2"}, "fail", "RANK=2 is not below WORLD_SIZE=2", "launcher"),
        (RANK | {"MASTER_PORT": "80000"}, "fail", "MASTER_PORT=80000 is not a port", "launcher"),
        (RANK | {"WORLD_SIZE": "two"}, "fail", "WORLD_SIZE='two' is not a number", "launcher"),
        ({"RANK": "0"}, "fail", "RANK set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT", "launcher"),
    ],
)
def test_the_place_is_judged(variables, status, evidence, mend):
    """Presence, range and contradictions of a launcher's variables."""
    check = check_variables(variables, LO)[0]
    assert (check.status, evidence in check.evidence, mend in check.mend) == (status, True, True), check


@pytest.mark.parametrize(
    ("variables", "status", "text"),
    [
        ({"NCCL_TIMEOUT": "1800"}, "warn", "init_process_group(timeout="),
        ({"NCCL_BLOCKING_WAIT": "1"}, "warn", "use TORCH_NCCL_BLOCKING_WAIT"),
        ({"NCCL_SOCKET_IFNAM": "eth0"}, "warn", "did you mean NCCL_SOCKET_IFNAME?"),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "fail", "is not an interface"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "pass", "exactly"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "pass", "every interface with this prefix"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "fail", "is not an interface"),
        ({"NCCL_SOCKET_IFNAME": "ib"}, "fail", "ib0 has no address"),
        ({"NCCL_DEBUG_FILE": "/tmp/nccl.%r"}, "warn", "%h"),
        ({"NCCL_P2P_DISABLE": "1"}, "warn", "host memory"),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "warn", "after debugging"),
    ],
)
def test_variables_of_the_libraries(variables, status, text):
    """Names that nobody reads, old names, interfaces that are not there, what was left in from debugging."""
    found = [c for c in check_variables(variables, LO) if c.status == status and text in c.evidence + c.mend]
    assert found, check_variables(variables, LO)


def test_the_tables_agree():
    """No name is both known and not; what belongs to others is left alone."""
    assert not KNOWN & NEVER_EXISTED.keys()
    assert all(check_variable_name(name)[0] == "renamed" for name in RENAMED)
    assert check_variable_name("NCCLISH") is None
    assert check_variable_name("NCCL_DEBUG") is None


def test_this_machine_is_judged():
    """Every check of the host has evidence, and what is not fine has a mend."""
    checks = check_host()
    assert {check.name for check in checks} >= {"shared memory (/dev/shm)", "open files", "own name"}
    assert all(check.evidence and (check.status == "pass" or check.mend) for check in checks)


@pytest.mark.parametrize(
    ("check", "status", "evidence", "mend"),
    [
        (check_shared_memory(None), "warn", "missing", "mount a tmpfs"),
        (check_shared_memory(64 << 20), "warn", "0.06 GiB free", "docker run --shm-size 8g"),
        (check_shared_memory(8 << 30), "pass", "8.0 GiB free", ""),
        (check_open_files(1024, 524288), "warn", "limit 1024", "ulimit -n 65536 before the launch"),
        (check_open_files(1024, 8192), "warn", "limit 1024", "ulimit -n 8192 before the launch"),
        (check_open_files(1024, -1), "warn", "limit 1024", "ulimit -n 65536 before the launch"),
        (check_open_files(64, 64), "warn", "limit 64", "the hard limit is 64 as well: raise it as root"),
        (check_open_files(4096, 4096), "pass", "limit 4096", ""),
        (check_open_files(-1, -1), "pass", "limit none", ""),
        (check_locked_memory(65536, infiniband=True), "fail", "limit 65536 bytes", "ulimit -l unlimited"),
        (check_locked_memory(65536, infiniband=False), "pass", "no InfiniBand device", ""),
        (check_locked_memory(-1, infiniband=True), "pass", "unlimited", ""),
    ],
)
def test_what_this_machine_gives_is_judged(check, status, evidence, mend):
    """A bad value of shared memory or of a limit is told with what changes it: a shell cannot pass its hard limit."""
    assert check.status == status
    assert evidence in check.evidence
    assert check.mend.startswith(mend)
    assert bool(check.mend) == bool(mend)


@pytest.mark.parametrize(("words", "mend"), [("-S -n 64", "ulimit -n "), ("-n 64", "the hard limit is 64 as well")])
def test_a_low_limit_of_the_shell_is_told(words, mend):
    """`rankwise doctor` as it is called in that shell: the limit is found, and the command itself gets by with it."""
    command = shlex.join([sys.executable, "-m", "rankwise", "doctor", "--only", "host", "--json"])
    done = subprocess.run(["bash", "-c", f"ulimit {words}; exec {command}"], capture_output=True, text=True, check=True)
    [check] = [found for found in json.loads(done.stdout) if found["name"] == "open files"]
    assert (check["status"], check["evidence"][:9]) == ("warn", "limit 64:")
    assert check["mend"].startswith(mend)


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/my\\040files rw - lustre 10.0.0.1@o2ib:/fs rw
"""


def test_file_systems_are_told(tmp_path):
    """The longest mount point above a path decides, with blanks as the kernel writes them."""
    assert kind_of(tmp_path, MOUNTS) == "ext4"
    assert kind_of(Path("/home/me"), MOUNTS) == "nfs4"
    assert kind_of(Path("/home/my files/run"), MOUNTS) == "lustre"
    assert is_network("lustre")
    assert not is_network("ext4")
    assert kind_of(tmp_path)


SMI = """#!/bin/sh
case "$1" in
*gpu=*) echo "0, H, GPU-a, 570.1, 80000, 60000, 9.0, 00000000:01:00.0"
        echo "1, H, GPU-{second}, 570.1, 80000, {used}, 9.0, 00000000:02:00.0" ;;
*apps*) echo "GPU-a, 77, python, 59000" ;;
esac
"""


@pytest.mark.parametrize(
    ("second", "used", "wanted"),
    [
        ("b", 3, {"GPU 0": "used by process 77 (python, 59000 MiB)"}),
        ("b", 900, {"GPU 0": "process 77", "GPU 1": "no process is visible here"}),
        ("a", 3, {"GPU 0": "process 77", "GPU 1": "process 77", "GPUs differ": "one UUID twice"}),
    ],
)
def test_strangers_and_doubles_on_gpus(tmp_path, monkeypatch, second, used, wanted):
    """What nvidia-smi says of processes, memory and UUIDs, by one that says what a test wants."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI.format(second=second, used=used))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = {check.name: check.evidence for check in check_devices() if check.status in {"warn", "fail"}}
    assert found.keys() == wanted.keys()
    assert all(text in found[name] for name, text in wanted.items()), found


def test_the_data_are_read(tmp_path, monkeypatch):
    """The rate of a real array, crops of the size of its chunks; what is no array says how to name the extent."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text('print("a word of the site: {}")\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    array = zarr.create_array(tmp_path / "a.zarr", shape=(8, 32, 32), chunks=(4, 16, 16), dtype="uint16")
    array[:] = 7
    check = check_data(f"{tmp_path / 'a.zarr'} --rounds 2")
    assert check.status == "pass", check
    (row,) = check.data
    assert row["crop"] == "4x16x16"
    assert row["mb_s"] == pytest.approx(row["crops_per_s"] * 4 * 16 * 16 * 2 / 1e6)
    assert check_data(str(tmp_path)).status == "pass"  # a folder of arrays
    assert "No closing quotation" in check_data("'a b").evidence
    assert check_data("").evidence.startswith("'' is not a local Zarr array")
    assert check_data("").mend == "give a STORE: rankwise doctor --data STORE"
    missing = check_data(str(tmp_path / "none"))
    assert (missing.status, missing.evidence) == ("fail", f"there is nothing at {tmp_path / 'none'}")
    (tmp_path / "file").touch()
    missing = check_data(str(tmp_path / "file"))
    assert (missing.status, "--crop" in missing.mend) == ("fail", True)


def test_sections_are_chosen():
    """Only what is asked for is looked at; a section that does not exist is an error with those that do."""
    checks, is_main = examine(only=["variables", "host"], skip=["host"])
    assert {check.section for check in checks} == {"variables"}
    assert is_main
    with pytest.raises(ConfigError, match="no section 'hosts'; the sections are code, variables"):
        examine(skip=["hosts"])
    with pytest.raises(ConfigError, match="nothing is left"):
        examine(only=["host"], skip=["host"])


def fact(**more):
    return {
        "host": "a", "boot": "1", "versions": {"torch": "2.13.0"}, "variables": {}, "local_rank": 0, "device": "cpu",
        **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("second", "status", "text"),
    [
        (fact(), None, ""),
        (fact(versions={"torch": "2.12.0"}), "fail", "torch: 2.13.0 on rank 0, 2.12.0 on rank 1"),
        (
            fact(versions={"torch": "2.13.0", "files of rankwise": "0123456789ab"}),
            "fail",
            "files of rankwise: not set on rank 0, 0123456789ab on rank 1",
        ),
        (fact(variables={"NCCL_DEBUG": "INFO"}), "fail", "NCCL_DEBUG: not set on rank 0, INFO on rank 1"),
    ],
)
def test_ranks_are_compared(second, status, text):
    """Versions and variables that differ are told with their ranks."""
    found = [check for check in check_facts([fact(), second]) if check.status in {"fail", "warn"}]
    assert [check.status for check in found] == ([status] if status else [])
    assert all(text in check.evidence for check in found)


def test_two_ranks_on_one_gpu():
    """The same device of one machine twice is an error, of two machines it is not."""
    first = fact(device="cuda:0")
    twice = check_rank_devices([first, fact(device="cuda:0")])
    assert (twice.status, twice.evidence) == ("fail", "cuda:0 by ranks 0, 1")
    assert check_rank_devices([first, fact(device="cuda:0", boot="2")]).status == "pass"


def test_a_healthy_group_passes_and_a_sick_one_is_named(tmp_path, monkeypatch):
    """Real gloo ranks: they meet and compute right; where they stop for want of an interface is told.

    A file of the current folder with a standard name does not break them.
    """
    (tmp_path / "statistics.py").write_text("raise SystemError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    checks = check_group(2, 200.0, dict(os.environ))
    assert [check.status for check in checks] == ["pass"] * 3, checks
    assert [row["bytes"] for row in checks[-1].data] == list(SIZES)
    assert all(
        row["bus_gb_s"] == pytest.approx(row["algorithm_gb_s"]) for row in checks[-1].data
    )  # 2(W-1)/W of 2 ranks
    table = render(checks[-1:]).splitlines()
    assert "16 MiB" in table[-2]
    assert "\u2588" in table[-2]
    (check,) = check_group(1, 200.0, {**os.environ, "GLOO_SOCKET_IFNAME": "nowhere0"})
    assert check.status == "fail"
    assert "did not get past meeting the other ranks" in check.evidence
    assert "GLOO_SOCKET_IFNAME" in check.mend


CHANGED = """
import sys
print("a word of the site: {}")
if sys.orig_argv[-5:-2] == ["rankwise.diagnose.doctor.probe", "1", "2"]:
    import torch.distributed as dist
    right = dist.all_gather
    def all_gather(parts, own):
        right(parts, own)
        parts[0][2] += 1
    dist.all_gather = all_gather
"""


def test_the_rank_that_gets_wrong_data_is_named(tmp_path):
    """Two real ranks; on rank 1 one number of an all_gather arrives changed. Rank 0 is not accused.

    What a sitecustomize prints on both of them is no report.
    """
    (tmp_path / "sitecustomize.py").write_text(CHANGED)
    (check,) = check_group(2, 200.0, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (check.name, check.status) == ("collectives", "fail")
    told = "all_gather got [0.0, 1.0, 3.0, 3.0] from rank 0, expected [0.0, 1.0, 2.0, 3.0]"
    assert check.evidence == f"rank 1 on {socket.gethostname()}: {told}"
    assert check.mend.startswith("the transport changes data: exclude that machine")


def test_a_group_that_does_not_come_is_given_up():
    """The deadline holds: who imports for longer is told so."""
    (check,) = check_group(2, 0.05, dict(os.environ))
    assert check.status == "fail"
    assert "did not get past importing torch" in check.evidence


def under_torchrun(tmp_path, env):
    """One rank of torchrun's two has another value of a variable, and another state of rankwise's files."""
    changed = tmp_path / "changed" / "rankwise"
    shutil.copytree(Path(rankwise.__file__).parent, changed)  # with what is compiled
    (changed / "_version.py").write_text((changed / "_version.py").read_text() + "# not as it was\n")
    words = 'if [ "$RANK" = 1 ]; then export NCCL_DEBUG=INFO PYTHONPATH="$1"; fi; exec "$0" -m rankwise doctor --json'
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    command += ["sh", "-c", words, sys.executable, str(tmp_path / "changed")]
    return [subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)]


def under_srun(tmp_path, env):
    """Two processes with the variables that srun sets for the tasks of a step."""
    port = hold_port()
    common = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    common |= {
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NODELIST": "localhost",
    }
    common |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_RESV_PORTS": f"{port}-{port}"}
    command = [sys.executable, "-m", "rankwise", "doctor", "--json"]
    return [
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
            env=env | common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip


# of srun, tests/slurm/test_doctor.py has a real one
@pytest.mark.parametrize(("start", "code"), [(under_torchrun, 1), pytest.param(under_srun, 0, marks=pytest.mark.slow)])
def test_under_a_launcher_all_ranks_are_compared(tmp_path, start, code):
    """One report for the job, from the main rank, with what differs; the exit code is the report's."""
    ours = ("RANKWISE_", "SLURM_", "NCCL_", "MASTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    started = start(tmp_path, env | {"NCCL_TIMEOUT": "60", "OMP_NUM_THREADS": "1"})
    main, *others = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [code] + [0] * len(others)
    assert others == [""] * len(others)
    checks = [Check(**found) for found in json.loads(main)]
    named = {check.name: check for check in checks}
    assert named["all ranks meet"].evidence == "2 ranks"
    differing = r"files of rankwise: \w{12} on rank 0, \w{12} on rank 1"
    assert bool(re.fullmatch(differing, named["same versions"].evidence)) == bool(code)
    assert named["same versions"].status == ("fail" if code else "pass")
    assert named["collectives"].status == "pass"
    assert named["NCCL_TIMEOUT"].status == "warn"
    assert named["one working directory"].status == "pass"
    assert named["read rate of the data"].status == "not run"
    assert exit_code(checks) == code
    assert "1 warn" in render(checks)
    same = named["same variables"]
    assert ("NCCL_DEBUG: not set on rank 0, INFO on rank 1" in same.evidence) == (same.status == "fail") == bool(code)


def test_a_job_in_a_folder_that_takes_no_file_is_examined(monkeypatch):
    """A read-only file system raises another error than a folder of somebody else; nobody looks for the file then."""
    monkeypatch.chdir("/proc")
    with job._marker_file(find_place({})) as file:
        assert file == ""


def test_ranks_without_a_common_folder_are_named():
    """Also on one machine, where containers have file systems of their own; and what only rank 1 has found is told."""
    trouble = {"section": "variables", "name": "GLOO_SOCKET_IFNAME", "status": "fail", "evidence": "x", "mend": "y"}
    cards = [{"host": host, "boot": host, "file": "/runs/.x", "checks": []} for host in ("a", "a", "b")]
    cards[1]["checks"], cards[2]["checks"] = [trouble], [trouble]
    check = check_shared_folder(cards, {0: True, 1: False, 2: False})
    assert (check.status, check.evidence) == ("warn", "rank 1-2 on a, b cannot see what rank 0 writes in /runs")
    assert check_shared_folder(cards, dict.fromkeys(range(3), True)).status == "pass"
    assert check_shared_folder([cards[0] | {"file": ""}], {0: True}).status == "not run"
    assert [one.name for one in check_other_hosts(cards)] == ["GLOO_SOCKET_IFNAME on rank 1", "GLOO_SOCKET_IFNAME on b"]


def test_a_process_that_a_probe_has_left_behind_holds_nobody_up(tmp_path, monkeypatch):
    """It has the probe's pipes, from which a thread reads: ending the probe waits for neither."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/left\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(group, "_JOIN_S", 0.01, raising=False)
    probe = group._Probe(0, 1, 0, 1.0, os.environ)
    assert until((tmp_path / "left").exists)
    ending = threading.Thread(target=probe.end, daemon=True)
    ending.start()
    ending.join(30)
    has_ended = not ending.is_alive()
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    for thread in (ending, *probe._threads):
        thread.join(30)
    for stream in (probe.process.stdout, probe.process.stderr):
        stream.close()
    assert has_ended
