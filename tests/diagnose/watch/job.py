"""Jobs of 4 ranks that hang, each in its own way, without a word of rankwise: `python job.py FOLDER CASE=PORT...`.

torch is imported once and the ranks are forked: each writes to `CASE.log`, and ends when it is killed.
"""

import ctypes
import importlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(sys.argv[1])


def load():
    time.sleep(600)


def missing(rank, _):
    if rank == 2:
        load()
    dist.all_reduce(torch.ones(4))


def busy(rank, _):
    while rank == 0 and "saved as" not in (FOLDER / "busy.log").read_text().partition("rank 0 has not joined")[2]:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.5:
            pass  # it computes until that has been seen: the other jobs need the cores, too
    if rank == 0:
        load()
    dist.barrier()


def swapped(rank, _):
    if rank == 3:
        dist.broadcast(torch.ones(2), src=0)
    dist.all_reduce(torch.ones(2))


def source(rank, _):
    dist.broadcast(torch.ones(2), src=1 if rank == 1 else 0)
    dist.barrier()


def crossed(rank, groups):
    dist.all_reduce(torch.ones(1), group=groups[rank // 2])
    dist.all_reduce(torch.ones(1), group=groups[1 - rank // 2])


def locked(rank, _):
    if rank == 1:
        mutex, c_library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # calls keep the interpreter lock
        c_library.pthread_mutex_lock(mutex)
        c_library.pthread_mutex_lock(mutex)
    dist.all_reduce(torch.ones(4))


def stopped(rank, _):
    if rank == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


def gone(rank, _):
    if rank == 1:
        os._exit(0)
    dist.distributed_c10d._get_default_store().wait(["what rank 1 would set"])  # gloo notices by itself


def reduction(rank, _):
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 3 else dist.ReduceOp.SUM)
    missing(rank, _)


def shape(rank, _):
    dist.all_reduce(torch.ones(2, 2) if rank == 3 else torch.ones(4))  # as many bytes: gloo does not notice
    missing(rank, _)


def dtype(rank, _):
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 3 else torch.float32))
    missing(rank, _)


def orphaned(rank, _):
    if rank == 0:
        os._exit(0)  # and the store with it
    load()


def apart(rank, _):
    missing(2 if rank == 3 else 0, _)


def called(rank, _):
    missing(rank, _)


def moving(rank, _):
    for number in range(10_000):
        dist.all_reduce(torch.ones(4))
        if (rank, number) == (0, 5):
            print("all ranks move", flush=True)
        time.sleep(0.2)


def be_rank(case, rank, port):
    log = os.open(FOLDER / f"{case}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(FOLDER)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "4"}
    os.environ["RANKWISE_WATCH_DIR"] = str(FOLDER / case)
    if case == "apart":  # ranks 0 and 1 look neither at the processes nor at the files of 2 and 3, as on two machines
        agent = importlib.import_module("rankwise.diagnose.watch.agent")
        agent.host_key = lambda: f"machine {rank // 2}"
    if case == "called":
        os.environ["RANKWISE_WATCH"] = "500"
    where = "env://" if port != "file" else f"file://{FOLDER / case}.store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=4)
    if case == "called":  # what the script says counts, not the variable
        importlib.import_module("rankwise").watch(stall_s=6, folder=FOLDER / case / "answers")
    groups = [dist.new_group(range(4)) for _ in range(2)]
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    globals()[case](rank, groups)
    time.sleep(600)


def die_with_parent():
    """End when the parent does, however it does: `timeout` kills this job's group, which the ranks have left."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def launch(*pairs):
    """Start the ranks of jobs in a process group of their own, as a launcher does."""
    os.setpgid(0, 0)
    die_with_parent()
    for rank in range(4):
        for case, port in pairs:
            if os.fork() == 0:
                die_with_parent()
                be_rank(case, rank, port)
    time.sleep(600)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ports = dict(pair.split("=") for pair in sys.argv[2:])
    shared, launchers = ("called", "moving"), {}
    for case in ports:
        if case != shared[1]:
            launchers[case] = os.fork()
            if launchers[case] == 0:
                launch(*((name, ports[name]) for name in (shared if case in shared else [case])))
        else:
            launchers[case] = launchers[shared[0]]
    print(*launchers.values(), flush=True)
    sys.stdin.read()  # until the test ends, however it does
    for pid in set(launchers.values()):
        os.killpg(pid, signal.SIGKILL)
