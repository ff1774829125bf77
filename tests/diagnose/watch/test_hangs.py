"""Jobs of 4 real ranks that hang, watched by one variable: the verdict names the culprit and the line."""

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankwise.diagnose.watch.jobs import running_jobs
from rankwise.testing.held_ports import hold_port

JOB = Path(__file__).with_name("job.py")
SECONDS = 240


def line_of(text):
    """Where in the job's script a statement stands."""
    return f"job.py:{JOB.read_text().splitlines().index(text) + 1}"


CASES = {
    "missing": (
        ["rank 2 has not joined all_reduce #4 of the default group", "ranks 0-1,3 wait there"],
        "time.sleep(600)",
    ),
    "apart": (["rank 3 has not joined all_reduce #4", "ranks 0-2 wait there"], None),
    "busy": (["rank 0 has not joined", "ranks 1-3 wait there"], None),
    "swapped": (["the operation of call #4 of the default group differs", "rank 3 called broadcast"], None),
    "source": (
        ["the arguments of call #4 of the default group differ: ", "rank 1 called broadcast with arguments src 1"],
        None,
    ),
    "crossed": (["different groups", "ranks 0-1", "ranks 2-3"], None),
    "locked": (["rank 1 has not joined all_reduce #4", "holds the interpreter lock"], None),
    "stopped": (["rank 3 is stopped (SIGSTOP)", "ranks 0-2 wait in all_reduce #4"], None),
    "gone": (["rank 1 has ended"], None),
    "shape": (["rank 2 has not joined all_reduce #5", "rank 3 called all_reduce with"], None),
    "dtype": (["rank 2 has not joined all_reduce #5", "rank 3 called all_reduce with"], None),
    "reduction": (["rank 2 has not joined all_reduce #5", "rank 3 called all_reduce with arguments op MAX"], None),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """All of them at once, in a folder with their outputs; killed in the end."""
    folder = tmp_path_factory.mktemp("hangs")
    ports = {name: str(hold_port()) for name in [*CASES, "called", "moving", "orphaned"]} | {"busy": "file"}
    process = subprocess.Popen(
        [sys.executable, JOB, folder, *(f"{name}={port}" for name, port in ports.items())],
        env={**os.environ, "RANKWISE_WATCH": "6", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    launchers = dict(zip(ports, process.stdout.readline().split(), strict=True))
    yield folder, launchers
    process.communicate("", timeout=60)


def wait_for(path, pattern):
    """Return the text of a file once it holds the pattern."""
    deadline = time.monotonic() + SECONDS
    text = ""
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if re.search(pattern, text):
            return text
        time.sleep(0.1)
    raise AssertionError(f"{path.name} has no {pattern!r}:\n{text}")


def wait_for_report(path, part):
    """Return the text of a log up to the saved report that holds a part, and that report's verdict.

    Reports before it are about the start: on a busy machine the ranks may take longer to meet than they are given.
    """
    text = wait_for(path, f"(?s){re.escape(part)}.*saved as .*\n")
    at = text.index(part)
    text = text[: text.index("\n", text.index("saved as ", at))]
    return text, text[max(text.rfind("saved as ", 0, at), 0) :].partition("----")[0]


@pytest.mark.parametrize("case", CASES)
def test_the_culprit_is_named(jobs, case):
    """One variable in the environment is enough: who, which call, which line; told once, and saved."""
    parts, statement = CASES[case]
    text, verdict = wait_for_report(jobs[0] / f"{case}.log", parts[0])
    for part in parts:
        assert part in verdict, text
    if statement is not None:
        assert line_of(f"    {statement}") in verdict, text
    assert text.count("no rank has advanced") == len(re.findall("saved as", text)), text
    saved = json.loads(Path(text.rpartition("saved as ")[2]).with_suffix(".json").read_text())
    assert [state["rank"] for state in saved["states"]] == [0, 1, 2, 3]
    assert saved["verdict"]["text"] in text


def test_the_script_asks_for_it_itself(jobs):
    """`rankwise.watch(stall_s=, folder=)` counts more than the variable."""
    text, _ = wait_for_report(jobs[0] / "called.log", "rank 2 has not joined all_reduce #")
    assert line_of("    time.sleep(600)") in text
    assert len(list((jobs[0] / "called" / "answers").glob("*.json"))) >= 1


def test_ranks_whose_store_is_gone_answer_for_themselves(jobs):
    """Rank 0 has ended, and the store with it: each of the others says so, once, and on which line it is."""
    path = jobs[0] / "orphaned.log"
    for rank in (1, 2, 3):
        text = wait_for(path, f"rank {rank} has not advanced for .* the job's store does not answer")
    wait_for(path, f"(?s)({line_of('    time.sleep(600)')} in load.*){{3}}")
    assert "(rank 0 or the launcher) has ended" in text
    assert text.count("rank 1 has not advanced") == 1


def test_who_moves_is_left_alone(jobs):
    """A job whose ranks go on calling hears nothing, however long the others hang."""
    wait_for(jobs[0] / "missing.log", "rank 2 has not joined all_reduce #4")
    told = wait_for(jobs[0] / "moving.log", "all ranks move").partition("all ranks move")[2]
    assert "no rank has advanced" not in told, told


def test_a_running_job_is_looked_at_on_demand(jobs):
    """`rankwise watch PID` asks the ranks at once, from another process; where several jobs run it wants a choice."""
    folder, launchers = jobs
    wait_for_report(folder / "missing.log", "rank 2 has not joined all_reduce #4")
    command = [sys.executable, "-m", "rankwise", "watch"]
    done = subprocess.run(
        [*command, launchers["missing"]], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "rank 2 has not joined all_reduce #4" in done.stdout
    assert "job.py" in done.stdout
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 2
    assert "needs one running job" in done.stderr
    assert launchers["missing"] in done.stderr
    done = subprocess.run([*command, "--list"], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert set(launchers.values()) - {launchers["moving"]} <= {line.split()[0] for line in done.stdout.splitlines()}


def test_two_jobs_of_one_parent(jobs):
    """A shell is the parent of all programs that it starts: each is a job, and is asked by one of its ranks."""
    folder, launchers = jobs
    wait_for(folder / "moving.log", "all ranks move")
    wait_for_report(folder / "called.log", "rank 2 has not joined all_reduce #")
    found = [job for job in running_jobs() if str(job.launcher) == launchers["called"]]
    assert [[vital.rank for vital in job.ranks] for job in found] == [[0, 1, 2, 3]] * 2
    assert [job.pid for job in found] == [job.ranks[0].pid for job in found]


def has_open(process, path):
    """Whether a process has a file open now, or has ended."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # the process, or a descriptor that it has closed meanwhile
        for number in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(number.readlink())
    return process.poll() is not None or path in found


def test_two_watchers_at_once_both_get_whole_answers(jobs):
    """Two whole processes ask the same four ranks: held back until both want the stacks of rank 0."""
    folder, launchers = jobs
    wait_for_report(folder / "missing.log", "rank 2 has not joined all_reduce #4")
    [job] = [found for found in running_jobs() if str(found.launcher) == launchers["missing"]]
    stacks = job.ranks[0].folder / "stacks-0"
    command = [sys.executable, "-m", "rankwise", "watch", launchers["missing"], "--json"]
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(stacks.open("rb"))
        fcntl.flock(held, fcntl.LOCK_EX)
        watchers = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(2)]
        release_s = time.monotonic() + SECONDS
        while time.monotonic() < release_s:
            waiting = [has_open(each, stacks.resolve()) for each in watchers]
            if all(waiting):
                break
            if any(waiting):  # who waits for a second for its turn asks without
                release_s = min(release_s, time.monotonic() + 0.5)
            time.sleep(0.01)
        fcntl.flock(held, fcntl.LOCK_UN)
        told = [json.loads(each.communicate(timeout=SECONDS)[0]) for each in watchers]
    assert [each.returncode for each in watchers] == [0, 0]
    for found in told:
        assert (found["verdict"]["kind"], found["verdict"]["ranks"]) == ("missing", [2])
        assert line_of("    time.sleep(600)") in found["verdict"]["text"]
        assert [state["rank"] for state in found["states"] if state["groups"]] == [0, 1, 2, 3]
        for rank, text in found["stacks"].items():  # neither cut off nor with those of the other's question
            assert len(re.findall(r"in <module>$", text, re.MULTILINE)) == 1, (rank, text)
