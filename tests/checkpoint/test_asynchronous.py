"""A thread writes what the states were; the ranks publish it together, later, or not at all."""

import pickle
import threading

import pytest
import torch

from rankwise.checkpoint import Checkpointer, ModelState, OptimizerState, RandomState, Replicated
from rankwise.checkpoint.commit import Disk
from rankwise.checkpoint.save import PendingSave, PollSchedule
from rankwise.errors import CheckpointError
from rankwise.testing import run_ranks
from rankwise.world import World
from rankwise.world.collectives.handshake import INLINE


class Shard:
    scope = "sharded"

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Gate:
    """Holds the threads that write, or makes their writing fail."""

    def __init__(self, monkeypatch):
        self.open = threading.Event()
        self.arrived = threading.Event()
        self.error = None
        real = Disk.create

        def create(disk, made, name):
            if threading.current_thread() is not threading.main_thread():
                self.arrived.set()
                assert self.open.wait(120)
                if self.error is not None:
                    raise self.error
            return real(disk, made, name)

        monkeypatch.setattr(Disk, "create", create)


def names(folder):
    return sorted(entry.name for entry in folder.glob("*step-*"))


def snapshots(world, folder):
    """Change everything while the thread has not written yet."""
    with pytest.MonkeyPatch.context() as patch:
        gate = Gate(patch)
        checkpointer = Checkpointer(folder, world=world, asynchronous=True, keep=2)
        weight, array, plain = torch.arange(1000.0) + world.rank, torch.arange(3).numpy(), {"list": [1]}
        parts = {"shard": Shard({"t": weight, "view": weight[::2], "n": array}), "plain": plain}
        target = checkpointer.save(1, parts)
        weight.zero_()
        array[:] = 7
        plain["list"].append(2)
        asked, real = [], PendingSave.is_idle
        patch.setattr(PendingSave, "is_idle", lambda saving: asked.append(1) or real(saving))
        early = {checkpointer.poll() for _ in range(200)}, len(asked), target.exists(), checkpointer.published
        gate.open.set()
        assert checkpointer.wait() == checkpointer.published == target
    back, more = Shard(None), {}
    checkpointer.restore({"shard": back, "plain": more})
    kept = back.value["t"].tolist() == (torch.arange(1000.0) + world.rank).tolist()
    view = back.value["view"].tolist() == (torch.arange(0.0, 1000.0, 2) + world.rank).tolist()
    return early, kept, view, back.value["n"].tolist(), more


def polled(world, folder):
    """Steps that poll: published at one of them, on all ranks at the same."""
    checkpointer = Checkpointer(folder, world=world, asynchronous=True)
    checkpointer.save(1, {"shard": Shard(world.rank)})
    for step in range(1, 100_000):
        if checkpointer.poll() is not None:
            return step, checkpointer.newest().step, checkpointer.poll()
    raise AssertionError


def failing(world, folder):
    """A full disk on rank 1, found by the next save, by wait and by close."""
    said = []
    checkpointer = Checkpointer(folder, world=world, asynchronous=True)
    checkpointer.save(1, {"shard": Shard(1)})
    checkpointer.wait()
    for find in (lambda: checkpointer.save(3, {"shard": Shard(3)}), checkpointer.wait, checkpointer.close):
        with pytest.MonkeyPatch.context() as patch:
            gate = Gate(patch)
            gate.error = OSError(28, "No space left on device") if world.rank == 1 else None
            checkpointer.save(2, {"shard": Shard(2)})
            gate.open.set()
            with pytest.raises(CheckpointError) as caught:
                find()
            said.append(str(caught.value))
        world.barrier()
        assert checkpointer.newest().step == 1
        assert not [name for name in names(folder) if name.startswith(".tmp")]
        world.barrier()
    checkpointer.save(4, {"shard": Shard(4)})
    checkpointer.wait()
    return said, checkpointer.newest().step


def abandoned(world, folder):
    """One that is not published leaves nothing, and the one before is there."""
    checkpointer = Checkpointer(folder, world=world, asynchronous=True)

    def fail():
        with checkpointer:
            checkpointer.save(1, {"shard": Shard(1)})
            checkpointer.wait()
            checkpointer.save(2, {"shard": Shard(2)})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    world.barrier()
    return checkpointer.newest().step, names(folder)


def counted(world, folder):
    """Collectives of a save at once, of one by a thread up to the return of `save`, of its publication, of a step."""
    num_calls = []

    def count(act):
        before = world.channel.calls
        act()
        num_calls.append(world.channel.calls - before)

    # as many parts as a Trainer has: what the ranks tell each other still fits into one message
    parts = {f"part_{number}": Shard(torch.arange(100.0)) for number in range(6)}
    plain = Checkpointer(folder / "plain", world=world)
    count(lambda: plain.save(1, parts))
    with Checkpointer(folder / "aside", world=world, asynchronous=True) as checkpointer:
        for step in (1, 2):
            count(lambda step=step: checkpointer.save(step, parts))
            count(checkpointer.wait)
        count(checkpointer.poll)
    sizes = [len(pickle.dumps(files)) for files in told]
    return num_calls, max(sizes)


told = []


def everything(world, folder):
    real = PendingSave._write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PendingSave, "_write", lambda saving: told.append(real(saving)) or told[-1])
        numbers = counted(world, folder / "counted")
    return [*(fn(world, folder / fn.__name__) for fn in (snapshots, polled, failing, abandoned)), numbers]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What two ranks saw."""
    return run_ranks(everything, 2, tmp_path_factory.mktemp("async"))


def test_what_is_saved_is_the_state_of_the_call(outcomes):
    """Tensors, views, arrays, trees change before the thread writes; it is not found before; 200 polls ask 9 times."""
    for early, kept, view, array, plain in (found[0] for found in outcomes):
        assert early == ({None}, 9, False, None)
        assert kept
        assert view
        assert array == [0, 1, 2]
        assert plain == {"list": [1]}


def test_a_step_publishes_what_is_written(outcomes):
    """All ranks publish at the same poll, and then it is found."""
    assert len({found[1][0] for found in outcomes}) == 1
    assert [found[1][1:] for found in outcomes] == [(1, None)] * 2


def test_an_error_of_a_thread_is_everybodys(outcomes):
    """At the next save, wait and close, named, and the checkpoint before is good; then saving goes on."""
    first, second = (found[2] for found in outcomes)
    assert len(second[0]) == 3
    assert all("failed on rank 1: [Errno 28] No space left on device; check free space" in said for said in second[0])
    assert all("failed on another rank" in said and "rank 1" in said for said in first[0])
    assert first[1] == second[1] == 4


def test_what_is_given_up_leaves_nothing(outcomes):
    """An exception inside the `with` block: the thread is waited for, its files go, the previous one stays."""
    assert [found[3] for found in outcomes] == [(1, ["step-0000000001"])] * 2


def test_the_last_to_give_up_takes_the_folder_along(tmp_path):
    """The main rank removes all of it; a rank that opens its next file meanwhile makes it again."""
    disk = Disk(tmp_path)
    made = disk.make(2, 0, "token")

    def write(name):
        with disk.create(made, name) as file:
            file.write(b"x")

    for main_is_first in (True, False):
        disk.prepare(made)
        write("shared/a")
        write("rank-1/a")
        if main_is_first:
            disk.discard(made, None)
            write("rank-1/b")
            disk.discard(made, "rank-1")
        else:
            disk.discard(made, "rank-1")
            assert made.exists()
            disk.discard(made, None)
        assert list(tmp_path.iterdir()) == []


def test_a_save_is_one_collective_until_it_returns(outcomes):
    """Ranks whose cores are busy with writing wait for each other: one meeting for each half, in one small message."""
    for num_calls, most_bytes in (found[4] for found in outcomes):
        assert num_calls == [3, 1, 2, 1, 2, 0]
        assert most_bytes < INLINE - 64


def test_polls_that_come_too_early_are_left_out():
    """From the second save on; what takes as long as before is noticed after two or three questions."""
    schedule, asked = PollSchedule(), []
    for num_calls in (100, 100, 100, 7, 7):
        schedule.begin(is_publishing=False)
        asked.append([])
        call = 0
        while not asked[-1] or asked[-1][-1] < num_calls:
            call += 1
            if schedule.is_due():
                asked[-1].append(call)
        schedule.end(is_publishing=False)
    assert asked == [[1, 2, 4, 8, 16, 32, 64, 128], [96, 160], [120], [90], [67]]


def test_host_memory_is_used_again(tmp_path, monkeypatch):
    """From the second save on no tensor is made for the copies; a shared one stays shared."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.Linear(20, 20))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 20)).sum().backward()
    optimizer.step()
    parts = {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model), "random": RandomState()}
    made, real = [], torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: made.append(shape) or real(*shape, **options))
    with Checkpointer(tmp_path, world=World.single(), asynchronous=True) as checkpointer:
        checkpointer.save(1, parts)
        assert len(made) > 8
        made.clear()
        folder = checkpointer.save(2, parts)
        assert made == []
    saved = torch.load(folder / "model.pt", weights_only=True)
    assert saved["0.weight"].data_ptr() == saved["1.weight"].data_ptr()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.nn.init.zeros_(model[0].weight)
    checkpointer.restore({"model": Replicated(model)})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Fresh:
    """Makes its state anew at each call, as an average that lies elsewhere does: its memory is free right after."""

    scope = "replicated"

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"x": torch.full((1_000_000,), float(self.value))}

    def load_state_dict(self, state):
        self.value = float(state["x"][0])


def test_memory_that_is_free_again_is_another_tensors(tmp_path):
    """States that come one after the other in the same memory are copied each, from save to save."""
    with Checkpointer(tmp_path, world=World.single(), asynchronous=True) as checkpointer:
        for step in (1, 2, 3):
            parts = {f"part{number}": Fresh(10 * step + number) for number in range(6)}
            checkpointer.save(step, parts)
            checkpointer.wait()
            found = {name: Fresh(-1) for name in parts}
            checkpointer.restore(found)
            assert [part.value for part in found.values()] == [part.value for part in parts.values()]


def test_a_save_that_failed_leaves_no_copies_to_the_next(tmp_path):
    """What was copied before the error is no state of the save after it."""
    model = torch.nn.Linear(2, 2)
    with Checkpointer(tmp_path, world=World.single(), asynchronous=True) as checkpointer:
        with pytest.raises(CheckpointError, match="object"):
            checkpointer.save(1, {"model": Replicated(model), "notes": {"what": object()}})
        torch.nn.init.constant_(model.weight, 7.0)
        checkpointer.save(2, {"model": Replicated(model)})
        torch.nn.init.zeros_(model.weight)
        checkpointer.restore({"model": Replicated(model)})
    assert model.weight.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_conjugates_and_notes_are_those_of_the_call(tmp_path):
    """A conjugate shares its memory with another value; a list inside `meta` may grow while a thread writes."""
    value, history = torch.tensor([1 + 2j]), [0.5]
    with Checkpointer(tmp_path, world=World.single(), asynchronous=True) as checkpointer:
        checkpointer.save(1, {"tree": {"a": value, "b": value.conj()}}, meta={"history": history})
        history.append(0.25)
        checkpointer.wait()
        info = checkpointer.newest()
    assert info.meta == {"history": [0.5]}
    tree = checkpointer.read(info, "tree")
    assert (tree["a"].tolist(), tree["b"].resolve_conj().tolist()) == ([1 + 2j], [1 - 2j])


def test_two_who_save_one_step_do_not_mix(tmp_path, monkeypatch):
    """Two programs in one folder, at one moment: each checkpoint has the files of one of them."""
    second = Checkpointer(tmp_path, world=World.single())
    second.save(1, {"tree": {"x": torch.zeros(3)}})
    real, main = Disk.publish, threading.current_thread()

    with Checkpointer(tmp_path, world=World.single(), asynchronous=True) as first:

        def publish(disk, *args):
            if threading.current_thread() is main:  # the second one has written its files
                first.wait()
            real(disk, *args)

        monkeypatch.setattr(Disk, "publish", publish)
        first.save(2, {"tree": {"x": torch.ones(3)}})
        first._thread.submit(int).result()  # its files are written
        second.save(2, {"tree": {"x": torch.full((3,), 2.0)}})
    assert second.read(second.newest(), "tree")["x"].tolist() == [2.0, 2.0, 2.0]
