"""What a rank is started with: its cores, on this machine and on others as a kernel describes them; its variables."""

import json
import os
import subprocess
import sys

import pytest

from rankwise.errors import ConfigError
from rankwise.launch.hardware import format_numbers, num_usable_cores, parse_cpu_list, read_topology
from rankwise.launch.job import Job
from rankwise.launch.local.environment import assign_cores
from rankwise.launch.target import Target


def make_machine(root, *, nodes, gpus=()):
    """Write a /sys of `nodes` (lists of (thread, its sibling)) and of GPUs on these nodes."""
    for number, pairs in enumerate(nodes):
        threads = sorted(thread for pair in pairs for thread in pair)
        folder = root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(",".join(map(str, threads)) + "\n")
        for pair in pairs:
            for thread in pair:
                core = root / f"devices/system/cpu/cpu{thread}/topology"
                core.mkdir(parents=True)
                (core / "thread_siblings_list").write_text(",".join(map(str, sorted(pair))) + "\n")
    for index, node in enumerate(gpus):
        address = f"0000:{index + 1:02X}:00.0"
        (root / "nvidia" / address).mkdir(parents=True)
        (root / "nvidia" / address / "information").write_text(f"Model: \t X\nGPU UUID: \t GPU-{index}abc\n")
        device = root / "bus/pci/devices" / address.lower()
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")


# two nodes of four cores of two threads: threads 0-3 and 8-11 on the first, as kernels number them
TWO = [[(0, 8), (1, 9), (2, 10), (3, 11)], [(4, 12), (5, 13), (6, 14), (7, 15)]]
FIRST, SECOND = {0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}


@pytest.fixture
def machine(tmp_path):
    make_machine(tmp_path, nodes=TWO, gpus=(1, 1, 0, 0))

    def read(usable=range(16), visible="0,1,2,3"):
        return read_topology(usable=usable, visible=visible, sys_root=tmp_path, nvidia=tmp_path / "nvidia")

    return read


def all_cores(binding, num_ranks, topology, usable_cores=None, **options):
    limit = len(topology.threads) if usable_cores is None else usable_cores
    return assign_cores(binding, num_ranks, topology=topology, usable_cores=limit, **options)


def test_the_kernels_words_are_read(machine):
    """Nodes, threads of one core side by side, and the nodes of visible GPUs in CUDA's order."""
    topology = machine()
    assert topology.nodes == {0: (0, 8, 1, 9, 2, 10, 3, 11), 1: (4, 12, 5, 13, 6, 14, 7, 15)}
    assert topology.siblings[9] == (1, 9)
    assert topology.gpus == (1, 1, 0, 0)
    assert machine(visible="2,0,9,1").gpus == (0, 1)
    assert machine(visible="GPU-3,MIG-x,GPU-0a").gpus == (0, None, 1)
    assert parse_cpu_list("0-2,7,10-11\n") == {0, 1, 2, 7, 10, 11}
    assert format_numbers({0, 1, 2, 7, 10, 11}) == "0-2,7,10-11"


def test_a_rank_sits_beside_its_gpu(machine):
    """With the nodes of all GPUs known, `auto` is `numa`: every rank on the node of its GPU, with its part of it."""
    found = all_cores("auto", 4, machine())
    assert [set(cores.cpus) for cores in found] == [SECOND, SECOND, FIRST, FIRST]
    assert {cores.num_threads for cores in found} == {4}
    shared = all_cores("numa", 4, machine(), ranks_per_gpu=2)
    assert [set(cores.cpus) for cores in shared] == [SECOND] * 4
    assert {cores.num_threads for cores in shared} == {2}


def test_auto_leaves_ranks_without_a_gpu_alone(machine):
    """Two launches on CPU that know nothing of each other must not sit on the same cores."""
    assert {cores.cpus for cores in all_cores("auto", 4, machine(visible=""))} == {None}
    assert {cores.cpus for cores in all_cores("auto", 5, machine())} == {None}, "one rank has no GPU"


@pytest.mark.parametrize(
    ("num_ranks", "wanted"),
    [
        (1, [FIRST | SECOND]),
        (2, [FIRST, SECOND]),
        (3, [FIRST, SECOND, SECOND]),
        (4, [FIRST, FIRST, SECOND, SECOND]),
    ],
)
def test_ranks_without_gpus_take_turns_at_the_nodes(machine, num_ranks, wanted):
    """In proportion to the nodes; a lone rank is not locked into one of them."""
    assert [set(cores.cpus) for cores in all_cores("numa", num_ranks, machine(visible=""))] == wanted


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_cores_are_shared_out_whole(machine, num_ranks):
    """Under `core` no two ranks have a thread in common, no core is split, and none is left over."""
    topology = machine(visible="")
    found = [cores.cpus for cores in all_cores("core", num_ranks, topology)]
    assert sorted(thread for cpus in found for thread in cpus) == list(range(16))
    assert all(set(topology.siblings[thread]) <= cpus for cpus in found for thread in cpus)


def test_more_ranks_than_cores_share_them(machine):
    """Threads of one core are split before any is shared; then ranks sit on one thread in turn."""
    assert sorted(len(cores.cpus) for cores in all_cores("core", 16, machine(visible=""))) == [1] * 16
    found = all_cores("core", 20, machine(visible=""))
    assert {len(cores.cpus) for cores in found} == {1}
    assert {cores.num_threads for cores in found} == {1}


def test_a_cpu_set_and_a_quota_are_respected(machine):
    """Only what the process may use is given out; a quota limits the threads, not the places."""
    found = all_cores("core", 2, machine(usable=[1, 9, 2, 5], visible=""), usable_cores=2)
    assert [set(cores.cpus) for cores in found] == [{1, 9, 2}, {5}]
    assert {cores.num_threads for cores in found} == {1}
    assert {cores.num_threads for cores in all_cores("none", 2, machine(), usable_cores=6)} == {3}


def test_a_machine_that_does_not_say_is_one_node(tmp_path):
    """Without /sys, or where it knows less than the mask, all cores are one node and no GPU has a place."""
    topology = read_topology(usable=[0, 1, 5], visible="0", sys_root=tmp_path, nvidia=tmp_path / "none")
    assert topology.nodes == {0: (0, 1, 5)}
    assert topology.gpus == ()
    make_machine(tmp_path, nodes=[[(0, 1)]], gpus=(-1,))
    topology = read_topology(usable=[0, 1, 5], visible="0", sys_root=tmp_path, nvidia=tmp_path / "nvidia")
    assert topology.nodes == {0: (0, 1, 5)}
    assert topology.gpus == (None,)


def test_nonsense_is_refused():
    """Another word is refused with those that are known."""
    with pytest.raises(ConfigError, match="binding must be auto, numa, core or none"):
        Job(target=Target(kind="module", name="m"), binding="socket")


SAY = """
    import json, os, pathlib
    said = {"cpus": sorted(os.sched_getaffinity(0)), "omp": os.environ.get("OMP_NUM_THREADS")}
    from rankwise.data.store.execution.threads import reading_threads
    said["readers"] = reading_threads()
    pathlib.Path("said-" + os.environ["RANK"]).write_text(json.dumps(said))
"""


def said(launcher, num_ranks):
    return [json.loads((launcher.folder / f"said-{rank}").read_text()) for rank in range(num_ranks)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_real_ranks_are_bound(launcher):
    """On this machine: `core` gives two ranks different cores, their threads fit, and the launcher keeps its own."""
    launcher.env.pop("OMP_NUM_THREADS", None)
    script, mine = launcher.script(SAY), os.sched_getaffinity(0)
    done = launcher.run("--nproc", 2, "--binding", "core", script)
    assert done.returncode == 0, done.stderr
    first, second = said(launcher, 2)
    assert not set(first["cpus"]) & set(second["cpus"])
    assert set(first["cpus"]) | set(second["cpus"]) == mine
    for rank in (first, second):
        assert 1 <= int(rank["omp"]) <= len(rank["cpus"])
        assert rank["readers"] == int(rank["omp"])


def test_a_mask_of_the_caller_holds(launcher):
    """A launch inside a CPU set of one core: all ranks are on it, one thread each."""
    launcher.env.pop("OMP_NUM_THREADS", None)
    core = min(os.sched_getaffinity(0))
    command = launcher.command("--nproc", 2, "--binding", "numa", launcher.script(SAY))
    narrow = f"import os, sys; os.sched_setaffinity(0, [{core}]); os.execv(sys.argv[1], sys.argv[1:])"
    process = launcher.start(command=[sys.executable, "-c", narrow, *command])
    assert process.wait(240) == 0
    assert [rank["cpus"] for rank in said(launcher, 2)] == [[core], [core]]
    assert [rank["omp"] for rank in said(launcher, 2)] == ["1", "1"]


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
    """Without options, what the user has set stays; FRESH and vitals of an outer launch do not."""
    done = launcher.run("--nproc", 1, launcher.script(OWN), env={"RANKWISE_FRESH": "1"})
    assert done.stdout.strip() == "[None, '1', None] None"
    outer = {"RANKWISE_FRESH": "1", "RANKWISE_VITALS": "/outer"}
    done = launcher.run("--nproc", 1, launcher.script(OWN), env=outer)
    assert done.stdout.strip() == "[None, None, None] None"


OWN = """
    import os
    assert os.environ["RANKWISE_VITALS"] != "/outer"
    print([os.environ.get("RANKWISE_" + name) for name in ("RUN_DIR", "FRESH", "RESUME")], os.environ.get("COLOUR"))
"""
