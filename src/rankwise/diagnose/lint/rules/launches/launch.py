"""RW6: ports, variables and launch lines, in Python and in shell, Docker and YAML files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import GROUP, environment_writes
from rankwise.diagnose.lint.analysis.launch_lines import LaunchFile, LaunchPlace
from rankwise.diagnose.lint.analysis.launchers import launcher, shown, tasks_per_node
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.record import Edit, Fix, Hit, Rule
from rankwise.diagnose.variables import PREFIXES, RENAMED, check_variable_name

_HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"


def _bad_port(text: str) -> bool:
    return text.isdecimal() and not 0 <= int(text) <= 65535


def _ports_in_lines(file: LaunchFile) -> Iterator[Hit]:
    bad = {}  # by the place where the number is written: a setting that several options show is wrong once
    for setting in file.settings:
        port, source = _shown_port(file, setting.value)
        if setting.name == "MASTER_PORT" and _bad_port(port):
            bad[source or setting.place] = port
    for command in file.commands:
        for name in ("--master-port", "--rdzv-endpoint", "--rdzv", "--main-process-port", "--rdzv_endpoint"):
            found = command.option(name)
            port, source = ("", None) if found is None else _shown_port(file, found[0])
            if found is not None and _bad_port(port):
                bad[source or found[1]] = port
    yield from (Hit(place, {"port": port}) for place, port in bad.items())


_LAST_PART = re.compile(r"(?:.*:)?(\w+|\$\w+|\$\{[^}]*\})")


def _shown_port(file: LaunchFile, text: str) -> tuple[str, LaunchPlace | None]:
    """Return the port at the end of a word, by way of variables, and the place of the variable that holds it."""
    found = _LAST_PART.fullmatch(text)
    port, setting = shown(file, found[1]) if found else ("", None)
    return port.rpartition(":")[2], None if setting is None else setting.place


@Rule(
    "RW601", "invalid-port", "error", "high",
    message="there is no port {port}: ports go to 65535",
    why="The rendezvous cannot listen on it; the job fails when it starts.",
    example=_HEAD + '\n-os.environ["MASTER_PORT"] = "80000"\n+os.environ["MASTER_PORT"] = "29500"\n'
    ' dist.init_process_group("nccl")\n',
    lines=_ports_in_lines,
)  # fmt: skip
def invalid_port(module: Module) -> Iterator[Hit]:
    """MASTER_PORT, or a tcp:// address."""
    for name, _, value, _ in environment_writes(module):
        if name == "MASTER_PORT" and isinstance(value, ast.Constant) and _bad_port(str(value.value)):
            yield Hit(value, {"port": str(value.value)})
    for node, _ in module.strings:
        found = re.fullmatch(r"tcp://[\w.\-\[\]]+:(\d+)", str(node.value))
        if found and _bad_port(found[1]):
            yield Hit(node, {"port": found[1]})


def _variables_in_lines(file: LaunchFile) -> Iterator[Hit]:
    for setting in file.settings:
        for text, new in _wrong_variable(setting.name, setting.value):
            edit = Edit(setting.place.start, setting.place.start + len(setting.name), new) if new else None
            written = file.source[setting.place.start :].startswith(setting.name)
            yield Hit(setting.place, {"text": text}, Fix(f"call it {new}", (edit,)) if edit and written else None)


def _wrong_variable(name: str, value: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield what is wrong with a variable and its value, and the new name where it only has that."""
    judged = check_variable_name(name, surely=True)
    if name in RENAMED:
        yield f"{name} is called {RENAMED[name]} now", RENAMED[name]
    elif judged is not None:
        yield f"nothing reads {name}: {judged[1].removeprefix('no known program reads it: ')}", None
    if name == "NCCL_DEBUG_FILE" and value is not None and "%r" in value:
        yield "NCCL_DEBUG_FILE knows %h (host) and %p (process), not %r: all ranks write one file", None


@Rule(
    "RW602", "nccl-env", "error", "high",
    message="{text}",
    why="A name that nothing reads does nothing, silently. NCCL_TIMEOUT is the classic: the time limit of collectives is the "
    "argument timeout= of init_process_group. Names that begin with NCCL_ and were torch's are TORCH_NCCL_ now.",
    example=_HEAD + '\n-os.environ["NCCL_BLOCKING_WAIT"] = "1"\n+os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"\n'
    ' dist.init_process_group("nccl")\n',
    ignore="a plugin of NCCL reads it.",
    fix="safe",
    lines=_variables_in_lines,
)  # fmt: skip
def nccl_env(module: Module) -> Iterator[Hit]:
    """A variable that is set in Python."""
    writes = [(name, node, value) for name, node, value, _ in environment_writes(module)]
    for name, node, value in (*writes, *_of_children(module)):
        text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
        for wrong, new in _wrong_variable(name, text):
            start, end = module.span(node)
            written = module.source[start + 1 : end - 1] == name  # dict(NAME=...) is left alone
            edit = Edit(start + 1, end - 1, new) if new and written else None
            yield Hit(node, {"text": wrong}, Fix(f"call it {new}", (edit,)) if edit else None)


def _of_children(module: Module) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield the variables of these libraries that a dict, or ``dict(NAME=...)``, holds for a process or os.environ."""
    for node, place in module.strings:
        name = node.value
        if not isinstance(name, str) or not name.startswith(PREFIXES):
            continue
        stmt = place.stmt
        if any(isinstance(target, ast.Subscript) and target.slice is node for target in place.targets):
            yield name, node, stmt.value  # type: ignore[attr-defined]
        for table in ast.walk(stmt if not hasattr(stmt, "body") else getattr(stmt, "iter", stmt)):
            for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
                if key is node and isinstance(value, ast.Constant) and _SETS.fullmatch(str(value.value)):
                    yield name, node, value


_SETS = re.compile(r"\d+|[a-z]\w*|True|False", re.ASCII)
_TUNING = re.compile(r"NCCL_(P2P_DISABLE|IB_DISABLE|BUFFSIZE|SHM_DISABLE|NTHREADS|ALGO|PROTO|DEBUG)")


def _tuning_in_lines(file: LaunchFile) -> Iterator[Hit]:
    for setting in file.settings:
        if _TUNING.fullmatch(setting.name):
            yield Hit(setting.place, {"name": setting.name})


@Rule(
    "RW603", "nccl-tuning-left-in", "info", "medium",
    message="{name} was set for one machine or one bug: is it still needed?",
    why="NCCL chooses by the hardware that it finds. Switches that were left in cost bandwidth elsewhere.",
    example=_HEAD + '\n-os.environ["NCCL_P2P_DISABLE"] = "1"\n+os.environ["OMP_NUM_THREADS"] = "1"\n',
    ignore="this machine needs it, and a comment says why.",
    lines=_tuning_in_lines,
)  # fmt: skip
def nccl_tuning_left_in(module: Module) -> Iterator[Hit]:
    """A switch that is set in Python."""
    for name, node, _, _ in environment_writes(module):
        if _TUNING.fullmatch(name):
            yield Hit(node, {"name": name})


@Rule(
    "RW606", "env-without-default", "info", "medium",
    message="without a launcher {name} is not set: KeyError under plain `python`",
    why="A script that also runs as `python train.py` can be debugged. One process is rank 0 of 1.",
    example=_HEAD + '\n-local_rank = int(os.environ["LOCAL_RANK"])\n'
    '+local_rank = int(os.environ.get("LOCAL_RANK", 0))\n',
    ignore="the script is never started without a launcher.",
    fix="safe",
)  # fmt: skip
def env_without_default(module: Module) -> Iterator[Hit]:
    """os.environ["RANK"] and the like."""
    for node, place in module.environment:
        name = str(node.slice.value) if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant) else ""
        usual = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.get(name)
        choice = isinstance(place.stmt, ast.Assign) and isinstance(place.stmt.value, ast.IfExp)
        if choice or usual is None or place.branches or place.tries:
            continue
        start, end = module.span(node.value)[1], module.span(node)[1]
        yield Hit(node, {"name": name}, Fix("give a default", (Edit(start, end, f'.get("{name}", "{usual}")'),)))


@Rule(
    "RW607", "hardcoded-rendezvous", "info", "medium",
    message="the rendezvous is fixed in the script: {name}",
    why="Two jobs on one machine collide, and the script runs on this machine only. Launchers set it.",
    example=_HEAD + '\n-os.environ["MASTER_ADDR"] = "localhost"\n+os.environ.setdefault("MASTER_ADDR", "localhost")\n',
    ignore="the script starts its ranks itself.",
)  # fmt: skip
def hardcoded_rendezvous(module: Module) -> Iterator[Hit]:
    """MASTER_ADDR or MASTER_PORT is assigned a constant."""
    for name, node, value, place in environment_writes(module):
        if (
            name in {"MASTER_ADDR", "MASTER_PORT"}
            and isinstance(place.stmt, ast.Assign)
            and isinstance(value, ast.Constant)
        ):
            yield Hit(node, {"name": name})


@Rule(
    "RW608", "visible-devices-in-script", "info", "medium",
    message="CUDA_VISIBLE_DEVICES is set in the script: launchers and schedulers choose the GPUs",
    why="It hides GPUs that the scheduler gave, works only before CUDA is initialised, and dates from nn.DataParallel.",
    example=_HEAD + '\n-os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"\n+os.environ["OMP_NUM_THREADS"] = "1"\n',
    ignore="it is a notebook on a machine of your own.",
)  # fmt: skip
def visible_devices_in_script(module: Module) -> Iterator[Hit]:
    """An assignment."""
    for name, node, _, _ in environment_writes(module):
        if name == "CUDA_VISIBLE_DEVICES":
            yield Hit(node)


@Rule(
    "RW609", "missing-destroy", "info", "medium",
    message="the process group is never destroyed: NCCL warns at exit",
    why="Threads of the group outlive the work, and some versions hang at exit.",
    example=_HEAD + '\n dist.init_process_group("nccl")\n+dist.destroy_process_group()\n',
    ignore="another file does it.",
)  # fmt: skip
def missing_destroy(module: Module) -> Iterator[Hit]:
    """init_process_group without its counterpart in the file."""
    calls = list(module.named(GROUP))
    if calls and not module.has_call("destroy_process_group"):
        yield Hit(calls[0].node.func)


@Rule(
    "RW610", "node-rank-guess", "info", "medium",
    message="the node is guessed from the rank and the number of GPUs here: GROUP_RANK says it",
    why="Nodes may have different numbers of GPUs or ranks.",
    example=_HEAD + "\n-node = dist.get_rank() // torch.cuda.device_count()\n"
    '+node = int(os.environ.get("GROUP_RANK", 0))\n',
    ignore="all nodes are equal.",
)  # fmt: skip
def node_rank_guess(module: Module) -> Iterator[Hit]:
    """Rank // device_count()."""
    for binding in module.bindings:
        value = binding.value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.FloorDiv):
            left, right = ast.unparse(value.left), ast.unparse(value.right)
            if "rank" in left.lower() and re.search(r"device_count|gpus_per_node|ngpus", right):
                yield Hit(value)


def _twice_in_lines(file: LaunchFile) -> Iterator[Hit]:
    for command in file.commands:
        srun = command.find("srun")
        start = launcher(command)
        if srun is None or start is None or start < srun:
            continue
        tasks = tasks_per_node(file, command)
        per_node = command.option("--nproc-per-node", "--num-processes")
        if tasks > 1 and per_node is not None and shown(file, per_node[0])[0] != "1":
            yield Hit(command.words[start], {"name": command.words[start].text, "number": str(tasks)})


Rule(
    "RW612", "launch-twice", "error", "medium",
    message="srun starts {name} {number} times on each node, and each of them starts ranks: one task per node",
    why="torchrun starts the ranks of a node itself. With several tasks per node several launchers fight for one port and GPU.",
    example=" #!/bin/bash\n #SBATCH --nodes=2\n-#SBATCH --ntasks-per-node=4\n+#SBATCH --ntasks-per-node=1\n"
    " srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py\n",
    language="bash",
    lines=_twice_in_lines,
)(None)  # fmt: skip
