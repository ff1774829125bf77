"""`rankwise.run`: values by rank, failures with their tracebacks, nothing left behind."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import rankwise
from rankwise.errors import ConfigError, LaunchError, RankFailure
from rankwise.launch.functions import caller


def test_values_by_rank():
    """Arguments go to every rank, values come back in the order of the ranks; closures too."""
    offset = 10

    def add(value, *, factor):
        return int(os.environ["RANK"]), os.environ["WORLD_SIZE"], value * factor + offset

    assert rankwise.run(add, 3, factor=2, num_ranks=3) == [(rank, "3", 16) for rank in range(3)]


def test_a_failing_rank_raises_here():
    """RankFailure carries the rank, its exit code and its traceback."""

    def fail():
        if os.environ["RANK"] == "1":
            raise KeyError("the cause")
        threading.Event().wait()

    with pytest.raises(RankFailure, match="raised KeyError: 'the cause'") as caught:
        rankwise.run(fail, num_ranks=2)
    assert (caught.value.rank, caught.value.exitcode) == (1, 1)
    assert "in fail" in caught.value.traceback
    assert "rankwise/launch" not in caught.value.traceback


def test_a_killed_rank_raises_here():
    """A signal shows as a negative exit code."""
    with pytest.raises(RankFailure, match="SIGKILL") as caught:
        rankwise.run(lambda: os.kill(os.getpid(), signal.SIGKILL), num_ranks=1)
    assert caught.value.exitcode == -signal.SIGKILL


def test_a_rank_that_takes_too_long():
    """timeout= names the rank and says where it is."""

    def waits_for_ever():
        threading.Event().wait()

    with pytest.raises(RankFailure, match="not finished after 20 s") as caught:
        rankwise.run(waits_for_ever, num_ranks=1, timeout=20)
    assert caught.value.exitcode is None
    assert "waits_for_ever" in caught.value.traceback


STALLS = """
    import json, os, time
    import rankwise

    def sleeps_on():
        while not os.path.exists("told"):
            time.sleep(0.05)
        return sorted(os.sched_getaffinity(0))

    if __name__ == "__main__":
        print(json.dumps(rankwise.run(sleeps_on, num_ranks=2, stall=1, binding="core")))
"""


def test_a_standstill_is_told(launcher):
    """stall= says where the ranks are, and they go on to their end."""
    process = launcher.start(command=[sys.executable, launcher.script(STALLS)])
    told = ""
    while "no rank was seen to advance for" not in told or "sleeps_on" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    (launcher.folder / "told").touch()
    out, told = process.communicate(timeout=240)
    assert process.returncode == 0, told
    cores = json.loads(out)
    if len(os.sched_getaffinity(0)) >= 2:
        assert not set(cores[0]) & set(cores[1])


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ({"binding": "socket"}, "auto, numa, core or none"),
        ({"ranks_per_gpu": 0}, "ranks_per_gpu must be at least 1"),
        ({"stall": -1}, "stall_s must be at least 0"),
    ],
)
def test_wrong_wishes_are_told(option, wanted):
    """What the supervisor refuses is an error here."""
    with pytest.raises(ConfigError, match=wanted):
        rankwise.run(os.getpid, num_ranks=1, **option)


def test_a_rank_that_leaves_without_a_value():
    """sys.exit(0) in the middle of a call is not taken for a value."""
    with pytest.raises(RankFailure, match="before it returned a value"):
        rankwise.run(lambda: sys.exit(0), num_ranks=1)


def test_an_argument_that_cannot_be_sent():
    """The error names the argument and its type, before anything is started."""
    with pytest.raises(ConfigError, match=r"argument lock of print, a lock, cannot be sent"):
        rankwise.run(print, 1, lock=threading.Lock(), num_ranks=1)


def test_a_value_that_cannot_be_sent():
    """The error names the rank, and the part of the value that is to blame."""
    with pytest.raises(RankFailure, match=r"\['a'\]\[1\] of the value of .* on rank 0, a lock, cannot be sent back"):
        rankwise.run(lambda: {"a": [0, threading.Lock()]}, num_ranks=1)


@pytest.mark.parametrize(
    "options", [{"num_ranks": 0}, {"num_ranks": 10**8}, {"num_ranks": 1, "tee": "loud"}, {"num_ranks": True + 0.5}]
)
def test_wrong_options_are_refused(options):
    """Options are judged before anything is started."""
    with pytest.raises(ConfigError):
        rankwise.run(print, **options)


async def asynchronous():
    pass


def generator():
    yield 1


@pytest.mark.parametrize(
    ("fn", "why"),
    [(5, "a function to call, got 5"), (asynchronous, "is asynchronous"), (generator, "is a generator function")],
)
def test_what_cannot_be_called_on_ranks_is_refused(fn, why):
    """Judged before anything is started: a coroutine or a generator would run nothing."""
    with pytest.raises(ConfigError, match=why):
        rankwise.run(fn, num_ranks=1)


def test_output_reaches_a_replaced_stdout(capsys):
    """Where sys.stdout is not the real one (a notebook, a test), the ranks' output arrives there."""
    rankwise.run(lambda: print("hello from", os.environ["RANK"]), num_ranks=2, tee="all")
    assert sorted(capsys.readouterr().out.splitlines()) == ["[1] hello from 1", "hello from 0"]


def test_restarts():
    """max_restarts starts all ranks again; the values are those of the last attempt."""

    def attempt():
        number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if number == 0:
            os._exit(1)
        return number

    assert rankwise.run(attempt, num_ranks=2, max_restarts=1) == [1, 1]


MAIN = """
    import os, pathlib, sys, time
    import rankwise

    class Value:
        def __init__(self, rank):
            self.rank = rank

    def make():
        return Value(int(os.environ["RANK"]))

    def wait():
        pathlib.Path("pid-" + os.environ["RANK"]).write_text(str(os.getpid()))
        time.sleep(1000)

    if {guard}:
        if len(sys.argv) > 1:
            rankwise.run(wait, num_ranks=2)
        values = rankwise.run(make, num_ranks=2, tee="all")
        print([type(value) is Value and value.rank for value in values])
"""


def test_functions_of_the_main_script(launcher):
    """A script's own function and class travel by name; what is guarded runs once."""
    script = launcher.script(MAIN.format(guard='__name__ == "__main__"'))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


GUARDED = """
    import os
    import rankwise
    from rankwise import Platform, wrapper

    class Value:
        def __init__(self, number):
            self.number = number

    if __name__ == "__main__":
        step = 10

        class Pair(Value):
            pass

        def add(value):
            return Pair(value.number + step + int(os.environ["RANK"]))

        @wrapper(Platform("job", "cpu", verbose=False))
        def task(start, *, global_rank, **given):
            return start + step + global_rank

        pairs = rankwise.run(add, Pair(1), num_ranks=2)
        print([(type(pair) is Pair, pair.number) for pair in pairs], task(5))
"""


def test_functions_under_the_guard(launcher):
    """What is defined under the guard, where a rank that imports the script does not come, travels by value."""
    command = [sys.executable, launcher.script(GUARDED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("[(True, 11), (True, 12)] [15]\n", "")


def test_functions_under_the_guard_without_cloudpickle(launcher):
    """Without cloudpickle the error says where the function stands, and what to do."""
    script = launcher.script('import sys; sys.modules["cloudpickle"] = None\n' + textwrap.dedent(GUARDED))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1
    assert "put it into a module or above that line, or pip install cloudpickle" in done.stderr


def test_as_many_ranks_as_there_are_gpus(capsys, monkeypatch):
    """num_ranks="auto" is one rank where no GPU is visible, and says so; another word is refused."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert rankwise.run(os.getenv, "WORLD_SIZE", num_ranks="auto") == ["1"]
    assert "starting 1 rank (num_ranks N starts" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="num_ranks must be a number"):
        rankwise.run(os.getenv, "WORLD_SIZE", num_ranks="many")


def test_a_script_without_guard_is_told(launcher):
    """A script that would start ranks in its ranks is refused with the line to add."""
    done = subprocess.run(
        [sys.executable, launcher.script(MAIN.format(guard="True"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 1
    assert 'under if __name__ == "__main__":' in done.stderr


def test_without_cloudpickle_a_lambda_is_refused(monkeypatch):
    """The error names the package that would help."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ConfigError, match="pip install cloudpickle"):
        rankwise.run(lambda: 1, num_ranks=1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_caller(launcher, is_alive, wait_until, number):
    """The caller's end, by kill -9 or by Ctrl-C, leaves no rank."""
    script = launcher.script(MAIN.format(guard='__name__ == "__main__"'))
    process = launcher.start(command=[sys.executable, script, "wait"])
    pids = launcher.pids("pid-0", "pid-1")
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    wait_until(lambda: not any(map(is_alive, pids)))
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)


def test_an_interrupt_while_the_supervisor_starts(monkeypatch, capfd):
    """It ends with KeyboardInterrupt and nothing else, also before the supervisor is ready or has the whole call."""
    listen, calls = caller._listen, []

    def interrupted(link, streams):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return listen(link, streams)

    monkeypatch.setattr(caller, "_listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rankwise.run(lambda: threading.Event().wait(), num_ranks=1)
    assert "launch/functions/service.py" not in capfd.readouterr().err


@pytest.mark.parametrize("value", [1, Path("here")])
def test_a_variable_that_is_no_text_is_refused(value):
    """The error is about the option, not about a supervisor that has ended."""
    with pytest.raises(ConfigError, match=f"must be .*text.*, got {re.escape(repr(value))}"):
        rankwise.run(print, num_ranks=1, env={"A": value})


def test_a_default_timeout_of_sockets_is_not_for_the_supervisor():
    """A program that limits its own connections waits for its ranks as long as they take."""
    socket.setdefaulttimeout(0.01)
    try:
        assert rankwise.run(os.getenv, "RANK", num_ranks=1) == ["0"]
    finally:
        socket.setdefaulttimeout(None)


def test_an_interrupt_while_a_call_is_sent(capfd):
    """A call that was not sent whole is not waited for."""

    def interrupted(_line, _message):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caller, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rankwise.run(print, num_ranks=1)
    assert capfd.readouterr().err == ""


def test_the_service_that_dies_is_an_error(launcher, wait_until, is_alive):
    """When the supervisor's process is killed, the caller hears of it and the ranks are gone."""
    name = launcher.folder / "pid"

    def die():
        name.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()

    with pytest.raises(LaunchError, match="the supervisor of the ranks exited with -9"):
        rankwise.run(die, num_ranks=1)
    wait_until(lambda: not is_alive(int(name.read_text())))


def test_a_character_that_a_file_cannot_hold_does_not_end_the_ranks(tmp_path):
    """It is written as Python writes it in source text."""
    with (tmp_path / "out").open("w", encoding="ascii") as file, contextlib.redirect_stdout(file):
        rankwise.run(lambda: print("na\u00efve"), num_ranks=1)
    assert (tmp_path / "out").read_text() == "na\\xefve\n"


def test_numbers_of_numpy_are_numbers():
    """Also as options."""
    values = rankwise.run(
        os.getenv, "WORLD_SIZE", num_ranks=np.int64(2), max_restarts=np.int32(1), timeout=np.float32(200)
    )
    assert values == ["2", "2"]
