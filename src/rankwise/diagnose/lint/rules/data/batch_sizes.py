"""RW108: batches of all ranks that each rank loads whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import LOADER, has_framework, is_distributed
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


@rule(
    "RW108", "global-batch-per-rank", "warning", "medium",
    message="{text} is the batch of all ranks, and each rank loads it whole: divide it by the world size",
    why="batch_size of a DataLoader is per rank. The optimizer then sees world_size times the batch that the name says.",
    wrong=_HEAD + """
def make_loader(net, dataset, sampler, global_batch_size):
    model = DDP(net)
    return model, torch.utils.data.DataLoader(dataset, batch_size=global_batch_size, sampler=sampler)
""",
    right=_HEAD + """
def make_loader(net, dataset, sampler, global_batch_size):
    model = DDP(net)
    share = global_batch_size // dist.get_world_size()
    return model, torch.utils.data.DataLoader(dataset, batch_size=share, sampler=sampler)
""",
    ignore="it was divided before it came here.",
)  # fmt: skip
def global_batch_per_rank(module: Module) -> Iterator[Hit]:
    """batch_size=global_batch_size, and nothing in the file divides it; DeepSpeed's train_batch_size for a loader."""
    yield from _of_deepspeed(module)
    if not is_distributed(module) or has_framework(module):
        return
    for call in module.named(LOADER):
        size = call.argument("batch_size", 1)
        name = "" if size is None else _option(size)
        if size is None or not name:
            continue
        told = re.search(r"^(global|total|effective)_?batch", name, re.IGNORECASE) or _is_global(module, name)
        if not told or call.keyword("batch_sampler"):
            continue
        others = module.source.replace(f"batch_size={module.text(size)}", "")
        if not re.search(rf"\b{name}\b(['\"]?(, *\w+)?[\])]+)?\s*(//|/|=)", others):
            yield Hit(size, {"text": module.text(size)})


def _option(node: ast.expr) -> str:
    """Return the name of a variable, or of an option: ``size``, ``args.size``, ``config["size"]``, ``config.get("size")``."""
    if isinstance(node, ast.Name | ast.Attribute):
        return last(text_of(node))
    key = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(node, ast.Call) and last(text_of(node.func)) == "get" and node.args:
        key = node.args[0]
    name = key.value if isinstance(key, ast.Constant) else None
    return name if isinstance(name, str) and name.isidentifier() else ""


def _of_deepspeed(module: Module) -> Iterator[Hit]:
    """Yield the batch sizes of loaders that are what the configuration of DeepSpeed calls train_batch_size, undivided."""
    if "deepspeed.initialize" not in module.by_name or _MICRO.search(module.source):
        return
    told = set()
    for part in (part for part in ast.walk(module.tree) if isinstance(part, ast.Dict)):
        for key, value in zip(part.keys, part.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "train_batch_size":
                told.add(ast.unparse(value))
    for call in module.named(LOADER):
        size = call.argument("batch_size", 1)
        sampler = call.keyword("sampler")
        if size is None or isinstance(size, ast.Constant) or sampler is None:
            continue
        shown = module.value(size, call.place.scope)
        text = ast.unparse(size)
        read = shown is not None and re.fullmatch(
            r"[\w.]+(\[|\.get\()['\"]train_batch_size['\"][\])]", ast.unparse(shown)
        )
        bare = isinstance(size, ast.Name | ast.Attribute) and (text in told or _reaches(module, size, told))
        if read or bare:
            yield Hit(size, {"text": text})


_MICRO = re.compile(r"micro_batch|world_size|device_count|n_?gpus|num_gpus|training_data=")


def _reaches(module: Module, size: ast.expr, told: set[str]) -> bool:
    """Whether a function of this file gets what a loader takes, under the name by which it tells DeepSpeed."""
    for scope in module.scopes:
        for name in set(scope.params) & told if scope.is_function else ():
            if any(part is not None and text_of(part) == text_of(size) for _, part in module.given(scope, name)):
                return True
    return False


_ALL_RANKS = re.compile(
    r"(total|global|overall)\W+(\w+\W+)?batch|batch[- ]?size\W+(\w+\W+)?(of|across|over|for|on|summed over)\W+all\b|"
    r"all (gpus|ranks|processes|devices)",
    re.IGNORECASE,
)


def _is_global(module: Module, name: str) -> bool:
    """Whether an option of the command line says in its help that it is the batch of all ranks."""
    for call in module.methods("add_argument"):
        names = {
            str(part.value).lstrip("-").replace("-", "_") for part in call.node.args if isinstance(part, ast.Constant)
        }
        text = call.argument("help")
        if name in names and isinstance(text, ast.Constant) and _ALL_RANKS.search(str(text.value)):
            return not re.search(r"\bper[- ](gpu|rank|device|process)", str(text.value), re.IGNORECASE)
    return False
