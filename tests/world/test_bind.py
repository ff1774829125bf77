"""bind in real processes, started with nothing but environment variables."""

import json
import subprocess
import sys
import textwrap

import pytest

import rankwise
from rankwise.errors import ConfigError, WorldError
from rankwise.metrics import reduce
from rankwise.testing.held_ports import hold_port
from rankwise.world import World, group


def torchrun(num_ranks, port=None):
    port = port or hold_port()
    common = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def slurm(num_ranks):
    common = {
        "SLURM_JOB_ID": str(hold_port()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(num_ranks),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_TASKS_PER_NODE": str(num_ranks),
    }
    return [common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(num_ranks)]


PEACE = """
    import json, random, numpy, os, torch, rankwise
    import torch.distributed as dist
    answers = {}
    for turn in range(2):
        with rankwise.bind(timeout=120, seed=5, device="cpu") as world:
            answers["place"] = [world.rank, world.local_rank, world.local_world_size, world.node_rank, world.num_nodes]
            answers["threads"] = [world.threads, torch.get_num_threads(), len(os.sched_getaffinity(0))]
            answers["sum"] = world.all_reduce({"rank": world.rank, "x": torch.ones(3)}, "max")["rank"]
            answers["draws"] = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]
            answers["timeout"] = world.channel.timeout.total_seconds()
            answers["backend"] = world.backend
            try:
                with rankwise.bind():
                    pass
            except RuntimeError as error:
                answers["second"] = str(error)
        assert not dist.is_initialized()
        os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]
    print(json.dumps(answers))
"""


@pytest.mark.parametrize(("family", "fresh"), [(torchrun, True), (slurm, False)])
def test_two_ranks_find_each_other(ranks_of, family, fresh):
    """From the launcher's variables alone: place, threads, seeds, group; twice in one process; nothing on stderr."""
    second = {"SECOND_PORT": str(hold_port())}
    found = ranks_of(PEACE, [variables | second for variables in family(2)], fresh=fresh).end()
    answers = []
    for out, err, code in found:
        assert (err, code) == ("", 0)
        answers.append(json.loads(out))
    for rank, answer in enumerate(answers):
        assert answer["place"] == [rank, rank, 2, 0, 1]
        threads, set_threads, cores = answer["threads"]
        assert 1 <= threads == set_threads <= max(1, cores // 2)
        assert answer["sum"] == 1
        assert answer["timeout"] == 120
        assert answer["backend"] == "gloo"
        assert "this process is already bound" in answer["second"]
    assert answers[0]["draws"] == answers[1]["draws"]


CRASH = """
    import sys, time, rankwise
    with rankwise.bind(timeout=300, device="cpu") as world:
        world.barrier()
        if world.rank == 1:
            raise KeyError("the lost key")
        began = time.monotonic()
        try:
            world.all_reduce(1)
        finally:
            print(round(time.monotonic() - began))
"""


def test_an_exception_on_one_rank_ends_the_others_within_seconds(ranks_of):
    """Rank 1 leaves with its own error; rank 0 does not wait for the timeout, and says what it lost and where."""
    (out, lost, lost_code), (_, own, own_code) = ranks_of(CRASH, torchrun(2)).end()
    assert own_code == 1
    assert own.rstrip().endswith("KeyError: 'the lost key'")
    assert "terminate" not in own + lost
    assert lost_code == 1
    assert int(out) < 60
    last = lost.rstrip().splitlines()[-1]
    assert "rankwise.errors.WorldError: rank 0 lost the other ranks in all_reduce(sum) at" in last
    assert "script.py:9 (call 2 of this group)" in last


LATE = """
    import os, pathlib, sys, time, rankwise
    import torch.distributed  # takes seconds, on a busy machine more of them on one rank than on the other
    folder = pathlib.Path(__file__).parent
    flag, here = folder / "gave-up", [folder / f"here-{rank}" for rank in range(2)]
    here[int(os.environ["RANK"])].touch()
    while not all(path.exists() for path in here):
        time.sleep(0.01)
    with rankwise.bind(timeout=10, device="cpu") as world:
        world.barrier()
        if world.rank == 0:
            for _ in range(2):
                try:
                    world.all_reduce(1)
                except RuntimeError as error:
                    print(error)
            flag.touch()
        else:
            deadline = time.monotonic() + 150
            while not flag.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
"""


def test_a_rank_that_is_late_is_not_waited_for_beyond_the_timeout(ranks_of):
    """After the timeout the call raises with rank, call and line; further calls refuse at once; the exit is clean."""
    (out, err, code), (_, other_err, other_code) = ranks_of(LATE, torchrun(2)).end()
    first, second = out.splitlines()
    assert "rank 0 lost the other ranks in all_reduce(sum) at" in first
    assert "more than 10 s late" in first
    assert "the group cannot be used:" in second
    assert (code, other_code, err, other_err) == (0, 0, "", "")


APART = """
    import os, rankwise
    for turn, port in enumerate(os.environ["PORTS"].split()):
        os.environ["MASTER_PORT"] = port
        device = "cuda:99" if os.environ["RANK"] == "1" else "cpu"
        options = [{"device": device}, {"timeout": 2.0, "device": "cpu"}][turn]
        if turn == 1 and os.environ["RANK"] == "1":
            break
        try:
            with rankwise.bind(**options):
                print("bound")
        except RuntimeError as error:
            print(error)
"""


def test_ranks_that_cannot_start_tell_the_others(ranks_of):
    """A rank without its device stops both at once, with its reason; a rank that does not come is named in time."""
    ports = {"PORTS": f"{hold_port()} {hold_port()}"}
    # which waits less than the default timeout of 600 s
    (main, _, _), (other, _, _) = ranks_of(APART, [variables | ports for variables in torchrun(2)]).end()
    assert "device='cuda:99'" in main.splitlines()[0]
    assert "rank 1 (host " in main.splitlines()[0]
    assert other.startswith("device='cuda:99'")
    assert "1 of 2 ranks did not arrive in time: 1." in main


@pytest.mark.usefixtures("no_launcher")
def test_one_rank_needs_nothing():
    """Under plain python there is no group, the seeds are set, and the block may be entered again."""
    import torch

    draws = []
    for _ in range(2):
        with rankwise.bind(seed=3, device="cpu", threads=2) as world:
            assert (world.world_size, world.threads, world.backend) == (1, 2, "none")
            assert not torch.distributed.is_initialized()
            draws.append(torch.rand(1).item())
    assert draws[0] == draws[1]


@pytest.mark.usefixtures("no_launcher")
def test_a_group_of_one_on_request(monkeypatch):
    """A launcher's wrapper hands a group to its task, for one rank too; an exception leaves no group behind.

    Freeing a group waits for gloo's threads with the interpreter's lock, which they may need to end a collective: they
    get it first.
    """
    import torch.distributed as dist

    rests = []
    monkeypatch.setattr(group, "let_gloo_finish", lambda: rests.append(dist.is_initialized()))
    with rankwise.bind(device="cpu", always_group=True) as world:
        assert dist.get_world_size() == 1
        assert world.all_reduce([1, 2.0]) == [1, 2.0]
        assert World.current() is world
    assert rests == [True]
    with pytest.raises(KeyError), rankwise.bind(device="cpu", always_group=True):
        raise KeyError
    assert not dist.is_initialized()
    assert World.current() is not world


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seed": -1}, ConfigError, "seed must be an integer from 0"),
        ({"timeout": 0}, ConfigError, "timeout must be positive"),
        ({"threads": 0}, ConfigError, "threads must be at least 1"),
        ({"device": "tpu"}, ConfigError, 'device must be "auto"'),
        ({"device": "cuda:99"}, WorldError, "cuda:99"),
    ],
)
@pytest.mark.usefixtures("no_launcher")
def test_arguments_are_checked(options, error, message):
    """Every wrong argument says what is possible, before anything is set up."""
    with pytest.raises(error, match=message), rankwise.bind(**options):
        pass


@pytest.mark.usefixtures("no_launcher")
def test_an_allocation_without_a_step_is_said_once(monkeypatch, caplog):
    """Inside a batch script plain python is one rank, and one warning says how to get more."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    for _ in range(2):
        with rankwise.bind(device="cpu") as world:
            assert world.world_size == 1
    assert len([record for record in caplog.records if "Slurm allocation of 4 tasks" in record.message]) == 1


RESTART = """
    import os, rankwise, signal
    with rankwise.bind(timeout=120, device="cpu") as world:
        world.barrier()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()
        if world.is_main:
            print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_launcher")
def test_torchrun_restarts_reliably(tmp_path):
    """A rank is killed under torchrun, whose store is reused: the first restart recovers, 6 times in 6."""
    (tmp_path / "script.py").write_text(textwrap.dedent(RESTART))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    for _ in range(6):
        done = subprocess.run(
            [*command, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["attempt", "1"]


LISTENING = """
    import contextlib, json, os, pathlib, torch, rankwise
    from torch import nn

    def listening():
        own, found = set(), []
        for link in pathlib.Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # that of this very listing, or of a thread that closes it
                own.add(os.readlink(link))
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                    found.append(fields[1].partition(":")[0])
        return found

    before = os.environ.get("GLOO_SOCKET_IFNAME")
    with rankwise.bind(timeout=200, device="cpu") as world:
        part = world.subgroup([0, 1])
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        part.all_reduce(torch.ones(5000))
        print(json.dumps(listening()))
    assert os.environ.get("GLOO_SOCKET_IFNAME") == before
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's tables of sockets")
def test_a_job_of_one_machine_listens_on_loopback_alone(ranks_of):
    """Store, gloo, DDP and subgroups: no rank has a socket that another machine could reach."""
    found = ranks_of(LISTENING, torchrun(2)).end()
    loopback = {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1 and ::1, as the kernel writes them
    for out, err, code in found:
        assert (err, code) == ("", 0)
        assert json.loads(out)
        assert set(json.loads(out)) <= loopback
    assert any("0100007F" in json.loads(out) for out, _, _ in found)


STRANGER = """
    import datetime, os, torch.distributed as dist
    from rankwise.world.rendezvous.protocol import HELLOS
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False,
                          timeout=datetime.timedelta(seconds=200))
    number = store.add(HELLOS, 1)
    store.set(f"rankwise/hello/{number}", "0123456789abcdef")
    store.wait(["rankwise/answer/0123456789abcdef"])
    print(store.get("rankwise/answer/0123456789abcdef").decode())
"""

HOST = """
    import rankwise
    with rankwise.bind(timeout=230, device="cpu") as world:
        print(world.all_gather_object(f"rank {world.rank}"))
"""


def test_a_stranger_at_the_port_does_not_become_a_rank(ranks_of):
    """Whoever comes before rank 1 and has not the launcher's secret is refused; then the right one joins."""
    zero, one = (variables | {"RANKWISE_SECRET": "of this launch"} for variables in torchrun(2))
    main = ranks_of(HOST, [zero])
    stranger = ranks_of(STRANGER, [one], folder="stranger").end()
    assert stranger[0][0].strip() == "refused", stranger
    late = ranks_of(HOST, [one], folder="late").end()
    for out, err, code in (*main.end(), *late):
        assert (out.strip(), code) == ("['rank 0', 'rank 1']", 0), err


UNGUARDED = """
import multiprocessing
import rankwise
with rankwise.bind(rank=0, world_size=1):
    process = multiprocessing.get_context("spawn").Process(target=print, args=("never",))
    process.start()
    process.join()
    print("exit code", process.exitcode)
"""


def test_a_worker_that_imports_the_script_is_no_rank(tmp_path):
    """Without a guard of __main__ a spawned worker runs the script: it is told so, and waits for nobody."""
    (tmp_path / "train.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "exit code 1\n"
    assert 'put what the script does under `if __name__ == "__main__":`' in done.stderr


def test_bind_without_with_says_what_to_write():
    """`world = bind()` is a common slip; the first use of the result names the mend."""
    uses = (lambda world: world.rank, lambda world: reduce({}, world))
    for use in uses:
        with pytest.raises(AttributeError, match=r"with bind\(\) as world"):
            use(rankwise.bind())
