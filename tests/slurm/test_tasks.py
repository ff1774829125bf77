"""`Wrapper` on a real Slurm of two nodes: values, failures, cancelling, the end."""

import json
import stat

TASKS = """
import json
import os
import sys

import rankwise
from rankwise import Platform, Wrapper, wrapper


def total(start, *, global_rank, local_rank, group, platform):
    import torch
    import torch.distributed as dist

    if start < 0 and global_rank == 3:
        raise KeyError("mine")
    print("rank", global_rank, "has said hello")
    value = torch.tensor(start + global_rank)
    dist.all_reduce(value, group=group)
    return value.item(), local_rank, os.uname().nodename


def finish():
    with open("finished", "w") as file:
        file.write(os.uname().nodename)


def make(**fields):
    return Platform(device="slurm", n_nodes=2, num_ranks=2, n_cpus_per_node=2, mem_per_node=1, timeout_min=10,
                    console_logs="logs", name="sum", **fields)


if __name__ == "__main__":
    comment = {"comment": "nothing"}
    good = Wrapper(make(upon_finish=finish, slurm_additional_parameters=comment)).start(total, 10)
    bad = Wrapper(make(ipc_protocol="file")).start(total, -10)
    dropped = wrapper(make())(total)(0)
    dropped.cancel()
    said = {"job": good.job_id, "values": good.result(), "state": good.state, "logs": good.logs(),
            "of_rank_3": good.logs(3)}
    try:
        bad.result()
    except rankwise.RankFailure as failure:
        said["failure"] = [failure.rank, failure.traceback, str(failure)]
    try:
        dropped.result()
    except rankwise.errors.LaunchError as error:
        said["dropped"] = str(error)
    print(json.dumps(said))
"""


def test_a_task_is_submitted_and_its_values_come_back(cluster):
    """Values by rank, a failing rank's own traceback, a cancelled job, `upon_finish`; pickles are private."""
    cluster.write("tasks.py", TASKS)
    said = json.loads(cluster.run("python", "tasks.py").stdout)
    assert said["values"] == [[46, 0, "node1"], [46, 1, "node1"], [46, 0, "node2"], [46, 1, "node2"]]
    assert said["state"] == "COMPLETED"
    assert said["of_rank_3"].splitlines()[-1] == "rank 3 has said hello"
    assert "[2] rank 2 has said hello" in said["logs"]
    assert cluster.text("finished") == "node1"
    rank, traceback, text = said["failure"]
    assert rank == 3
    assert 'raise KeyError("mine")' in traceback
    assert "rank 3 of 4 on node2 raised KeyError: 'mine'" in text
    assert "CANCELLED" in said["dropped"]
    assert cluster.lab.state(said["job"])["Comment"] == "nothing"
    folder = cluster.folder / "logs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*/*_submitted.pkl")}
    assert modes == {0o600}
