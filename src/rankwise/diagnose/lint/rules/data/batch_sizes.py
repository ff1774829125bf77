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
    """batch_size=global_batch_size, and nothing in the file divides it."""
    if not is_distributed(module) or has_framework(module):
        return
    for call in module.named(LOADER):
        size = call.argument("batch_size", 1)
        name = "" if size is None else _option(size)
        if size is None or not name:
            continue
        told = re.search(r"^(global|total|effective)_?batch", name, re.IGNORECASE)
        if not told or call.keyword("batch_sampler"):
            continue
        others = module.source.replace(f"batch_size={module.text(size)}", "")
        others = _SCALED_RATE.sub("", others)
        if not re.search(rf"\b{name}\b(['\"]?(, *\w+)?[\])]+)?\s*(//|/|=(?!=))", others):
            yield Hit(size, {"text": module.text(size)})


# `lr * global_batch_size / 256` takes no rank's part of it
_SCALED_RATE = re.compile(r"(lr|rate)\w*\b[^\n=]*=?[^\n=/]*(?<!/)/\s*(\d[\d.]*|\w*base\w*|\w*ref\w*)\b", re.IGNORECASE)


def _option(node: ast.expr) -> str:
    """Return the name of a variable, or of an option: ``size``, ``args.size``, ``config["size"]``."""
    if isinstance(node, ast.Name | ast.Attribute):
        return last(text_of(node))
    key = node.slice if isinstance(node, ast.Subscript) else None
    name = key.value if isinstance(key, ast.Constant) else None
    return name if isinstance(name, str) and name.isidentifier() else ""
