"""RW613, RW617, RW618, RW621: ranks, nodes and GPUs whose numbers do not fit together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import GROUP, environment_writes
from rankwise.diagnose.lint.analysis.launch_lines import Command, LaunchFile, LaunchPlace
from rankwise.diagnose.lint.analysis.launchers import (
    job_nodes,
    launcher,
    launches,
    num_nodes,
    option,
    own,
    shown,
    tasks_per_node,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.scopes import Scope
from rankwise.diagnose.lint.record import Hit, Rule

_LOOPBACK = re.compile(r"(tcp://)?(localhost|127\.0\.0\.1|0\.0\.0\.0|\[?::1\]?)(:.*)?")


def _node_ranks_in_lines(file: LaunchFile) -> Iterator[Hit]:
    for command in launches(file):
        srun = command.find("srun")
        found = command.option("--node-rank", "--machine-rank") or _default_node_rank(file, command)
        if srun is None or found is None or command.option("--rdzv-backend", "--rdzv-endpoint"):
            continue
        # one srun for each node, in a loop, has a number of its own
        single = any(command.option(name) for name in ("-w", "--nodelist", "-r", "--relative"))
        value, _ = shown(file, found[0])
        # a shell on each node reads what stands in single quotes, or behind a backslash
        later = command.quote == "'" or "\\$" in file.source[found[1].start : found[1].end]
        early = None if later else re.fullmatch(r"\$\{?(SLURM_NODEID|SLURM_PROCID)\}?", value)
        if single or own(command, "nodes", "-N") == "1" or not (value.isdecimal() or early):
            continue
        if max(job_nodes(file), num_nodes(file, command)) > 1:
            yield Hit(found[1], {"what": "node rank", "text": found[0], "of": "nodes"})
    # srun python train.py --rank $SLURM_PROCID
    for command in file.commands:
        script = next((at for at, word in enumerate(command.words) if word.text.endswith(".py")), None)
        if script is None or command.find("srun") != 0 or command.quote == "'" or own(command, "nodes", "-N") == "1":
            continue
        tasks = {"NODEID": job_nodes(file), "LOCALID": tasks_per_node(file, command)}
        tasks["PROCID"] = tasks["NODEID"] * tasks["LOCALID"]
        for word in command.words[script + 1 :]:
            match = re.fullmatch(r"(?:--?[\w-]+=)?(\$\{?SLURM_(PROCID|LOCALID|NODEID)\}?)", word.text)
            if match and tasks[match[2]] > 1 and not re.search(r"\\\$|'", file.source[word.start : word.end]):
                yield Hit(word, {"what": "the value of", "text": match[1], "of": "tasks"})


Rule(
    "RW617", "same-node-rank", "error", "medium",
    message="srun hands this on to all {of}, and each of them takes {what} {text} as it stands here: all are the same",
    why="The shell of the batch script replaces variables before srun starts anything, and there SLURM_NODEID and SLURM_PROCID "
    "are 0. Use the c10d rendezvous, which needs no node rank, or let a shell on each node, or the script, read them.",
    example=" #!/bin/bash\n #SBATCH --nodes=2\n #SBATCH --ntasks-per-node=1\n"
    "-srun torchrun --nnodes 2 --nproc-per-node 8 --node-rank $SLURM_NODEID --master-addr $HEAD train.py\n"
    "+srun bash -c 'torchrun --nnodes 2 --nproc-per-node 8 --node-rank $SLURM_NODEID --master-addr $HEAD train.py'\n",
    language="bash",
    lines=_node_ranks_in_lines,
)(None)  # fmt: skip


def _default_node_rank(file: LaunchFile, command: Command) -> tuple[str, LaunchPlace] | None:
    """Return the node rank that torch's launcher takes where it is told the address of the first node only."""
    nodes, address = command.option("--nnodes"), command.option("--master-addr")
    told = any(each.name == "PET_NODE_RANK" for each in file.settings)
    return ("0", nodes[1]) if nodes is not None and address is not None and not told else None


def _loopback_in_lines(file: LaunchFile) -> Iterator[Hit]:
    for command in launches(file):
        if num_nodes(file, command) < 2 and not _is_given_nodes(file, command):
            continue
        for name in ("--master-addr", "--rdzv-endpoint", "--main-process-ip"):
            found = option(file, command, name)
            host = found[0] if found is not None else ""
            inner = re.match(r"\$\{?(\w+)\}?:", host)
            setting = found[2] if found is not None else None
            if setting is not None and setting.value != host:  # a default, which whoever starts it replaces
                continue
            if inner and found is not None:
                host, setting = shown(file, f"${inner[1]}")
            if found is not None and _LOOPBACK.fullmatch(host):
                yield Hit(setting.place if setting is not None else found[1], {"text": host})


def _is_given_nodes(file: LaunchFile, command: Command) -> bool:
    """Whether the number of nodes is a variable that whoever starts the file sets, and there is no default of one node."""
    found = command.option("--nnodes", "--num-machines")
    name = re.fullmatch(r"\$\{?(\w+)\}?", found[0]) if found is not None else None
    if name is None or any(each.name == name[1] for each in file.settings):
        return False
    return re.search(r"COUNT|NUM|NNODES|SIZE", name[1], re.IGNORECASE) is not None


@Rule(
    "RW618", "loopback-for-nodes", "error", "medium",
    message="{text} is this machine itself: on the other nodes nobody listens there, and they never meet",
    why="The address of the rendezvous has to be one that all nodes can reach: the name of the first node.",
    example="-torchrun --nnodes 2 --nproc-per-node 8 --node-rank $1 --master-addr localhost train.py\n"
    "+torchrun --nnodes 2 --nproc-per-node 8 --node-rank $1 --master-addr $HEAD train.py\n",
    ignore="both launchers run on one machine, as a test.",
    language="bash",
    lines=_loopback_in_lines,
)  # fmt: skip
def loopback_for_nodes(module: Module) -> Iterator[Hit]:
    """A loopback address in a file that counts its rank over several nodes."""
    calls = list(module.named(GROUP))
    if not any(_counts_nodes(module, call.argument("rank", 4), call.place.scope) for call in calls):
        return
    for name, _, value, place in environment_writes(module):
        fixed = name == "MASTER_ADDR" and isinstance(value, ast.Constant) and not place.branches
        if fixed and isinstance(value, ast.Constant) and _LOOPBACK.fullmatch(str(value.value)):
            yield Hit(value, {"text": str(value.value)})


def _counts_nodes(module: Module, node: ast.expr | None, scope: Scope) -> bool:
    """Whether a rank is node * ranks_per_node + local rank."""
    shown = module.value(node, scope)
    return (
        isinstance(shown, ast.BinOp)
        and isinstance(shown.op, ast.Add)
        and any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) for part in (shown.left, shown.right))
    )


def _first_node_in_lines(file: LaunchFile) -> Iterator[Hit]:
    number = job_nodes(file)
    if number < 2:
        return
    text = _ASKED.sub("", _COMMENT.sub("", file.source))
    # something that starts the line on each node, in this file or in a text that it writes
    alone = not _SPREADS.search(text)
    # srun starts as many tasks as it is told, and one task is on one node
    once = file.sbatch.get("ntasks") == "1" and "ntasks-per-node" not in file.sbatch and not _FOR_EACH.search(text)
    for command in launches(file):
        srun = command.find("srun")
        told = any(command.option(name) for name in ("-n", "-N", "--nodes", "--ntasks", "--ntasks-per-node", "-w"))
        # torchrun without --nnodes leaves the other nodes idle
        idle = command.option("--nnodes", "--num-machines") is None and command.find("deepspeed", "accelerate") is None
        if (num_nodes(file, command) > 1 or (alone and idle)) and (alone or (once and srun == 0 and not told)):
            what = "the batch script" if alone else "srun, with one task,"
            yield Hit(command.words[0], {"what": what, "number": str(number)})


_FOR_EACH = re.compile(r"\b(mpirun|mpiexec|pdsh|ssh|clush|parallel|for|while)\b")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_ASKED = re.compile(r"\$\([^()]*\)|`[^`]*`")  # HEAD=$(srun --ntasks=1 hostname)
_SPREADS = re.compile(r"(?<![\w-])(srun|mpirun|mpiexec|pdsh|ssh|clush|parallel|ibrun|jsrun|sbatch|ray)\b")


Rule(
    "RW621", "launcher-on-first-node", "error", "medium",
    message="{what} runs on the first of its {number} nodes only: start the launcher on each of them by srun",
    why="Slurm gives a job all its nodes and runs the script on the first one. The launcher there waits for the others, which "
    "nobody starts, until the rendezvous gives up.",
    example=" #!/bin/bash\n #SBATCH --nodes=2\n #SBATCH --ntasks-per-node=1\n"
    "-torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py\n"
    "+srun torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py\n",
    ignore="another script runs this one on each node.",
    language="bash",
    lines=_first_node_in_lines,
)(None)  # fmt: skip


def _alone_in_lines(file: LaunchFile) -> Iterator[Hit]:
    # torchrun reads no MASTER_ADDR
    told = any(setting.name.startswith("PET_") for setting in file.settings)
    for command in file.commands if not told else ():
        start = launcher(command)
        if start is None or command.find("torchrun", "torch.distributed.run") is None:
            continue
        count = option(file, command, "--nnodes")
        backend = command.option("--rdzv-backend")
        # the address of the master is for the static rendezvous only
        static = () if backend is not None and backend[0] != "static" else ("--master-addr",)
        if command.option("--rdzv-endpoint", *static):
            continue
        if count is None and start is not None and _is_on_each_node(file, command):
            yield Hit(command.words[start], {"number": str(job_nodes(file))})
        # --standalone is for one machine, and whoever starts the file gives the number
        given = count is not None and "--standalone" in command.texts and re.fullmatch(r"\$\{?\d\}?", count[0])
        if count is not None and (given or num_nodes(file, command) > 1):
            yield Hit(count[1], {"number": count[0]})


def _is_on_each_node(file: LaunchFile, command: Command) -> bool:
    """Whether srun starts a line once on each node of a job, and nothing tells the line of the others."""
    alone = (
        any(command.option(name) for name in ("-w", "--nodelist", "-r", "--relative"))
        or "--standalone" in command.texts
    )
    nodes = own(command, "nodes", "-N") or str(job_nodes(file))
    one = tasks_per_node(file, command) != 1 or own(command, "ntasks", "-n") == "1"
    return command.find("srun") == 0 and not alone and not one and (not nodes.isdecimal() or int(nodes) > 1)


Rule(
    "RW613", "no-rendezvous", "error", "medium",
    message="{number} nodes and no address where they meet: give --nnodes, and --rdzv-endpoint host:port",
    why="Without an address every node waits for the others on itself; without --nnodes each trains alone.",
    example="-torchrun --nnodes 2 --nproc-per-node 8 train.py\n"
    "+torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint head:29500 train.py\n",
    ignore="PET_ variables or a wrapper give it.",
    language="bash",
    lines=_alone_in_lines,
)(None)  # fmt: skip
