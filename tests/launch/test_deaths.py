"""The matrix of deaths: however and whenever a rank dies, the launch says it, exits with its code and leaves nothing.

Every cell starts real ranks. Each of them has made a block of shared memory and carries a mark in its environment, by
which is seen from outside that neither a process nor a file is left.
"""

import os
import re
import secrets
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

MIB = 1 << 20
MOST_S = 100.0  # from a death to the end of all, on a machine that many share

# kind -> what rank 1 does, the exit code of the launch, what is said of it
DEEDS = {
    "exception": ("raise ValueError('the deed')", 1, r"raised ValueError: the deed\n"),
    "exit": ("sys.exit(3)", 3, r"exited with 3\n"),
    "_exit": ("os._exit(4)", 4, r"exited with 4, without a Python exception"),
    "segfault": ("ctypes.string_at(0)", 139, r"was ended by SIGSEGV\n(.|\n)* in deed\n"),
    "kill": ("os.kill(os.getpid(), 9)", 137, r"was ended by SIGKILL"),
    "memory": (
        "limit_memory(); bytearray(1 << 34)",
        1,
        r"raised MemoryError\n",
    ),
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)", 1, r"hangs .*its process is stopped \(SIGSTOP\)"),
    "import": ("import no_such_module", 1, r"raised ModuleNotFoundError: No module named 'no_such_module'\n"),
}
HEAD = """
import atexit, ctypes, os, pathlib, resource, signal, sys, threading, time
from multiprocessing import shared_memory
rank = os.environ["RANK"]
block = shared_memory.SharedMemory(name=f"{os.environ['CELL']}-{rank}", create=True, size=4096)
pathlib.Path("vitals").write_text(os.environ["RANKWISE_VITALS"])
pathlib.Path(f"made-{rank}").touch()
def limit_memory():  # to what it has, and 64 MiB
    limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def deed():
    while not pathlib.Path("made-0").exists():  # killed earlier, rank 0 leaves a block that nobody was told of
        time.sleep(0.01)
    pathlib.Path("died").write_text(repr(time.time()))
    DEED
"""
MOMENTS = {
    # no torch is loaded: what is before the group is before torch as well
    "before": HEAD
    + """
deed() if rank == "1" else time.sleep(1000)
""",
    "in": HEAD
    + """
import rankwise
with rankwise.bind(device="cpu", timeout=1000) as world:
    world.all_reduce(1.0)
    if rank == "1":
        deed()
    world.all_reduce(1.0)
""",
    # rank 0 waits in the collectives of DDP's backward pass, rank 1 dies in its own; forked as below
    "backward": "import torch\n"
    + HEAD
    + """
import rankwise
with rankwise.bind(device="cpu", timeout=1000) as world:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    if rank == "1":
        model.module.weight.register_hook(lambda gradient: deed())
    model(torch.ones(1, 2)).sum().backward()
""",
    # torch first: the ranks are forked from a server
    "forked": "import os\nimport torch\n"
    + HEAD
    + """
deed() if rank == "1" else time.sleep(1000)
""",
    # a thread of rank 1 acts while its main thread is blocked inside a collective; forked as above
    "blocked": "import torch\n"
    + HEAD
    + """
import rankwise, traceback
main = threading.main_thread().ident
def act():
    while "handshake.py" not in str(traceback.extract_stack(sys._current_frames()[main])):
        time.sleep(0.01)
    time.sleep(0.2)  # from Python into gloo: whether it has arrived there cannot be seen from here
    deed()
with rankwise.bind(device="cpu", timeout=1000) as world:
    world.all_reduce(1.0)
    if rank == "0":
        time.sleep(1000)
    threading.Thread(target=act, daemon=True).start()
    world.all_reduce(1.0)
""",
}
QUICK = [
    *(("before", kind) for kind in DEEDS),
    ("in", "exception"),
    ("backward", "exception"),
    ("blocked", "segfault"),
    ("forked", "segfault"),
]
SLOW = [
    *(("in", kind) for kind in DEEDS if kind != "exception"),
    *(("backward", kind) for kind in ("exit", "_exit", "segfault", "kill", "memory", "import")),
    *(("blocked", kind) for kind in ("_exit", "kill", "stop")),
    *(("forked", kind) for kind in DEEDS if kind != "segfault"),
]


@pytest.fixture
def cell(launcher, tmp_path, marked):
    """Mark everything that a cell starts; afterwards nothing with the mark may be left."""
    mark = f"rankwise-test-{secrets.token_hex(6)}"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    launcher.env |= {"CELL": mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    return mark, marked


def check_nothing_is_left(launcher, cell, wait_until):
    """No process, no shared memory, no folder of vitals, no temporary file."""
    mark, marked = cell
    wait_until(lambda: not marked(mark))
    assert [path.name for path in Path("/dev/shm").glob(f"{mark}*")] == []
    vitals = launcher.folder / "vitals"
    assert not vitals.exists() or not Path(vitals.read_text()).exists()
    # torch's own cache of what it compiles is made to stay
    left = [path.name for path in Path(launcher.env["TMPDIR"]).iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []


def check_death(launcher, cell, wait_until, moment, kind):
    deed, exitcode, said = DEEDS[kind]
    # a hang counts from the ranks' start, which takes long on a busy machine, above all with torch
    options = ["--hang-timeout", 10 if moment in {"before", "forked"} else 40] if kind == "stop" else []
    script = launcher.script(MOMENTS[moment].replace("DEED", deed))
    done = launcher.run("--nproc", 2, *options, "--shutdown-timeout", 2, script)
    assert done.returncode == exitcode, done.stderr
    if kind != "stop":  # 5 seconds on an idle machine, see bench/deaths.py
        assert time.time() - float(launcher.text("died")) < MOST_S
    assert re.search(r"^rankwise: rank 1 of 2 on \S+ " + said, done.stderr, re.MULTILINE), done.stderr
    # told once, whatever became of the other rank, which is not blamed
    assert done.stderr.count("rankwise: rank ") == 1
    assert re.search(r"^rank 0: (stopped by rankwise|collateral)", done.stderr, re.MULTILINE), done.stderr
    if kind in {"exception", "memory", "import"}:
        assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr
        assert "in deed\n" in done.stderr
    check_nothing_is_left(launcher, cell, wait_until)


@pytest.mark.parametrize(("moment", "kind"), QUICK)
def test_a_rank_dies(launcher, cell, wait_until, moment, kind):
    """Message, exit code, and nothing left behind."""
    check_death(launcher, cell, wait_until, moment, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "kind"), SLOW)
def test_a_rank_dies_in_the_other_cells(launcher, cell, wait_until, moment, kind):
    """The rest of the matrix."""
    check_death(launcher, cell, wait_until, moment, kind)


FINISH = """
import ctypes, os, sys
from rankwise import Platform, wrapper

def finish():
    assert total == [], "the ranks have ended"
    DEED

total = []

@wrapper(Platform(device="cpu", num_ranks=1, ipc_groups=None, upon_finish=finish, verbose=False))
def task(**_):
    open("vitals", "w").write(os.environ["RANKWISE_VITALS"])
    return 1

if __name__ == "__main__":
    task()
"""
AFTERWARDS = [
    ("exception", 1),
    ("kill", -9),
    *(
        pytest.param(kind, code, marks=pytest.mark.slow)
        for kind, code in (("exit", 3), ("_exit", 4), ("segfault", -11), ("memory", 1), ("import", 1))
    ),
]


@pytest.mark.parametrize(("kind", "code"), AFTERWARDS)
def test_a_death_in_upon_finish(launcher, cell, wait_until, kind, code):
    """`upon_finish` runs in the caller when the ranks have ended: it dies as any program does, and leaves nothing."""
    script = launcher.script(
        FINISH.replace("DEED", DEEDS[kind][0].replace("limit_memory(); bytearray(1 << 34)", "raise MemoryError"))
    )
    process = launcher.start(command=[sys.executable, script])
    _, said = process.communicate(timeout=240)
    assert process.returncode == code, said
    if code == 1:
        assert said.count("Traceback (most recent call last)") == 1
        assert "in finish" in said
    check_nothing_is_left(launcher, cell, wait_until)


CALLS = """
import os, sys, threading
import rankwise

class Model:
    def __init__(self):
        self.lock = threading.Lock()

def task(model):
    return 1

def give_back():
    open("vitals", "w").write(os.environ["RANKWISE_VITALS"])
    return threading.Lock()

if __name__ == "__main__":
    CALL
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("rankwise.run(task, Model(), num_ranks=2)", r"ConfigError: .*lock"),
        ("rankwise.run(give_back, num_ranks=1)", r"rank 0.* lock"),
    ],
)
def test_what_cannot_be_sent(launcher, cell, wait_until, call, said):
    """An argument that cannot be pickled is refused before a rank starts, a value that cannot is the rank's failure."""
    process = launcher.start(command=[sys.executable, launcher.script(CALLS.replace("CALL", call))])
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert re.search(said, err), err
    assert (launcher.folder / "vitals").exists() == ("give_back" in call)
    check_nothing_is_left(launcher, cell, wait_until)


def memory_group():
    """Return a folder for a memory control group of our own, and the name of its limit; None where there is none."""
    first = Path("/sys/fs/cgroup/memory")
    if os.access(first, os.W_OK) and (first / "memory.limit_in_bytes").exists():
        return first, "memory.limit_in_bytes"
    root = Path("/sys/fs/cgroup")
    try:
        delegated = "memory" in (root / "cgroup.subtree_control").read_text().split() and os.access(root, os.W_OK)
    except OSError:
        delegated = False
    return (root, "memory.max") if delegated else None


@pytest.mark.skipif(memory_group() is None, reason="no memory control group can be made here (needs root)")
def test_the_kernel_kills_for_memory(launcher, cell, wait_until):
    """A rank beyond the limit of a real control group: SIGKILL, with what tells that it was the memory."""
    root, name = memory_group()
    group = root / cell[0]
    group.mkdir()
    try:
        (group / name).write_text(str(256 * MIB))  # by far the most of it the rank's: the kernel kills the largest
        deed = "[os.urandom(1 << 20) for _ in range(1 << 10)]"
        text = MOMENTS["before"].replace("DEED", deed).replace("time.sleep(1000)", "None")
        join = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        done = subprocess.run(
            [sys.executable, "-c", join + ENTER, *launcher.command("--nproc", 2, launcher.script(text))],
            cwd=launcher.folder, env=launcher.env, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 137, done.stderr
        assert re.search(
            r"rank 1 of 2 on \S+ was ended by SIGKILL: out of memory; (the kernel's log|control group)", done.stderr
        )
        check_nothing_is_left(launcher, cell, wait_until)
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().split())
        group.rmdir()


ENTER = textwrap.dedent("""
    import sys
    os.execv(sys.argv[1], sys.argv[1:])
""")
