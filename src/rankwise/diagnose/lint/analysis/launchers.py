"""What starts ranks in launch lines: which commands, over how many nodes, how often on each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.launch_lines import Command, LaunchFile, LaunchPlace, Setting

_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
_PROGRAMS = ("torchrun", "deepspeed", "accelerate-launch")


def launches(file: LaunchFile) -> Iterator[Command]:
    """Yield the commands that start ranks by torch's launcher or Accelerate's."""
    for command in file.commands:
        words = command.texts
        module = any(word in _MODULES for word in words)
        accelerate = "accelerate" in words and "launch" in words
        if module or accelerate or command.find(*_PROGRAMS) is not None:
            yield command


_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}]*))?\})")


def shown(file: LaunchFile, text: str, depth: int = 2) -> tuple[str, Setting | None]:
    """Return a word with its variable replaced where the file sets it once, and that setting.

    ``${GPUS:-8}`` is its default where nothing else sets it.
    """
    found = _VARIABLE.fullmatch(text)
    if found is None:
        return text, None
    name, default = found[1] or found[2], found[3]
    settings = [each for each in file.settings if each.name == name]
    if len(settings) != 1:
        return (default if default and not settings else text), None
    itself = _VARIABLE.fullmatch(settings[0].value)
    if itself is not None and itself[2] == name and itself[3]:  # GPUS=${GPUS:-8}
        return itself[3], settings[0]
    value, inner = shown(file, settings[0].value, depth - 1) if depth else (settings[0].value, None)
    return value, inner or settings[0]


def option(file: LaunchFile, command: Command, *names: str) -> tuple[str, LaunchPlace, Setting | None] | None:
    """Return the value of an option as far as it is seen, its place, and the variable that holds it."""
    found = command.option(*names)
    if found is None:
        return None
    value, setting = shown(file, found[0])
    return value, found[1], setting


def num_nodes(file: LaunchFile, command: Command) -> int:
    """Return how many nodes a launch is for, 1 where it is not seen."""
    found = option(file, command, "--nnodes", "--num-machines")
    text = "" if found is None else found[0].rpartition(":")[2]
    return job_nodes(file) if "SLURM" in text else int(text) if text.isdecimal() else 1


def job_nodes(file: LaunchFile) -> int:
    """Return how many nodes Slurm gives to the job, 1 where it is not seen."""
    text = file.sbatch.get("nodes", "").rpartition("-")[2]
    return int(text) if text.isdecimal() else 1


def launcher(command: Command) -> int | None:
    """Return the index of the word that starts ranks."""
    words = command.texts
    if (found := command.find("torchrun", "accelerate", "accelerate-launch")) is not None:
        complete = words[found].rpartition("/")[2] != "accelerate" or words[found + 1 : found + 2] == ["launch"]
        return found if complete else None
    return next((index for index, word in enumerate(words) if word in _MODULES), None)


def tasks_per_node(file: LaunchFile, command: Command) -> int:
    """Return how often srun starts a line on each node, as far as its own options and those of the job say; else 1."""
    nodes, tasks = (_told(file, command, *names) for names in (("nodes", "-N"), ("ntasks", "-n")))
    per_node = _told(file, command, "ntasks-per-node", "--ntasks-per-node")
    if per_node.isdecimal() and not own(command, "ntasks", "-n"):
        return int(per_node)
    if tasks.isdecimal() and nodes.isdecimal() and int(nodes):
        return int(tasks) // int(nodes)
    return 1


def _told(file: LaunchFile, command: Command, name: str, short: str) -> str:
    return own(command, name, short) or file.sbatch.get(name, "")


def own(command: Command, name: str, short: str) -> str:
    """Return what a line itself says: ``--ntasks=2``, ``--ntasks 2``, ``-n 2`` or ``-n2``; "" if nothing."""
    found = command.option(f"--{name}", short)
    if found is not None:
        return found[0]
    joined = (re.fullmatch(rf"{short}(\d+)", word) for word in command.texts if len(short) == 2)
    return next((each[1] for each in joined if each), "")
