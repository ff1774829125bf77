"""The command line on a real Slurm: errors before the queue, what is submitted, following, cancelling, restarts."""

import json
import signal

import pexpect
import pytest

# "gpus" tells the devices of the task; "bind" binds to what there is; "wait" stands until it is ended
RANK = """
import os
import sys
import time

rank = int(os.environ["RANK"])
print("rank", rank, "devices", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
if "bind" in sys.argv:
    import rankwise

    with rankwise.bind(timeout=200):
        pass
if "once" in sys.argv and rank == 1 and not os.path.exists("failed"):
    open("failed", "w").close()
    sys.exit(3)
while "wait" in sys.argv and not os.path.exists("go"):
    time.sleep(0.05)
print("rank", rank, "is done", flush=True)
"""
SUBMIT = ("run", "--slurm", "--mem", "200M", "--time", "10m")


@pytest.fixture
def here(cluster):
    """The lab, with the script in the folder."""
    cluster.write("rank.py", RANK)
    return cluster


def submit(cluster, *words):
    return cluster.rankwise(*SUBMIT, "--detach", *words).stdout.strip()


def log(cluster, job, stream="err"):
    return cluster.text(f"runs/slurm/{job}/{job}_0_log.{stream}")


def test_what_would_wait_for_ever_is_refused_before_the_queue(here):
    """Unknown partition, its limits of time, nodes, cores, GPUs and accounts, options that differ: each by name."""
    cases = [
        (["--partition", "nowhere"], "no partition 'nowhere' here; there are closed, general, high, short"),
        (["--partition", "short", "--time", "3m"], "'short' has a time limit of 2 minutes, --time is 3"),
        (["--nodes", "3"], "'general' allows at most 2 node(s) per job, --nodes is 3"),
        (["--partition", "short", "--time", "1m", "--nodes", "2"], "'short' allows at most 1 node(s) per job"),
        (["--partition", "closed", "--account", "biology"], "for the account(s) physics, not for --account biology"),
        (["--nproc", "2", "--cpus-per-task", "2"], "has 2 cores, ranks x --cpus-per-task need 4"),
        (["--gpus-per-node", "3"], "has 2 GPU(s), --gpus-per-node is 3"),
        (["--gpus-per-node", "2", "--slurm-arg", "gres=gpu:2"], "--slurm-arg gres"),
        (["--slurm-arg", "time=5"], "use --time"),
        (["--requeue", "--max-requeues", "0"], "contradict"),
        (["--constraint", "nothing"], "Slurm refuses the job (nodes=1, mem=200M, constraint=nothing)"),
    ]
    for words, message in cases:
        done = here.rankwise(*SUBMIT, *words, "rank.py", check=False)
        assert message in done.stderr, (words, done.stderr)
        assert done.returncode != 0, words
    assert here.run("squeue", "--noheader", "--states", "PD,R").stdout == ""
    first_of_two = here.rankwise(*SUBMIT, "--detach", "--partition", "short,general", "rank.py").stdout.strip()
    assert first_of_two.isdigit()


def test_the_batch_script_is_shown_and_is_what_is_submitted(here):
    """`--dry-run` submits nothing; GPUs, a container and further options of sbatch are in the script that Slurm has."""
    words = ("--nodes", "2", "--gpus-per-node", "2", "--slurm-arg", "comment=hello", "--slurm-arg", "hold", "rank.py")
    shown = here.rankwise(*SUBMIT, "--dry-run", *words).stdout.splitlines()
    assert here.run("squeue", "--noheader", "--states", "PD,R").stdout == ""
    job = submit(here, "--container", "image.sqsh", *words)
    script = here.run("scontrol", "write", "batch_script", job, "-").stdout.splitlines()
    options = {line for line in script if line.startswith("#SBATCH")}
    assert options == {line for line in shown if line.startswith("#SBATCH")}
    assert {"#SBATCH --gpus-per-node=2", "#SBATCH --comment=hello", "#SBATCH --hold", "#SBATCH --nodes=2"} <= options
    here.lab.wait(job, "PENDING")
    (listed,) = json.loads(here.rankwise("jobs", "--json").stdout)
    assert (listed["job"], listed["state"], listed["reason"]) == (job, "PENDING", "JobHeldUser")
    done = here.rankwise("cancel", job)
    assert f"job {job} (rank) is cancelled" in done.stderr
    assert here.lab.wait(job, "CANCELLED")
    # srun here has no plugin for containers: its own word on the option shows that it was handed to it
    job = submit(here, "--container", "image.sqsh", "rank.py")
    here.lab.wait(job, "FAILED")
    assert "container-image" in log(here, job)
    assert "goes back into the queue" not in log(here, job), "a srun that cannot start is no lost node"


def test_gpus_are_given_and_never_replaced_by_the_cpu(here):
    """Each task has its GPUs; a rank that cannot see them ends, naming node, what was given and what was seen."""
    done = here.rankwise(
        *SUBMIT, "--nodes", "2", "--gpus-per-node", "1", "--tee", "all", "rank.py", "bind", check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("devices 0") == 2
    assert "Slurm has given this task GPUs (SLURM_GPUS_ON_NODE=1" in done.stderr
    assert "CUDA_VISIBLE_DEVICES=0" in done.stderr
    assert "Exited with exit code" not in done.stderr, "srun repeats what was told"


def test_a_job_is_detached_followed_and_cancelled(here):
    """Following from elsewhere sees the output as it comes, and the end; jobs that cannot be found say why."""
    job = submit(here, "--nodes", "2", "--nproc", "1", "--tee", "all", "rank.py", "wait")
    follower = here.start("rankwise", "logs", job, "--follow")
    assert "rank " in follower.stdout.readline()
    (listed,) = json.loads(here.rankwise("jobs", "--json").stdout)
    assert (listed["job"], listed["state"], listed["nodes"]) == (job, "RUNNING", "node[1-2]")
    (here.folder / "go").touch()
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, err
    assert out.count("is done") == 2
    here.lab.wait(job, "COMPLETED")
    own = here.sbatch("--hold", script="#!/bin/sh\n")
    theirs = here.run("sbatch", "--parsable", "--hold", "--uid=nobody", "--output=/dev/null", "batch.sh").stdout.strip()
    messages = {
        own: "scancel",
        theirs: "belongs to user nobody",
        "99999": "does not know job 99999",
        "x": "must be a number, got 'x'",
    }
    for name, message in messages.items():
        done = here.rankwise("cancel", name, check=False)
        assert message in done.stderr, done.stderr
        assert done.returncode != 0
    here.run("scancel", own, theirs)


def test_ctrl_c_while_following_says_how_to_cancel(here):
    """Where nobody can be asked the first says what the second does; the job is gone after it."""
    follower = here.start("rankwise", *SUBMIT, "rank.py", "wait")
    line = ""
    while "runs on" not in line:
        line = follower.stderr.readline()
        assert line, "the follower has ended"
    job = line.split()[2]
    follower.send_signal(signal.SIGINT)
    line = follower.stderr.readline()
    while "Ctrl-C" not in line:
        line = follower.stderr.readline()
        assert line, "the follower has ended"
    assert f"a second Ctrl-C cancels job {job}" in line
    assert here.lab.state(job)["JobState"] == "RUNNING"
    follower.send_signal(signal.SIGINT)
    err = follower.communicate(timeout=240)[1]
    assert follower.returncode == 130
    assert f"job {job} is cancelled" in err
    here.lab.wait(job, "CANCELLED")


def test_ctrl_c_on_a_terminal_asks(here):
    """In a real pseudo-terminal: no goes on, detach leaves the job running, yes cancels it, as a second Ctrl-C does."""
    question = r"cancel job (\d+)\? \[y\]es, \[d\]etach \(it keeps running\), \[n\]o: "
    jobs = []
    for answers in (["no", "detach"], ["yes"], ["\x03"]):
        terminal = pexpect.spawn(
            "rankwise", [*SUBMIT, "rank.py", "wait"], cwd=here.folder, env=here.env, encoding="utf-8", timeout=240
        )
        terminal.expect("runs on node")
        for answer in answers:
            terminal.sendintr()
            terminal.expect(question)
            jobs.append(terminal.match[1])
            terminal.send(answer) if answer == "\x03" else terminal.sendline(answer)
            if answer == "no":
                terminal.expect(f"following job {jobs[0]}")
        terminal.expect(
            f"job {jobs[-1]} keeps running: rankwise logs {jobs[-1]} --follow"
            if "detach" in answers
            else "is cancelled"
        )
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 130
    assert jobs[0] == jobs[1]
    assert here.lab.state(jobs[0])["JobState"] == "RUNNING"
    for job in jobs[2:]:
        here.lab.wait(job, "CANCELLED")


def test_a_failure_on_one_node_restarts_all(here):
    """`--max-restarts` counts over all nodes; the second attempt has logs of its own."""
    done = here.rankwise(
        *(*SUBMIT, "--nodes", "2", "--nproc", "1", "--max-restarts", "1", "--run-dir", "run", "rank.py", "once")
    )
    assert "starting all ranks again, restart 1 of 1" in done.stderr
    assert "rank 1 of 2 on node2" in done.stderr
    assert "is done" in (here.folder / "run" / "logs" / "attempt-1" / "rank-1.out").read_text()
