"""A real Slurm ends a job from outside: its time limit, a lost node."""

import json
import time

SUBMIT = ("run", "--slurm", "--nodes", "2", "--nproc", "1", "--cpus-per-task", "2", "--mem", "500M", "--run-dir", "run")


def holding(cluster, process):
    """Wait until the training stands in its fifth step, or 45th; returns the job."""
    cluster.until(lambda: (cluster.folder / "holding").exists() or process.poll() is not None)
    (job,) = json.loads(cluster.rankwise("jobs", "--json").stdout)
    assert job["state"] == "RUNNING", process.communicate() if process.poll() is not None else job
    return job["job"]


def console(cluster, job):
    return cluster.text(f"run/logs/slurm/{job}/{job}_0_log.err")


def change_limit(cluster, job, minutes):
    cluster.lab.command("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")


def test_at_the_time_limit_a_job_saves_and_goes_on_in_the_same_bits(cluster, undisturbed):
    """The warning comes a quarter of the limit before it, not at once; all save, the rest follows after the requeue."""
    cluster.write_training()
    follower = cluster.start("rankwise", *SUBMIT, "--time", "1m", "train.py", "hold")
    standing, late_s = cluster.folder / "holding", time.monotonic() + 25
    cluster.until(lambda: standing.exists() or follower.poll() is not None or time.monotonic() > late_s)
    if not standing.exists():  # on a busy machine the warning may not come before the training
        change_limit(cluster, cluster.lab.command("squeue", "--noheader", "--format=%i"), minutes=4)
    job = holding(cluster, follower)
    assert "time limit is" not in console(cluster, job)
    cluster.until(lambda: "the time limit is 15 s away" in console(cluster, job))
    change_limit(cluster, job, minutes=20)  # saving takes as long as it needs
    (cluster.folder / "go").touch()
    cluster.lab.start_requeued(job)
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, out + err
    assert "steps 80" in out
    assert f"job {job} goes back into the queue (requeue 1 of at most 100)" in err
    first, second = cluster.restored_steps()
    assert first == 0
    assert 1 <= second < 80
    assert (cluster.weights() == undisturbed).all()


def test_a_lost_node_is_named_and_its_job_requeued(cluster, undisturbed):
    """All processes of a node end at once, slurmd too; the job goes on from its newest checkpoint, to the same bits."""
    cluster.write_training()
    follower = cluster.start("rankwise", *SUBMIT, "--time", "20m", "train.py", "hold", "late")
    job = holding(cluster, follower)
    try:
        cluster.lab.kill("node2")
        cluster.until(lambda: "Node failure on node2" in console(cluster, job))
        cluster.lab.wait(job, "PENDING")
    finally:
        cluster.lab.revive("node2")
    (cluster.folder / "go").touch()
    cluster.lab.start_requeued(job)
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, out + err
    assert "Node failure on node2" in err
    assert cluster.lab.state(job)["Restarts"] == "1"
    assert cluster.restored_steps() == [0, 40]
    assert (cluster.weights() == undisturbed).all()
