"""A launch that hangs is stopped, and the rank that holds the others up is named."""

import pytest

from rankwise.launch.hang import _place, _waits

WAIT = """
    import os, sys, time
    import torch, torch.distributed as dist
    from rankwise import vitals
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    def computes_for_ever():
        time.sleep(1000)
    for step in range(3):
        vitals.beat(epoch=0, step=step, phase="train")
        if rank == 1 and step == {behind}:
            computes_for_ever()
        dist.all_reduce(torch.ones(1))
    {extra}
"""


def test_the_rank_behind_is_named(launcher):
    """One rank stays at a lower step: it is named with step, phase, function and line; exit code 1."""
    script = launcher.script("""
        import os, time
        from rankwise import vitals
        def computes_for_ever():
            time.sleep(1000)
        for step in range(3):
            vitals.beat(epoch=0, step=step, phase="train")
            if os.environ["RANK"] == "1" and step == 1:
                computes_for_ever()
        time.sleep(1000)
    """)
    done = launcher.run("--nproc", 2, "--hang-timeout", 3, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "hangs (epoch 0, step 1, phase train, at " in done.stderr
    assert "script.py:5 in computes_for_ever" in done.stderr
    assert "no rank has made progress for 3 s" in done.stderr
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
    done = launcher.run("--nproc", 2, "--hang-timeout", 3, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "no beat yet" in done.stderr
    assert "in computes_for_ever" in done.stderr
    assert "the others wait for it in a collective" in done.stderr
    assert "recorder.py" not in done.stderr, "our own heartbeat thread is nobody's business"
    assert "child.py" not in done.stderr


def test_a_stopped_rank_is_named(launcher):
    """A rank under SIGSTOP is named as stopped, although it cannot say anything."""
    script = launcher.script("""
        import os, signal, time
        from rankwise import vitals
        for step in range(3):
            vitals.beat(step=step)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    """)
    done = launcher.run("--nproc", 2, "--hang-timeout", 3, "--shutdown-timeout", 1, script)
    assert done.returncode == 1
    assert "rank 1 of 2 on " in done.stderr
    assert "its process is stopped (SIGSTOP)" in done.stderr


def test_a_quiet_rank_is_blamed_for_the_timeouts_of_others(launcher):
    """Ranks that die of waiting are collateral; the one that still lives is the cause, with its stack."""
    text = WAIT.format(behind=1, extra="").replace(
        '"gloo"', '"gloo", timeout=__import__("datetime").timedelta(seconds=2)'
    )
    done = launcher.run("--nproc", 2, "--shutdown-timeout", 1, launcher.script(text))
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
    assert (silent.wait(60), beating.wait(60)) == (0, 0)


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
    assert _waits(text)
    assert not _waits(text.replace("torch/distributed", "mine"))
    assert "recorder" not in _place(text)
