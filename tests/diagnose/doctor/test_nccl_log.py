"""`rankwise doctor --nccl-log`: what NCCL chose is read from its lines, in the forms of several versions.

The lines are written here, in the forms that stand in the threads named in the reader.
"""

import subprocess
import sys

import pytest

from rankwise.diagnose.doctor.nccl_checks import check_logs
from rankwise.diagnose.doctor.nccl_log import find_logs, read_logs
from rankwise.errors import ConfigError


def new(rank, *, host=None, net="IB", via="NET/IB/0/GDRDMA", version="2.21.5+cuda12.4", more=""):
    """Lines of a process under a version from 2.18 on: nodes of two ranks, world of four."""
    host = host or f"n{rank // 2}"
    device, other = rank % 2, (rank + 1) % 4
    way = "P2P/CUMEM/read" if rank // 2 == other // 2 else via
    found = "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.9<0>" if net == "IB" else "No device found."
    ib = f"NET/IB : Using {found}" if net == "IB" else f"NET/IB : {found}"
    comm = f"ncclCommInitRank comm 0x55d rank {rank} nranks 4 cudaDev {device} nvmlDev {device} busId 1000"
    texts = [
        f"Bootstrap : Using eth0:10.0.0.{rank // 2 + 1}<0>",
        f"NCCL version {version}",
        ib,
        *([f"NET/Socket : Using [0]eth0:10.0.0.{rank // 2 + 1}<0>"] if net == "Socket" else []),
        f"Using network {net}",
        f"{comm} - Init START",
        *(["Channel 00/02 :    0   1   2   3", "Channel 01/02 :    0   1   2   3"] if rank == 0 else []),
        "Trees [0] -1/-1/-1->1->0 [1] -1/-1/-1->1->0",
        f"Channel 00/0 : {rank}[{device}] -> {other}[{other % 2}] {'[send] ' * (way == via)}via {way}",
        f"Channel 01/0 : {rank}[{device}] -> {other}[{other % 2}] {'[send] ' * (way == via)}via {way}",
        "Connected all rings",
        "Connected all trees",
        f"{comm} - Init COMPLETE",
    ]
    return [f"{host}:{100 + rank}:{200 + rank} [{device}] NCCL INFO {text}" for text in texts] + (
        [more] if more else []
    )


OLD = """\
Model loaded
[0] ip-10-0-0-1:45:45 [0] NCCL INFO Bootstrap : Using [0]ens3:10.0.0.1<0>
[0] ip-10-0-0-1:45:45 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).
[0] ip-10-0-0-1:45:45 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
[0] ip-10-0-0-1:45:45 [0] NCCL INFO NET/Socket : Using [0]ens3:10.0.0.1<0>
NCCL version 2.4.7+cuda9.2
[1] ip-10-0-0-2:46:46 [0] NCCL INFO Bootstrap : Using [0]ens3:10.0.0.2<0>
[1] ip-10-0-0-2:46:46 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
[0] ip-10-0-0-1:45:50 [0] NCCL INFO Ring 00 : 1 -> 0 [receive] via NET/Socket/0
[0] ip-10-0-0-1:45:50 [0] NCCL INFO Ring 00 : 0 -> 1 [send] via NET/Socket/0
[1] ip-10-0-0-2:46:51 [0] NCCL INFO Ring 00 : 1 -> 0 [send] via NET/Socket/0
[1] ip-10-0-0-2:46:51 [0] NCCL INFO Ring 00 : 0 -> 1 [receive] via NET/Socket/0
[0] ip-10-0-0-1:45:50 [0] NCCL INFO comm 0x7f1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE
[1] ip-10-0-0-2:46:51 [0] NCCL INFO comm 0x7f2 rank 1 nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE
"""


def judge(tmp_path, *files):
    """The checks of some logs, by name, and all of them."""
    for number, lines in enumerate(files):
        (tmp_path / f"nccl.n{number}.{number}.log").write_text("\n".join(lines) + "\n")
    checks = check_logs(read_logs(find_logs([str(tmp_path / "nccl.%h.%p.log")])))
    return {check.name: check for check in checks}


def test_a_healthy_job_passes(tmp_path):
    """A file for each rank, by NCCL_DEBUG_FILE's own pattern: everything is found, nothing is held against it."""
    found = judge(tmp_path, *(new(rank) for rank in range(4)))
    assert {check.status for check in found.values()} == {"pass"}, found
    assert found["version"].evidence == "2.21.5+cuda12.4"
    assert found["ranks"].evidence == "4 of 4 ranks on 2 hosts"
    assert found["interface"].evidence == "eth0 10.0.0.1 on n0; eth0 10.0.0.2 on n1"
    assert found["network"].evidence == "IB mlx5_0:1/IB, mlx5_1:1/RoCE"
    assert found["transports"].evidence == "P2P 4, NET/IB/GDRDMA 4"
    assert found["channels"].evidence == "2"
    assert found["rings and trees"].evidence == "rings and trees connected"


def test_an_old_version_in_one_file(tmp_path):
    """Lines of all ranks between those of the script, the version without a name, "Ring" for a channel."""
    found = judge(tmp_path, OLD.splitlines())
    assert found["version"].evidence == "2.4.7+cuda9.2"
    assert found["ranks"].evidence == "2 of 2 ranks on 2 hosts"
    assert found["transports"].evidence == "NET/Socket 4"
    assert (found["network"].status, found["network"].evidence) == ("warn", "Socket, because NCCL_IB_DISABLE is set")
    assert found["rings and trees"].status == "not run"


WARN = "n1:102:202 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5{}> with error 12"
P2P = "n0:100:200 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 0."
LOOP = "n0:100:200 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>"
DOCKER = "n0:100:200 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>"


@pytest.mark.parametrize(
    ("files", "name", "status", "text"),
    [
        ([new(0), new(1), new(2), new(3, version="2.18.1")], "version", "fail", "2.18.1 on rank 3 (host n1"),
        ([new(0), new(1), new(3)], "ranks", "warn", "nothing of rank 2"),
        ([new(0), new(1), new(2), new(3)[:6]], "ranks", "fail", "never complete: rank 3 (host n1, process 103)"),
        ([new(0), new(1), new(2), new(3)[:8]], "rings and trees", "fail", "rings not connected on rank 3"),
        ([new(r, net="Socket", via="NET/Socket/1") for r in range(4)], "network", "warn", "found no InfiniBand device"),
        ([new(0, net="Socket"), *(new(r) for r in (1, 2, 3))], "network", "fail", "Socket on rank 0 (host n0"),
        ([new(r, via="NET/IB/0") for r in range(4)], "transports", "warn", "InfiniBand without GPUDirect"),
        ([new(0, more=LOOP), new(1), new(2), new(3)], "interface", "fail", "loopback cannot reach another machine"),
        ([new(0, more=DOCKER), new(1), new(2), new(3)], "interface", "warn", "inside one machine"),
        ([new(0), new(2, more="\n".join(WARN.format(i) for i in range(3)))], "warning", "warn", "(and 2 more like it)"),
        ([["nothing of NCCL"]], "NCCL's logs", "not run", "no NCCL line"),
        ([[line.replace("Using network IB", "Using network Socket") for line in new(r)] for r in range(4)], "network",
         "warn", "Socket, although the machine has mlx5_0:1/IB"),
        ([new(0, more="n0:100:200 [0] NCCL INFO NCCL_ALGO set by environment to Ring."), new(2)], "NCCL_ALGO", "warn",
         "not set on n1"),
        ([[line.replace("via P2P/CUMEM/read", "via SHM/direct/direct") for line in new(r, more=P2P)] for r in range(4)],
         "transports", "warn", "through its memory (no P2P)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, files, name, status, text):
    """Versions, ranks, networks, transports and warnings, with who said so and a mend."""
    check = judge(tmp_path, *files)[name]
    assert (check.status, text in check.evidence, bool(check.mend)) == (status, True, True), check


def test_the_command_reads_logs_only(tmp_path):
    """Several files after one option, as a shell writes them; nothing else is looked at; no file is an error."""
    paths = []
    for rank in range(4):
        paths.append(tmp_path / f"{rank}.log")
        paths[-1].write_text("\n".join(new(rank, version=f"2.2{rank}.1")))
    command = [sys.executable, "-m", "rankwise", "doctor", "--nccl-log", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "2.23.1 on rank 3" in done.stdout
    assert "shared memory" not in done.stdout
    with pytest.raises(ConfigError, match="found none for"):
        find_logs([str(tmp_path / "none.%h")])
