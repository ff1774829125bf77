"""Hangs on a real Slurm: `rankwise watch --slurm` for two jobs and a silent node; RANKWISE_WATCH under plain srun."""

import json
import os
import signal
import sys
import time

# in each job the rank of the second node prepares for ever while the first one waits for it
HANGS = """
import sys
import time

import torch
import torch.distributed as dist

import rankwise
from rankwise import vitals


def prepares_for_ever():
    open(sys.argv[1], "w").close()
    time.sleep(1000)


with rankwise.bind(device="cpu", timeout=900) as world:
    for step in range(int(sys.argv[2])):
        vitals.beat(epoch=0, step=step)
        dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        prepares_for_ever()
    dist.all_reduce(torch.ones(1))
"""
CALLS = {"first": 3, "second": 5}


def hanging(cluster, *names):
    """Start jobs; return their numbers, by name, once all hang."""
    script = cluster.write("hangs.py", HANGS)
    submit = ("run", "--slurm", "--nodes", "2", "--nproc", "1", "--cpus-per-task", "1", "--mem", "500M", "--detach")
    jobs = {
        name: cluster.rankwise(*submit, "--run-dir", name, script, name + ".hangs", str(CALLS[name])).stdout.strip()
        for name in names
    }
    for name in jobs:
        cluster.until(lambda name=name: (cluster.folder / f"{name}.hangs").exists())
    return jobs


def test_all_nodes_of_a_job_are_asked_and_no_other_job(cluster):
    """Which rank has not joined which call; as text and as JSON; by number, with a step, from inside another job."""
    line = HANGS.splitlines().index("    time.sleep(1000)")  # its first line is empty, and not written
    jobs = hanging(cluster, *CALLS)
    for name, job in jobs.items():
        text = cluster.rankwise("watch", "--slurm", job).stdout
        number = CALLS[name] + 1
        assert f"rank 1 has not joined all_reduce #{number} of the default group (rank 0 waits there" in text, text
        assert f"hangs.py:{line} in prepares_for_ever" in text, text
        assert "---- rank 0: epoch 0" in text
        assert "node node" not in text
    found = json.loads(cluster.rankwise("watch", "--slurm", f"{jobs['first']}.0", "--json").stdout)
    assert (found["verdict"]["kind"], found["verdict"]["ranks"]) == ("missing", [1])
    assert sorted(found["stacks"]) == ["0", "1"]
    assert found["silent_nodes"] == {}


def test_what_cannot_be_asked_is_named(cluster):
    """A job that is unknown, waits or has no ranks in a step; a node that does not answer in time."""
    waiting = cluster.sbatch("--hold", "--mem=10M", script="#!/bin/sh\nsleep 1\n")
    first = hanging(cluster, "first")["first"]
    for words, said in (
        (["--slurm", first, "123"], "not both"),
        (["--slurm", "999999"], "Slurm has no job '999999'"),
        (["--slurm", waiting], f"job {waiting} is PENDING (JobHeldUser)"),
        (["--slurm", f"{first}.7"], f"no node of job {first} answered: node1: no ranks of step 7"),
    ):
        begun = time.monotonic()
        done = cluster.rankwise("watch", *words, check=False)
        assert done.returncode != 0
        assert said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        took_s = time.monotonic() - begun
    limit_s = min(25, 4 + int(5 * took_s))  # as slow as the machine is: the other node has just answered in `took_s`
    cluster.lab.suspend("node2")
    try:
        done = cluster.rankwise("watch", "--slurm", first, "--timeout", limit_s)
    finally:
        cluster.lab.suspend("node2", resume=True)
    assert "---- rank 0: epoch 0" in done.stdout, done.stdout + done.stderr
    assert f"node node2: no answer within {limit_s} s" in done.stdout


# knows nothing of rankwise
PLAIN = """
import os
import time

import torch
import torch.distributed as dist

rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=2)
for step in range(3):
    if rank == 1 and step == 2:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))
"""


def test_a_variable_watches_a_script_under_srun(cluster):
    """One task on each of two nodes: the rank that stopped and its line are told in the log of the step."""
    script = cluster.write("plain.py", PLAIN)
    cluster.env["RANKWISE_WATCH"] = "6"
    srun = ("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--mem=500M", "--output=plain.log")
    process = cluster.start(*srun, sys.executable, "-P", script, start_new_session=True)
    try:
        # on a busy machine they may stand still before, while one of them is still importing
        said = "rank 1 has not joined all_reduce #3 of the default group (rank 0 waits there"
        cluster.until(lambda: "saved as" in cluster.text("plain.log").partition(said)[2] or process.poll() is not None)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    text = cluster.text("plain.log")
    assert said in text, text
    line = PLAIN.splitlines().index("        time.sleep(1000)")
    assert f"plain.py:{line} in <module>" in text, text
