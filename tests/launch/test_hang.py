"""A launch that hangs is stopped, and the rank that holds the others up is named."""

import os
import re
import time
from pathlib import Path

import pytest

import rankwise
from rankwise.launch.failures.culprit import choose
from rankwise.launch.failures.observation import observation_of
from rankwise.vitals import Vital
from rankwise.vitals.stacks import place as _place
from rankwise.vitals.stacks import waits as _waits

MEET = """
import os, pathlib, time
from rankwise import vitals
def meet(size):  # all ranks are there, and nobody was silent meanwhile: a hang counts from here
    pathlib.Path("met-" + os.environ["RANK"]).touch()
    while len(list(pathlib.Path().glob("met-*"))) < size:
        vitals.beat()
        time.sleep(0.05)
"""


@pytest.fixture
def launcher(launcher):
    launcher.script(MEET, "meeting.py")
    return launcher


def test_the_rank_behind_is_named(launcher):
    """One rank stays at a lower step: it is named with step, phase, function and line; exit code 1."""
    script = launcher.script("""
        import os, time
        from rankwise import vitals
        from meeting import meet
        def computes_for_ever():
            time.sleep(1000)
        meet(2)
        for step in range(3):
            vitals.beat(epoch=0, step=step, phase="train")
            if os.environ["RANK"] == "1" and step == 1:
                computes_for_ever()
        time.sleep(1000)
    """)
    done = launcher.run("--nproc", 2, "--hang-timeout", 8, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "hangs (epoch 0, step 1, phase train, at " in done.stderr
    assert "script.py:6 in computes_for_ever" in done.stderr
    assert "no rank has made progress for 8 s" in done.stderr
    assert "it is behind the others (furthest: epoch 0, step 2, phase train)" in done.stderr
    assert "rank 0: stopped by rankwise (SIGTERM); was at epoch 0, step 2" in done.stderr


def test_the_rank_that_does_not_wait_is_named_without_beats(launcher):
    """No rank ever beat: the one that is not in a collective is named, by its stack."""
    script = launcher.script("""
        import os, time
        def computes_for_ever():
            time.sleep(1000)
        if os.environ["RANK"] == "1":
            computes_for_ever()
        # what a stack looks like inside a collective, without loading torch
        exec(compile("import time; time.sleep(1000)", "/site/torch/distributed/distributed_c10d.py", "exec"))
    """)
    done = launcher.run("--nproc", 2, "--hang-timeout", 12, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "no beat yet" in done.stderr
    assert "no rank was seen to make progress for 12 s (--hang-timeout): none has started a collective" in done.stderr
    assert "in computes_for_ever" in done.stderr
    assert "the others wait for it in a collective" in done.stderr
    assert "recorder.py" not in done.stderr, "our own heartbeat thread is nobody's business"
    assert "child.py" not in done.stderr


def test_a_stopped_rank_is_named(launcher):
    """A rank under SIGSTOP is named as stopped, although it cannot say anything."""
    script = launcher.script("""
        import os, signal, time
        from rankwise import vitals
        from meeting import meet
        meet(2)
        for step in range(3):
            vitals.beat(step=step)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    """)
    done = launcher.run("--nproc", 2, "--hang-timeout", 8, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "its process is stopped (SIGSTOP)" in done.stderr


def test_a_quiet_rank_is_blamed_for_the_timeouts_of_others(launcher):
    """Ranks that die of waiting are collateral; the one that still lives is the cause, with its stack."""
    script = launcher.script("""
        import datetime, os, time
        import torch, torch.distributed as dist
        from rankwise import vitals
        from meeting import meet
        meet(2)
        dist.init_process_group("gloo")
        def computes_for_ever():
            time.sleep(1000)
        for step in range(3):
            vitals.beat(epoch=0, step=step, phase="train")
            if step == 1:  # they have met, however long that took
                dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=5), dist.group.WORLD)
                if os.environ["RANK"] == "1":
                    computes_for_ever()
            dist.all_reduce(torch.ones(1))
    """)
    done = launcher.run("--nproc", 2, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "gave up waiting for it" in done.stderr
    assert "in computes_for_ever" in done.stderr
    assert "rank 0: collateral" in done.stderr


def test_a_script_that_never_beats_may_be_silent(launcher):
    """Without --hang-timeout a script without beats is never taken for hung; with 0, neither is one with beats."""
    script = launcher.script("""
        import os, time
        from rankwise import vitals
        if len(os.sys.argv) > 1:
            vitals.beat()
        time.sleep(2.2)
    """)
    silent = launcher.start("--nproc", 1, script)
    beating = launcher.start("--nproc", 1, "--hang-timeout", 0, script, "beat")
    assert (silent.wait(240), beating.wait(240)) == (0, 0)


IN_STEP = """
    import torch  # first: it is loaded once, and the ranks are forked
    import sys, threading, time
    from rankwise import vitals
    there = threading.Event()
    def live_until_there():  # however long it takes to come there
        while not there.wait(0.2):
            vitals.beat()
    threading.Thread(target=live_until_there, daemon=True).start()
    from rankwise import bind
    def computes_for_ever():
        time.sleep(1000)
    with bind(timeout=600) as world:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        for step in range(4):
            vitals.beat(epoch=0, step=step)
            loss = model(torch.randn(2, 4)).sum()
            if step == 2:
                world.barrier()
                there.set()
                if world.rank == 1:
                    {deed}
            loss.backward()
"""


def test_a_rank_asleep_in_its_step_is_named(launcher):
    """DDP waits in C++ inside `backward`, without a frame of a collective: the rank that is elsewhere is named."""
    script = launcher.script(IN_STEP.format(deed="computes_for_ever()"))
    done = launcher.run("--nproc", 3, "--hang-timeout", 15, "--shutdown-timeout", 1, script)
    assert "rank 1 of 3 on " in done.stderr
    assert "in computes_for_ever): no rank has made progress" in done.stderr
    assert "rank 1 has not joined all_reduce #" in done.stderr


@pytest.mark.parametrize("deed", ["sys.exit(0)", pytest.param("import os; os._exit(0)", marks=pytest.mark.slow)])
def test_a_rank_that_leaves_early_is_named(launcher, deed):
    """A rank that ends well in the middle is the cause of what the others die of, and their stacks show where."""
    done = launcher.run("--nproc", 3, launcher.script(IN_STEP.format(deed=deed)))
    assert done.returncode == 1
    assert "rank 1 of 3 on " in done.stderr
    assert "had finished (exit 0) while rank " in done.stderr
    assert "loss.backward()" in done.stderr
    assert "rank 0: collateral" in done.stderr
    assert "rank 2: collateral" in done.stderr


def test_a_rank_that_arrives_late_shows_its_stacks(launcher):
    """Ranks that give up waiting for one that has not come are collateral: where it stands is shown."""
    script = launcher.script("""
        import os, time, torch
        def reads_a_large_file():
            time.sleep(1000)
        if os.environ["RANK"] == "1":
            reads_a_large_file()
        from rankwise import bind
        from meeting import meet
        meet(2)
        with bind(timeout=15):
            pass
    """)
    done = launcher.run("--nproc", 3, "--shutdown-timeout", 1, script)
    assert "rank 1 of 3 on " in done.stderr
    assert "gave up waiting for it (rankwise.errors.WorldError)" in done.stderr
    assert "script.py:4 in reads_a_large_file" in done.stderr
    assert "rank 0: collateral" in done.stderr


def test_a_rank_that_has_left_is_named_where_the_others_wait_on(launcher):
    """The others do not notice (they wait for each other): with --hang-timeout the one that ended well is named."""
    script = launcher.script("""
        import os, sys, time
        from meeting import meet
        meet(3)
        if os.environ["RANK"] == "1":
            sys.exit(0)
        exec(compile("import time; time.sleep(1000)", "/site/torch/distributed/distributed_c10d.py", "exec"))
    """)
    done = launcher.run("--nproc", 3, "--hang-timeout", 8, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 3 on " in done.stderr
    assert "had finished (exit 0) while rank " in done.stderr
    assert "---- rank 0 on " in done.stderr or "---- rank 2 on " in done.stderr


def test_a_standstill_is_told_and_the_run_goes_on(launcher):
    """--stall: nobody advances for a while, so every rank's place and stack is told; then they go on and end well."""
    script = launcher.script("""
        import os, time
        from pathlib import Path
        from rankwise import vitals
        from meeting import meet
        def waits_for_the_others():
            open("go").read()  # a fifo that nobody has opened yet
        def reads_for_long():
            waits_for_the_others()
        meet(3)
        vitals.beat(epoch=0, step=1 if os.environ["RANK"] == "1" else 2)
        reads_for_long() if os.environ["RANK"] == "1" else waits_for_the_others()
        for _ in range(300):
            vitals.beat(epoch=0, step=3)
            if Path("told").exists():
                break
            time.sleep(0.1)
    """)
    os.mkfifo(launcher.folder / "go")
    process = launcher.start("--nproc", 3, "--stall", 2, script)
    told = ""
    for line in process.stderr:
        told += line
        if line == "-" * 72 + "\n":  # the end of what is told
            (launcher.folder / "go").open("w").close()
        if "advance again" in line:
            (launcher.folder / "told").touch()
    assert process.wait(240) == 0
    assert re.search(
        r"no rank has advanced for \d+ s \(--stall\), the run continues; look at rank 1: it is behind", told
    )
    assert re.search(r"^---- rank 1: epoch 0, step 1, at .*script.py:\d+ in waits_for_the_others", told, re.MULTILINE)
    assert re.search(r"^---- rank 0,2: epoch 0, step 2, at ", told, re.MULTILINE), "equal stacks are shown once"
    assert "in reads_for_long" in told
    assert "the ranks advance again, after" in told


def test_ranks_that_import_do_not_stand_still(launcher):
    """--stall 1: imports that take longer are not told, what the script then waits for is, and how progress is seen."""
    launcher.script("import time\ntime.sleep(3)", "slow.py")
    script = launcher.script("""
        import slow
        def waits_for_the_others():
            open("go").read()  # a fifo that nobody has opened yet
        waits_for_the_others()
    """)
    os.mkfifo(launcher.folder / "go")
    process = launcher.start("--nproc", 2, "--stall", 1, script)
    told = ""
    for line in process.stderr:
        told += line
        if line == "-" * 72 + "\n" and "in waits_for_the_others" in told:
            (launcher.folder / "go").open("w").close()
    assert process.wait(240) == 0
    assert re.match(
        r"rankwise: no rank was seen to advance for \d+ s \(--stall\): none has started a collective or", told
    )
    assert "slow.py" not in told


STACKS = """Thread 0x00007f3a4 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/x/vitals/recorder.py", line 70 in _keep_beating

Current thread 0x00007f3a5 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3000 in all_reduce
  File "/home/me/train.py", line 12 in step
  File "/home/me/train.py", line 30 in <module>
"""


@pytest.mark.parametrize("text", [STACKS, STACKS.replace("Current thread", "Thread")])
def test_stacks_are_read(text):
    """The main thread is the last one; its first frame inside a collective means waiting."""
    assert _waits(text) == 2
    assert not _waits(text.replace("torch/distributed", "mine"))
    assert "recorder" not in _place(text)


def test_a_place_tells_what_it_calls_of_the_world():
    """The backend gathers where the user reduces: the name that stands in the script is told, and that alone."""
    value = f"{Path(rankwise.__file__).parent}/world/value.py"
    reductions = value.replace("value.py", "collectives/reductions.py")
    inside = stack((reductions, "_sum"), (value, "all_reduce"), ("/home/me/t.py", "step"))
    assert _place(inside) == "/home/me/t.py:1 in step calling World.all_reduce"
    assert _place(stack(("/home/me/t.py", "step"))) == "/home/me/t.py:1 in step"
    assert _place("") == ""


def stack(*frames):
    lines = [f'  File "{file}", line 1 in {name}' for file, name in frames]
    return "\n".join(["Current thread 0x1 (most recent call first):", *lines, ""])


MINE = ("/home/me/train.py", "step")
SITE = "/v/lib/python3.11/site-packages/"


@pytest.mark.parametrize(
    ("frames", "surely"),
    [
        (
            [(SITE + "torch/autograd/graph.py", "_engine_run_backward"), (SITE + "torch/_tensor.py", "backward"), MINE],
            1,
        ),
        ([("/home/me/ops.py", "forward"), (SITE + "torch/autograd/function.py", "apply"), MINE], 0),
        (
            [
                (SITE + "torch/distributed/rpc/__init__.py", "<module>"),
                ("<frozen importlib._bootstrap>", "_load"),
                MINE,
            ],
            0,
        ),
        ([("/home/me/hook.py", "hook"), (SITE + "torch/distributed/algorithms/hooks.py", "run"), MINE], 0),
        ([(SITE + "mine/net.py", "forward"), (SITE + "torch/distributed/fsdp/x.py", "forward"), MINE], 0),
        ([MINE], 0),
        ([], 0),
    ],
)
def test_what_counts_as_waiting(frames, surely):
    """A backward pass may wait; an import never does, nor does what the user's code does inside a library's call."""
    assert _waits(stack(*frames)) == surely


def vital(rank, step=5, phase="train", progress_s=0.0):
    now = time.monotonic()
    return Vital(
        folder=Path(), rank=rank, pid=os.getpid(), host="h", signum=0, start_s=now, heartbeat_s=now,
        progress_s=now - progress_s, num_beats=1, epoch=0, step=step, phase=phase,
    )  # fmt: skip


BACKWARD = stack((SITE + "torch/autograd/graph.py", "_engine_run_backward"), MINE)
COLLECTIVE = stack((SITE + "torch/distributed/distributed_c10d.py", "barrier"), MINE)
SYNCHRONISES = stack(MINE)  # a copy from the GPU waits in C, in the user's own line
ELSEWHERE = stack(("/home/me/train.py", "asleep"), MINE)


@pytest.mark.parametrize(
    ("stacks", "named", "why"),
    [
        ([BACKWARD, BACKWARD, ELSEWHERE], 2, "the others wait for it"),
        ([COLLECTIVE, ELSEWHERE], 1, "the others wait for it"),
        ([COLLECTIVE, BACKWARD], 1, "the others wait for it"),
        ([SYNCHRONISES, ELSEWHERE, SYNCHRONISES], 1, "it is elsewhere than the others (2 of 3 are at"),
        ([COLLECTIVE, COLLECTIVE], 0, "all ranks are at the same place"),
        ([SYNCHRONISES, ELSEWHERE], 0, "the ranks are at different places"),
    ],
)
def test_who_is_named(stacks, named, why):
    """At the same step: who does not wait, who stands elsewhere than most; never "the same place" when it is not."""
    found = [vital(rank, progress_s=1.0 if rank == 0 else 0.0) for rank in range(len(stacks))]
    culprit, told = choose([observation_of(*pair, ()) for pair in zip(found, stacks, strict=True)])
    assert culprit.rank == named
    assert told.startswith(why)


def test_who_waits_is_not_named_for_being_behind():
    """A rank asleep after its step holds up those that are still in it."""
    found = observation_of(vital(0, step=5), ELSEWHERE, ()), observation_of(vital(1, step=4), COLLECTIVE, ())
    assert choose(found)[0].rank == 0
