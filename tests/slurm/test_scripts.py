"""`rankwise run` and `srun python` on a real Slurm: submitted, in batch scripts, in allocations; requeue and resume."""

import json

import numpy as np

PLACE = """
import os
import sys

import rankwise

with rankwise.bind(timeout=200) as world:
    total = world.all_reduce(world.rank, op="sum")
    print("rank", world.rank, "of", world.world_size, "on", os.uname().nodename, "sum", total, flush=True)
    world.barrier()  # all have spoken before one fails, which ends the others
    if "fail" in sys.argv and world.rank == 3:
        raise ValueError("no luck")
"""


def lines(text, word):
    return sorted(line for line in text.splitlines() if word in line)


def test_a_script_is_submitted_and_followed(cluster):
    """The queue, the output as it comes, the exit code, files of each rank; then it is found again by its number."""
    cluster.write("place.py", PLACE)
    done = cluster.rankwise(
        *("run", "--slurm", "--partition", "general", "--nodes", "2", "--nproc", "2", "--time", "10m", "--mem", "500M"),
        *("--tee", "all", "--run-dir", "runs/a", "place.py", "fail"),
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(lines(done.stdout, "of 4 on node")) == 4
    assert "rank 0 of 4 on node1 sum 6" in done.stdout.splitlines()
    assert "[3] rank 3 of 4 on node2 sum 6" in done.stdout
    assert "rank 3 of 4 on node2 raised ValueError: no luck" in done.stderr
    assert done.stderr.count('raise ValueError("no luck")') == 1
    assert "runs on node[1-2]" in done.stderr
    (job,) = json.loads(cluster.rankwise("jobs", "--all", "--json").stdout)
    assert (job["name"], job["state"], job["ranks"]) == ("place", "FAILED", "4")
    assert job["folder"] == str(cluster.folder / "runs" / "a")
    said = cluster.rankwise("logs", job["job"], "--rank", "2")
    assert said.stdout.splitlines() == ["rank 2 of 4 on node2 sum 6"]
    assert "has ranks 0 to 3" in cluster.rankwise("logs", job["job"], "--rank", "4", check=False).stderr


def test_a_preempted_job_saves_is_requeued_and_ends_in_the_same_bits(cluster, undisturbed):
    """A job of higher priority takes the nodes in mid-epoch; who follows the first one sees its end, exit code 0."""
    cluster.write_training()
    follower = cluster.start(
        *("rankwise", "run", "--slurm", "--nodes", "2", "--nproc", "1", "--cpus-per-task", "2", "--mem", "500M"),
        *("--run-dir", "run", "train.py", "hold"),
    )
    cluster.until(lambda: (cluster.folder / "holding").exists() or follower.poll() is not None)
    (job,) = json.loads(cluster.rankwise("jobs", "--json").stdout)
    assert job["state"] == "RUNNING", follower.communicate() if follower.poll() is not None else job
    urgent = cluster.run("sbatch", "--parsable", "-p", "high", "-N2", "-c2", "--mem=500M", "--wrap", "srun -N2 true")
    log = cluster.folder / "run" / "logs" / "slurm" / job["job"] / f"{job['job']}_0_log.err"
    cluster.until(lambda: cluster.text(log).count("SIGTERM: asking the ranks to end") == 2)
    (cluster.folder / "go").touch()
    cluster.lab.start_requeued(job["job"])
    cluster.lab.wait(urgent.stdout.strip(), "COMPLETED")
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, out + err
    assert "steps 80" in out
    assert "goes back into the queue" in err
    assert "requeued 1 time(s)" in err
    first, second = cluster.restored_steps()
    assert first == 0
    assert 1 <= second < 80
    assert (cluster.weights() == undisturbed).all()


def test_a_batch_script_of_ones_own_is_warned_saves_and_is_requeued(cluster, undisturbed):
    """`--signal=B:` reaches the batch shell alone, which rankwise run has taken the place of."""
    cluster.write_training()
    job = cluster.sbatch(
        "-N2",
        script="""
        #!/bin/bash
        #SBATCH --signal=B:USR1@300 --requeue --mem=500M
        exec rankwise run --requeue --nproc 1 --run-dir run train.py hold
        """,
    )
    cluster.until((cluster.folder / "holding").exists)
    assert "Slurm job" in cluster.text("batch.log")
    cluster.lab.command("scancel", "--batch", "--signal=USR1", job)
    (cluster.folder / "go").touch()
    cluster.lab.start_requeued(job)
    found = cluster.lab.wait(job, "COMPLETED", "FAILED", "NODE_FAIL")
    log = cluster.text("batch.log")
    assert found["JobState"] == "COMPLETED", (found, log)
    assert "steps 80" in log, (found, log)
    assert f"Slurm job {job}: 2 rank(s), 1 on each of 2 node(s) node[1-2], requeued 1 time(s)" in log
    assert 1 <= cluster.restored_steps()[1] < 80
    assert (cluster.weights() == undisturbed).all()


def test_a_batch_shell_that_would_die_of_the_warning_is_named(cluster):
    """Without `exec`, and without a trap, the shell dies and the job with it: said at the start, with the mend."""
    cluster.write("place.py", "print('a rank has run')")
    script = """
        #!/bin/bash
        #SBATCH --signal=B:USR1@300 --mem=500M
        {}
        rankwise run --nproc 1 place.py
        """
    warned = cluster.sbatch(script=script.format(""))
    cluster.lab.wait(warned, "COMPLETED")
    assert "exec rankwise run" in cluster.text("batch.log")
    (cluster.folder / "batch.log").unlink()
    caught = cluster.sbatch(script=script.format("trap : USR1"))
    cluster.lab.wait(caught, "COMPLETED")
    assert "a rank has run" in cluster.text("batch.log")
    assert "exec rankwise run" not in cluster.text("batch.log")


def test_srun_python_finds_its_place_and_trains_to_the_same_numbers(cluster, undisturbed):
    """Two tasks on one node, one on another, no launcher of ours: as two ranks of a launcher, within rounding."""
    cluster.write_training()
    job = cluster.sbatch(
        *("-N2", "-n3", "--mem=500M"),
        script="""
        #!/bin/bash
        export RANKWISE_RUN_DIR=run
        srun python train.py
        """,
    )
    cluster.lab.wait(job, "COMPLETED", "FAILED")
    log = cluster.text("batch.log")
    places = [f"rank {rank} of 3 on node{1 + rank // 2}" for rank in range(3)]
    assert lines(log, "of 3 on node") == places, log
    assert "steps 80" in log
    np.testing.assert_allclose(cluster.weights(), undisturbed, rtol=1e-12)


def test_what_an_allocation_leaves_in_a_shell_does_no_harm(cluster):
    """In salloc's shell rankwise run uses all nodes and says so, python is one rank, srun rankwise is refused."""
    cluster.write("place.py", PLACE)
    done = cluster.run(
        *("salloc", "-N2", "--ntasks-per-node=2", "--mem=500M", "bash", "-c"),
        "rankwise run --nproc 1 --tee all place.py; python place.py; srun rankwise run --nproc 2 place.py",
        check=False,
    )
    assert len(lines(done.stdout, "of 2 on node")) == 2, done.stdout + done.stderr
    assert "2 rank(s), 1 on each of 2 node(s) node[1-2]" in done.stderr
    assert len(lines(done.stdout, "rank 0 of 1 on")) == 1
    assert "leave srun out" in done.stderr
