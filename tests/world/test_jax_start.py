"""`World.init_jax` on real processes: two jobs at once on one machine, a rank that fails, a restart, and no torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankwise._process.place import Place
from rankwise.errors import ConfigError, WorldError
from rankwise.testing.held_ports import hold_port
from rankwise.world import World, jax_start
from rankwise.world.keys import numpy_generator

pytest.importorskip("jax")

NO_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
"""

SCRIPT = """
import json, os, sys
from pathlib import Path
import numpy as np
import rankwise

world = rankwise.World.init_jax(seed=7, timeout=200)
rank, attempt = world.rank, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
said = {}

def heard(call):
    try:
        return call()
    except rankwise.RankwiseError as error:
        return f"{type(error).__name__}: {error}"

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

shard = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
numbers = jax.make_array_from_process_local_data(shard, np.array([1.0, rank], "float32"))
total = jax.jit(lambda x: x.sum())

if world.world_size == 2:
    said["numbers"] = [jax.process_index(), jax.process_count(), rank, world.world_size, world.local_world_size]
    said["same"] = rankwise.World.current() is world and world.init_jax() is world
    said["backend"] = world.backend
    said["torch"] = "torch" in sys.modules
    said["sum"] = float(total(numbers))
if world.world_size == 2 and attempt == "0":
    tree = {"int": 2**40 + rank, "bool": rank == 1, "float": 0.5, "array": np.full(3, rank, "int8")}
    tree["half"] = np.float16(rank)
    said["all_reduce"] = {key: np.asarray(value).tolist() for key, value in world.all_reduce(tree).items()}
    said["kinds"] = [type(value).__name__ for value in world.all_reduce(tree).values()]
    said["large"] = float(world.all_reduce(np.arange(5000.0))[-1])
    said["mean"] = world.all_reduce([rank, float(rank)], "mean")
    said["max"] = world.all_reduce(np.array([np.nan, rank]), "max").tolist()
    said["reduce"] = world.reduce(1, dst=1)
    said["gathered"] = [part.tolist() for part in world.all_gather(np.arange(rank + 1))]
    said["gather"] = world.gather({"rank": rank}, dst=1)
    said["broadcast"] = world.broadcast(np.full(3000, rank), src=1)[-1].item()
    said["objects"] = [world.broadcast_object({"rank": rank}, src=1), world.all_gather_object("x" * 3000 * rank)[1][:2]]
    said["from_main"] = world.from_main(lambda: f"made by {rank}")
    loss = rankwise.Mean()
    loss.update(jax.numpy.full(rank + 1, float(rank)))
    said["metrics"] = rankwise.metrics.reduce({"loss": loss}, world)
    said["desync"] = heard(lambda: world.all_reduce(1.0 if rank else 1))
    try:
        world.raise_together(ValueError("of rank 1") if rank else None)
    except (ValueError, rankwise.RankwiseError) as error:
        said["failed"] = str(error)
    said["tensor"] = heard(lambda: world.all_reduce("text"))
    said["grad"] = heard(lambda: world.all_gather(1, grad=True))
    alone = world.subgroup([1])
    said["subgroup"] = alone and [alone.rank, alone.world_size, alone.all_reduce(5), alone.global_ranks]
    both = world.subgroup([0, 1])
    said["both"] = both.all_reduce(1)
    said["draws"] = [world.generator("x").random(), float(jax.random.uniform(world.jax_key("x")))]
    from rankwise.checkpoint import Checkpointer, JaxTree, RandomState

    values = np.arange(3, dtype="float32")
    everywhere = NamedSharding(shard.mesh, PartitionSpec())
    weights = jax.make_array_from_callback((3,), everywhere, lambda index: values[index])
    parts = {"state": JaxTree({"weights": weights, "key": jax.random.key(5), "step": 4}), "random": RandomState()}
    kept = Checkpointer(f"checkpoints-{os.environ['NAME']}-{attempt}", world=world)
    place = kept.save(4, {**parts, "notes": {"position": 17}})
    said["files"] = sorted(path.relative_to(place).as_posix() for path in place.rglob("*.*"))
    said["versions"] = sorted(kept.newest().versions)
    parts["state"].tree = {"weights": jax.jit(lambda x: x * 0)(weights), "key": jax.random.key(0), "step": 0}
    notes = {}
    report, tree = kept.restore({**parts, "notes": notes}), parts["state"].tree
    drawn = float(jax.random.uniform(tree["key"]) - jax.random.uniform(jax.random.key(5)))
    same = tree["weights"].sharding == everywhere
    said["restored"] = [report.step, tree["step"], notes["position"], float(total(tree["weights"])), same, drawn]
    said["refused"] = heard(lambda: kept.save(5, {"state": JaxTree(numbers)}))
    said["torch after"] = "torch" in sys.modules
    world.barrier()
Path(f"said-{os.environ['NAME']}-{attempt}-{rank}.json").write_text(json.dumps(said))
if os.environ["NAME"] == "launched" and rank == 1:
    if attempt == "0":
        raise ValueError("planned")
    sys.exit(7)
for _ in range(2):
    last = float(total(numbers))
print("the end", last)
"""


def slurm(rank):
    return {
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
    }


def plain(**variables):
    """The environment without what a launcher around the tests has set."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "XLA_FLAGS"):
        mine.pop(name, None)
    return {**mine, **variables}


class Jobs:
    """Two jobs side by side: under `rankwise run` with one restart, and as two tasks of Slurm, without torch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)
        (folder / "no_torch.py").write_text(NO_TORCH + SCRIPT)
        port = str(hold_port())
        command = [sys.executable, "-m", "rankwise", "run", "--nproc", "2", "--max-restarts", "1", "train.py"]
        started = [self.start(command, plain(NAME="launched"))]
        for rank in range(2):
            env = plain(NAME="slurm", MASTER_PORT=port, **slurm(rank))
            started.append(self.start([sys.executable, "no_torch.py"], env))
        ends = [process.communicate(timeout=250) for process in started]
        self.codes = [process.returncode for process in started]
        self.output = [out + err for out, err in ends]

    def start(self, command, env):
        return subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def said(self, name, attempt=0):
        return [json.loads((self.folder / f"said-{name}-{attempt}-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("jax"))


@pytest.mark.parametrize(("name", "attempt"), [("launched", 0), ("launched", 1), ("slurm", 0)])
def test_jax_has_the_numbers_of_the_ranks(jobs, name, attempt):
    """Under `rankwise run`, after a restart and in Slurm: process r of 2, and a computation over both. No torch."""
    for rank, said in enumerate(jobs.said(name, attempt)):
        assert said["numbers"] == [rank, 2, rank, 2, 2]
        assert said["same"]
        assert said["backend"] == "jax"
        assert not said["torch"]
        assert said["sum"] == 3.0


@pytest.mark.parametrize("name", ["launched", "slurm"])
def test_collectives_need_no_torch(jobs, name):
    """Numbers and arrays are reduced and gathered as in a group of torch's: exact integers, counts, NaN, kinds kept."""
    for rank, said in enumerate(jobs.said(name)):
        assert said["all_reduce"] == {"int": 2**41 + 1, "bool": 1, "float": 1.0, "array": [1, 1, 1], "half": 1.0}
        assert said["kinds"] == ["int", "int", "float", "ndarray", "float16"]
        assert said["large"] == 2 * 4999
        assert said["mean"] == [0.5, 0.5]
        assert np.isnan(said["max"][0])
        assert said["max"][1] == 1
        assert said["reduce"] == (2 if rank == 1 else None)
        assert said["gathered"] == [[0], [0, 1]]
        assert said["gather"] == ([{"rank": 0}, {"rank": 1}] if rank == 1 else None)
        assert said["broadcast"] == 1
        assert said["objects"] == [{"rank": 1}, "xx"]
        assert said["from_main"] == "made by 0"
        assert said["subgroup"] == ([0, 1, 5, [1]] if rank == 1 else None)
        assert said["both"] == 2
        assert said["metrics"] == {"loss": 2 / 3}


@pytest.mark.parametrize("name", ["launched", "slurm"])
def test_checkpoints_need_no_torch(jobs, name):
    """Arrays that all processes have are kept, keys too, and come back where they lay; parts of arrays are refused."""
    for said in jobs.said(name):
        assert said["restored"] == [4, 4, 17, 3.0, True, 0.0]
        assert said["files"] == ["manifest.json", "notes.npz", "rank-0/random.npz", "rank-1/random.npz", "state.npz"]
        assert said["versions"] == ["jax", "rankwise"]
        assert "of which each process holds a part" in said["refused"]
        assert not said["torch after"]


def test_draws_are_the_same_on_all_ranks(jobs):
    """Keyed generators of NumPy and JAX give the same numbers on both ranks and in both jobs, by the seed."""
    every = [said["draws"] for name in ("launched", "slurm") for said in jobs.said(name)]
    assert every == [every[0]] * 4
    assert every[0][0] == numpy_generator(7, ("x",)).random()


def test_mistakes_are_told_to_all(jobs):
    """Different calls, a rank with an error and values that cannot travel: an error on every rank, then on it goes."""
    first, second = jobs.said("launched")
    for said in (first, second):
        assert said["desync"].startswith("DesyncError: the ranks made different calls")
        assert "rank 1: all_reduce(sum) at" in said["desync"]
        assert said["tensor"].startswith("ConfigError: tree is a str")
        assert "jax.lax.all_gather" in said["grad"]
    assert "rank 1 failed in raise_together" in first["failed"]
    assert second["failed"] == "of rank 1"


def test_a_rank_that_fails_takes_the_others_along(jobs):
    """It raises in the first attempt and exits with 7 in the second: nobody waits for it, and 7 is what comes out."""
    code, output = jobs.codes[0], jobs.output[0]
    assert code == 7
    assert "rank 1 of 2" in output
    assert "ValueError: planned" in output
    assert "the end" not in output


def test_ranks_that_end_well_leave_together(jobs):
    """Without a launcher of ours the processes end by themselves, with 0."""
    assert jobs.codes[1:] == [0, 0]
    assert all("the end 3.0" in output for output in jobs.output[1:])


ALONE = """
import rankwise, jax
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler
jax.devices()
world = rankwise.World.init_jax(seed=3)
assert rankwise.World.current() is world
DistributedSampler(RandomSampler(8, 4, 16, rng=0), dist_info="jax")
print(world.rank, world.world_size, world.backend, jax.process_count(), jax.distributed.is_initialized())
print(world.all_reduce({"loss": 0.5}), world.all_gather(2), world.init_jax() is world)
try:
    with rankwise.bind():
        pass
except rankwise.RankwiseError as error:
    print(error)
"""


def test_the_same_script_runs_on_one_rank():
    """There is nothing to initialise then, so it does no harm that JAX has computed before."""
    done = subprocess.run([sys.executable, "-c", ALONE], env=plain(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["0 1 jax 1 False", "{'loss': 0.5} [2] True"]
    assert "enter bind() first" in lines[2]


EARLY = """
import os, rankwise
if os.environ["RANK"] == "1":
    import jax
    jax.devices()
try:
    rankwise.World.init_jax(timeout=200)
except rankwise.RankwiseError as error:
    print(type(error).__name__, error)
"""


def test_devices_that_were_started_before():
    """A rank on which JAX has looked for devices says so at once on all ranks, with the mend."""
    port = str(hold_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-c", EARLY],
            env=plain(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    first, second = (process.communicate(timeout=240)[0] for process in started)
    assert first.startswith("WorldError rank 1 (host ")
    assert "ConfigError: JAX looked for its devices before World.init_jax()" in first
    assert second.startswith("ConfigError JAX looked for its devices before World.init_jax()")
    assert "call World.init_jax() before anything that computes" in second


def test_a_store_that_is_lost_is_an_error_of_the_world(monkeypatch):
    """Rank 0 ends while the others ask it: they name it, whatever the socket said."""

    class Lost:
        def add(self, *_):
            raise ConnectionResetError("rank 0 closed the store")

        def close(self):
            closed.append(self)

    closed = []
    place = Place(family="slurm", rank=1, world_size=2, local_world_size=2, master_addr="localhost", master_port=1)
    monkeypatch.setattr(jax_start, "find_place", lambda _: place)
    monkeypatch.setattr(jax_start, "jax_client", lambda: None)
    monkeypatch.setattr(jax_start, "devices_started", lambda: False)
    monkeypatch.setattr(jax_start, "open_small_store", lambda *_: Lost())
    with pytest.raises(WorldError, match=r"rank 1 of 2 lost the store of rank 0 .*rank 0 closed the store"):
        World.init_jax()
    assert len(closed) == 1


def test_an_initialised_jax_with_other_numbers(monkeypatch):
    """It is refused with both numbers."""
    monkeypatch.setattr(jax_start, "jax_client", object)
    monkeypatch.setattr(jax_start, "jax_numbers", lambda: (0, 1))
    monkeypatch.setattr(jax_start, "find_place", lambda _: Place(family="torchrun", rank=1, world_size=2))
    with pytest.raises(
        ConfigError, match=r"already initialised as process 0 of 1, but this process is rank 1 of 2: leave jax\."
    ):
        World.init_jax()


@pytest.mark.parametrize(
    ("place", "visible", "wanted", "given"),
    [
        (Place(local_rank=1, local_world_size=4), "", None, [1]),
        (Place(local_rank=1, local_world_size=4), "0,1,2,3", None, [1]),
        (Place(local_rank=1, local_world_size=4), "1", None, None),  # narrowed to this rank's own
        (Place(local_rank=0, local_world_size=1), "", None, None),  # alone on its machine: all of them
        (Place(local_rank=1, local_world_size=2), "", (2, 3), [2, 3]),
    ],
)
def test_each_rank_has_its_accelerators(monkeypatch, place, visible, wanted, given):
    """One each where a machine has several ranks, all where it has one, or those that were asked for."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert jax_start.local_devices(place, wanted) == given


TORCHRUN = """
import contextlib, sys, rankwise
from pathlib import Path
import numpy as np
with rankwise.bind(device="cpu") if sys.argv[1] == "bound" else contextlib.nullcontext():
    world = rankwise.World.init_jax(timeout=200)
    import jax
    said = f"{jax.process_index()} {jax.process_count()} {world.backend} {world.all_reduce(1)}"
    Path(f"said-{world.rank}").write_text(said)
    checkpoints = rankwise.Checkpointer("checkpoints", world=world)
    weights = {"w": np.arange(3.0)}
    checkpoints.save(3, {"weights": weights})
    weights["w"][:] = 0
    assert checkpoints.restore({"weights": weights}).step == 3
    assert weights["w"].tolist() == [0, 1, 2]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "backend"), [("bound", "gloo"), ("alone", "jax")])
def test_under_torchrun(tmp_path, how, backend):
    """The agent's store is where the ranks meet; inside `bind` its group is. Either way they save checkpoints."""
    (tmp_path / "train.py").write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", how]
    done = subprocess.run(command, cwd=tmp_path, env=plain(), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert (tmp_path / f"said-{rank}").read_text() == f"{rank} 2 {backend} 2"


def test_bad_arguments_are_refused():
    """Seeds and timeouts out of range, before anything is started."""
    with pytest.raises(ConfigError, match="seed must be an integer"):
        World.init_jax(seed=-1)
    with pytest.raises(ConfigError, match="timeout must be at least one second"):
        World.init_jax(timeout=0.5)


def test_without_jax_the_extra_is_named(monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"rankwise\[jax\]"):
        World.init_jax()
