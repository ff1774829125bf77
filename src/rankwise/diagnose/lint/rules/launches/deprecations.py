"""RW216 and RW6: libraries, options, launchers and names that newer PyTorch has dropped."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import GROUP, has_framework, is_const, is_distributed, uses_cuda
from rankwise.diagnose.lint.analysis.launch_lines import LaunchFile, LaunchPlace
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.record import HEAD, Hit, Rule

_HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"
_BACKENDS = ("nccl", "gloo", "mpi", "ucc", "xccl")
_PLUGINS = ("ccl", "hccl", "rccl", "cncl", "mccl", "eccl", "sccl", "lccl", "bccl", "flagcx", "xla", "smddp")
_OLD_API = {
    "torch.distributed.reduce_op": "torch.distributed.ReduceOp",
    "torch.distributed.all_gather_multigpu": "all_gather, one process per GPU",
    "torch.distributed.all_reduce_multigpu": "all_reduce, one process per GPU",
    "torch.distributed.broadcast_multigpu": "broadcast, one process per GPU",
    "torch.distributed.reduce_multigpu": "reduce, one process per GPU",
    "torch.distributed._all_gather_base": "torch.distributed.all_gather_into_tensor",
    "torch.distributed._reduce_scatter_base": "torch.distributed.reduce_scatter_tensor",
    "torch.nn.parallel.DistributedDataParallelCPU": "torch.nn.parallel.DistributedDataParallel",
}


@Rule(
    "RW604", "local-rank-argparse", "warning", "high",
    message="torchrun passes no --local_rank: read LOCAL_RANK from the environment",
    why="Only the deprecated torch.distributed.launch passed the option. Under torchrun it keeps its default on every rank, and "
    "all of them take the same GPU.",
    example="import argparse\n+import os\n" + HEAD + """
 parser = argparse.ArgumentParser()
-parser.add_argument("--local_rank", type=int, default=0)
+parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
 args = parser.parse_args()
 torch.cuda.set_device(args.local_rank)
 torch.distributed.init_process_group("nccl")
""",
    ignore="the launcher passes the option (DeepSpeed does).",
)  # fmt: skip
def local_rank_argparse(module: Module) -> Iterator[Hit]:
    """The option, in a file that starts a group and never asks for LOCAL_RANK."""
    # without a GPU nothing depends on it: ranks that are numbered by hand often call their number so
    # Accelerate's launcher passes no option either; DeepSpeed's does
    alone = (is_distributed(module) or _hands_it_on(module)) and not has_framework(module) and uses_cuda(module)
    if not alone and ("accelerate.Accelerator" not in module.by_name or module.imports.uses("deepspeed")):
        return
    if "LOCAL_RANK" in module.texts or module.has_call("spawn", "start_processes"):
        return
    options = {
        str(first.value).replace("_", "-"): (first, call)
        for call in module.methods("add_argument")
        if call.node.args and isinstance(first := call.node.args[0], ast.Constant)
    }
    # whoever has to give the rank on the command line starts each rank by hand, without torchrun
    by_hand = "--rank" in options and is_const(options["--rank"][1].argument("required"), True)
    if "--local-rank" in options and not by_hand:
        yield Hit(options["--local-rank"][0])


def _hands_it_on(module: Module) -> bool:
    """Whether a file that imports torch.distributed gives the option, and never all options, to what starts the group."""
    group = any(name.startswith("torch.distributed") for name in module.imports.bound.values())
    calls = module.calls if group and module.has_call("set_device") and module.has_call("add_argument") else ()
    parts = [part for call in calls for part in call.given]
    options = {text_of(part.value) for part in parts if isinstance(part, ast.Attribute) and part.attr == "local_rank"}
    return bool(options) and not options & set(map(text_of, parts))


def _old_launcher_in_lines(file: LaunchFile) -> Iterator[Hit]:
    for command in file.commands:
        texts = command.texts
        for index, word in enumerate(command.words[1:], 1):
            if word.text.endswith("torch/distributed/launch.py"):
                yield Hit(word, {"old": "torch/distributed/launch.py", "new": "torchrun"})
            elif word.text == "torch.distributed.launch" and texts[index - 1] == "-m":
                yield Hit(word, {"old": word.text, "new": "torchrun"})
    for setting in file.settings:  # LAUNCH="python -m torch.distributed.launch ..."
        start = file.source.find("torch.distributed.launch", setting.place.start, setting.place.end)
        if start >= 0 and re.search(r"\s-m\s+torch\.distributed\.launch\b", setting.value):
            place = LaunchPlace(start, start + len("torch.distributed.launch"), "torch.distributed.launch")
            yield Hit(place, {"old": place.text, "new": "torchrun"})


def _other_backend(text: str) -> str | None:
    """Return the backend that was meant where none is called so; a name that resembles none may be a plugin's."""
    for part in text.lower().split(","):
        name = part.rpartition(":")[2].strip()
        if name == "tcp":
            return "gloo"
        close = difflib.get_close_matches(name, _BACKENDS, 1, 0.7)
        if close and name not in _BACKENDS and name not in _PLUGINS:
            return close[0]
    return None


@Rule(
    "RW605", "deprecated-dist-api", "warning", "high",
    message="{old} is deprecated or gone: {new}",
    why="torch.distributed.launch warns, and sets no LOCAL_RANK option for new scripts; the others were removed or renamed.",
    example="-python -m torch.distributed.launch --nproc_per_node=8 train.py\n+torchrun --nproc-per-node=8 train.py\n",
    ignore="old versions of PyTorch have to be supported.",
    language="bash",
    lines=_old_launcher_in_lines,
)  # fmt: skip
def deprecated_dist_api(module: Module) -> Iterator[Hit]:
    """A call of an old function, or an import of one."""
    for old, new in _OLD_API.items():
        for call in module.named(old):
            yield Hit(call.node.func, {"old": old, "new": new})
    for call in module.named(GROUP, "torch.distributed.new_group"):
        given = module.value(call.argument("backend", 0 if call.name == GROUP else 2), call.place.scope)
        if isinstance(given, ast.Name) and given.id in call.place.scope.params:
            given = call.place.scope.default(given.id)
        text = given.value if isinstance(given, ast.Constant) else None
        if isinstance(text, str) and given is not None and (backend := _other_backend(text)):
            yield Hit(given, {"old": f"the backend {text!r}", "new": backend})
    if "reduce_op" in module.attributes:  # dist.reduce_op.SUM is no call
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and module.name_of(node) == "torch.distributed.reduce_op":
                yield Hit(node, {"old": "torch.distributed.reduce_op", "new": _OLD_API["torch.distributed.reduce_op"]})


_ARCHIVED = {
    "fairscale": "torch.distributed.fsdp.fully_shard or ZeroRedundancyOptimizer",
    "apex.amp": "torch.amp",
    "apex.parallel": "torch.nn.parallel.DistributedDataParallel and torch.nn.SyncBatchNorm",
}


@Rule(
    "RW216", "deprecated-library", "warning", "high",
    message="{name} is no longer kept up: {instead} does this in PyTorch",
    why="fairscale is archived; apex.amp and apex.parallel are deprecated by their authors.",
    example="-from apex.parallel import DistributedDataParallel as DDP\n"
    "+from torch.nn.parallel import DistributedDataParallel as DDP\n\n def prepare(net):\n     return DDP(net)\n",
    ignore="an old release of PyTorch has to be supported.",
)  # fmt: skip
def deprecated_library(module: Module) -> Iterator[Hit]:
    """An import, unless it stands in a `try` that imports something else where the library is missing; or a call."""
    tries = [node for node in module.tree.body if isinstance(node, ast.Try)]
    handled = {node: [stmt for handler in node.handlers for stmt in handler.body] for node in tries}
    fallbacks = (node for node in tries if any(isinstance(stmt, ast.Import | ast.ImportFrom) for stmt in handled[node]))
    guarded = {id(part) for node in fallbacks for part in ast.walk(node)}
    for name, alias, stmt in module.imports.nodes:
        for old, instead in _ARCHIVED.items():
            if (name == old or name.startswith(f"{old}.")) and id(stmt) not in guarded:
                yield Hit(alias, {"name": old, "instead": instead})
    for old, instead in _ARCHIVED.items():  # import apex ... apex.amp.initialize()
        used = next((call for call in module.calls if call.text.startswith(f"{old}.") and call.name == call.text), None)
        whole = [stmt for name, _, stmt in module.imports.nodes if name == old.partition(".")[0]]
        if used is not None and whole and not any(id(stmt) in guarded for stmt in whole) and "." in old:
            yield Hit(used.node.func, {"name": old, "instead": instead})
