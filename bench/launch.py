"""Seconds from the command to the first collective, for several launchers, in paired rounds.

    python bench/launch.py [--rounds 3] [--ranks 2 4] [--only NAME ...]

Every launcher starts the same work on N gloo ranks: import torch (at the top of the script; in the row "caller without
torch" at the top of the function), join a group, one all_reduce. Each round runs all launchers in another order.
Printed are median and quartiles of the seconds until the last rank has its result, of the CPU seconds of the command
and everything below it, and the ratios of both to `torchrun` and to `mp.spawn`, round by round: under load the ratios
say more than the seconds. Then, for `rankwise run`: from a rank's death to its traceback and to the command's end, and
from Ctrl-C to the command's end, with no process left. Launchers that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _common.machine import describe
from _common.spreads import ratios, spread

WORK = """
import os, time

def work(rank, size, joined=False):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    if not joined:
        dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(1))
    with open(f"done-{rank}", "w") as file:
        file.write(repr(time.time()))
    if not joined:
        dist.destroy_process_group()

def function(*_):
    import torch
    announced()

def announced(*_):
    work(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
"""
MEET = "os.environ.setdefault('MASTER_ADDR', '127.0.0.1'); os.environ.setdefault('MASTER_PORT', free_port())"
PORT = """
import socket, os
def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return str(held.getsockname()[1])
"""
MAIN = "if __name__ == '__main__':\n    import sys\n    size = int(sys.argv[1])\n    "
FUNCTION = MAIN + "import rankwise, work\n    rankwise.run(work.function, num_ranks=size)\n"
# a function, in a file with imports like those of a script; `mp.spawn` and `rankwise.run` get the same one
BESIDE = "import os\nimport torch\nimport work\n\ndef each(*_):\n    work.announced()\n\n"
SCRIPTS = {
    "script.py": "import os\nimport torch\n" + PORT + "import work\n" + MEET + "\nwork.announced()\n",
    "function.py": FUNCTION,
    "function_torch.py": BESIDE + MAIN + "import rankwise\n    rankwise.run(each, num_ranks=size)\n",
    "spawn.py": "import torch.multiprocessing as mp\nimport work\n" + PORT + "\ndef each(rank, size):\n"
    "    work.work(rank, size)\n\n" + MAIN + MEET + "\n    mp.spawn(each, args=(size,), nprocs=size)\n",
    "fabric.py": MAIN + "from lightning.fabric import Fabric\n    import work\n"
    "    fabric = Fabric(accelerator='cpu', devices=size, strategy='ddp')\n    fabric.launch()\n"
    "    work.work(fabric.global_rank, fabric.world_size, joined=True)\n",
    "local.py": PORT + MAIN + MEET + "\n    import submitit, local_task\n"
    "    executor = submitit.LocalExecutor('logs')\n"
    "    executor.update_parameters(tasks_per_node=size, timeout_min=5)\n"
    "    executor.submit(local_task.main).results()\n",
    "local_task.py": "def main():\n    import submitit, work\n    here = submitit.JobEnvironment()\n"
    "    work.work(here.global_rank, here.num_tasks)\n",
    "dies.py": "import os, time\nimport torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "dist.all_reduce(torch.ones(1))\nif dist.get_rank() == 1:\n    open('died', 'w').write(repr(time.time()))\n"
    "    raise ValueError('the first cause')\ndist.all_reduce(torch.ones(1))\ntime.sleep(600)\n",
    "waits.py": "import os, time\nimport work\nwork.announced()\n"
    "open(f'pid-{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\ntime.sleep(600)\n",
}
FRESH = "rankwise run, RANKWISE_START=fresh"
BARE = "one bare process"
TORCHRUN, SPAWN, ACCELERATE = "torchrun --standalone", "mp.spawn", "accelerate launch --multi_gpu"


def commands(size: int) -> dict[str, list[str]]:
    """Return the command of each way."""
    python, number = sys.executable, str(size)
    return {
        "rankwise run": [python, "-m", "rankwise", "run", "--nproc", number, "script.py"],
        TORCHRUN: [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", number, "script.py"],
        FRESH: [python, "-m", "rankwise", "run", "--nproc", number, "--env", "RANKWISE_START=fresh", "script.py"],
        "rankwise.run(fn)": [python, "function.py", number],
        "rankwise.run(fn), caller has torch": [python, "function_torch.py", number],
        SPAWN: [python, "spawn.py", number],
        ACCELERATE: [  # with --cpu it starts one rank, whatever it is asked for; with --multi_gpu it needs no GPU
            *[python, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1", "--num_processes"],
            *[number, "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "script.py"],
        ],
        "Fabric ddp": [python, "fabric.py", number],
        "submitit local": [python, "local.py", number],
        BARE: [python, "script.py", "1"],
    }


NEEDS = {ACCELERATE: "accelerate", "Fabric ddp": "lightning", "submitit local": "submitit"}


def measure(command: list[str], folder: Path, num_ranks: int) -> tuple[float, float]:
    """Return (seconds to the first collective of the last rank, CPU seconds of the command and its children)."""
    for old in folder.glob("done-*"):
        old.unlink()
    # all come compiled, as they are when they are installed
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**ours, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    before, start = cpu_seconds(), time.time()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=env, timeout=300)
    done = [float(path.read_text()) for path in folder.glob("done-*")]
    if len(done) != num_ranks:
        raise RuntimeError(f"{len(done)} ranks came to the first collective, not {num_ranks}: {' '.join(command)}")
    return max(done) - start, cpu_seconds() - before


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def death(folder: Path, size: int) -> tuple[float, float]:
    """Return seconds from a rank's death to its traceback on the console, and to the command's end."""
    (folder / "died").unlink(missing_ok=True)
    command = [sys.executable, "-m", "rankwise", "run", "--nproc", str(size), "dies.py"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        assert run.stderr is not None
        told = next(time.time() for line in run.stderr if "the first cause" in line)
        run.stderr.read()
        run.wait(120)
        ended = time.time()
    died = float((folder / "died").read_text())
    return told - died, ended - died


def interrupt(folder: Path, size: int) -> float:
    """Return seconds from Ctrl-C until the command and all its ranks are gone."""
    for old in folder.glob("pid-*"):
        old.unlink()
    command = [sys.executable, "-m", "rankwise", "run", "--nproc", str(size), "waits.py"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        until(lambda: all((folder / f"pid-{rank}").exists() for rank in range(size)))
        until(lambda: all((folder / f"pid-{rank}").read_text() for rank in range(size)))
        pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(size)]
        began = time.time()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=120)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    return time.time() - began


def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Wait for a condition, a few milliseconds at a time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a part of the benchmark did not come in time")
        time.sleep(0.005)


def compare(size: int, rounds: int, folder: Path, only: list[str], *, warm: bool) -> None:
    """Run all ways in turn, and print what they cost."""
    ways = {name: command for name, command in commands(size).items() if not only or name in only}
    absent = [name for name in ways if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None]
    ways = {name: command for name, command in ways.items() if name not in absent}
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(0 if warm else 1, rounds + 1):
        for way in list(ways) if number % 2 else list(reversed(ways)):
            result = measure(ways[way], folder, 1 if way == BARE else size)
            if number:  # the first round warms the file cache
                results[way].append(result)
    print(f"\n{size} gloo ranks, {rounds} rounds{'; not installed: ' * bool(absent)}{', '.join(absent)}")
    for number, what in enumerate(("s to first collective", "CPU s")):
        print(f"{what:38}{'':26}{'x torchrun':>26}{'x mp.spawn':>26}")
        values = {way: [pair[number] for pair in pairs] for way, pairs in results.items()}
        for way, mine in values.items():
            line = f"  {way:36}{spread(mine)!s:>26}"
            for other in (TORCHRUN, SPAWN):
                known = other in values and other != way
                line += f"{ratios(mine, values[other])!s:>26}" if known else f"{'':26}"
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", default=[], help="names of ways, as printed")
    options = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for script, text in {**SCRIPTS, "work.py": WORK}.items():
            (folder / script).write_text(text)
        for size in options.ranks:
            compare(size, options.rounds, folder, options.only, warm=size == options.ranks[0])
            deaths = [death(folder, size) for _ in range(min(3, options.rounds))]
            print(f"death to traceback, s: {spread([told for told, _ in deaths])}; to the end: ", end="")
            print(spread([ended for _, ended in deaths]))
            print(f"Ctrl-C to all gone, s: {spread([interrupt(folder, size) for _ in range(min(3, options.rounds))])}")


if __name__ == "__main__":
    main()
