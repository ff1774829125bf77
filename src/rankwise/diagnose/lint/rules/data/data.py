"""RW101, RW102, RW108, RW118: what a loader is told: which samples, in which order, how many at a time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import has_rank
from rankwise.diagnose.lint.analysis.facts import (
    FABRICS,
    HELD_OUT,
    LOADER,
    SAMPLER,
    has_framework,
    is_before_ranks,
    is_const,
    is_distributed,
    is_unseen_training,
    loops_around,
    loops_that_train,
    without_keyword,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import called, last, names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.shares import gone_through
from rankwise.diagnose.lint.analysis.values import names_behind, names_of
from rankwise.diagnose.lint.analysis.wrapped import SHARDS, wraps
from rankwise.diagnose.lint.record import HEAD, Fix, Hit, Rule

_SHARDS = re.compile(r"rank|world|shard|replica|worker|split(?!\w*=)", re.IGNORECASE)  # not `split="train"`
# what takes a loader and shards it
_SHARDERS = (
    "prepare",
    "prepare_data_loader",
    "setup_dataloaders",
    "deepspeed_io",
    "make_private",
    "make_private_with_epsilon",
)
# samplers of torch that draw from the whole data set
_FOR_ALL = ("RandomSampler", "SequentialSampler", "SubsetRandomSampler")
_SHARDING_CALLS = ("split_dataset_by_node", "shard", "split_by_node", "skip", "partition_dataset")


def _trained_loaders(module: Module) -> Iterator[tuple[Call, Scope, set[str]]]:
    """Yield the calls of DataLoader whose result is trained on, where that is, and the names by which it is used there.

    A training loop of the same file iterates it, or a function of another file that trains, by its name, is given it.
    """
    around = loops_around(module)
    loops = [
        (loop, names_behind(module, gone_through(module, loop), around[loop][0])) for loop in loops_that_train(module)
    ]
    for call in module.named(LOADER):
        names = names_of(module, call)
        straight = [loop for loop, _ in loops if isinstance(loop, ast.For) and call.node in ast.walk(loop.iter)]
        for loop in (*straight, *(loop for loop, used in loops if names & used)):
            yield call, around[loop][0], names_in(getattr(loop, "iter", None))
            break
        else:
            given = [each for each in module.calls if is_unseen_training(module, each) and names & names_in(each.node)]
            if given and not any(HELD_OUT.search(name) for name in names):
                yield call, given[0].place.scope, set()


def _wraps_only(module: Module) -> bool:
    """Whether a model is shared by ranks in a way that leaves the loaders alone."""
    if not has_framework(module):
        return bool(wraps(module)) or module.has_named(*SHARDS)
    engines = list(module.named("deepspeed.initialize"))
    if any(call.is_open or call.keyword("mpu") or call.argument("training_data", 4) is not None for call in engines):
        return False
    if engines or "horovod.torch.DistributedOptimizer" in module.by_name:
        return not module.imports.uses("accelerate", "lightning", "pytorch_lightning")
    fabrics = [call for call in module.named(*FABRICS) if not is_const(call.argument("devices", 2), 1)]
    if fabrics and any(call.keyword("devices") or call.keyword("strategy") for call in fabrics):
        return module.has_call("setup") and not any(call.is_open for call in fabrics)
    prepares = list(module.methods("prepare"))
    return "accelerate.Accelerator" in module.by_name and bool(prepares) and not any(call.is_open for call in prepares)


@Rule(
    "RW101", "missing-sampler", "warning", "medium",
    message="every rank reads the whole data set: this loader has no DistributedSampler",
    why="DDP does not split data. Without a sampler each rank goes through all samples: with equal seeds all ranks compute "
    "the same gradient, with different ones an epoch is world_size times as long.",
    example=HEAD + """
 def train(dataset, model, criterion, optimizer):
     model = DDP(model)
-    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
+    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
+    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
     for x, y in loader:
         criterion(model(x), y).backward()
         optimizer.step()
""",
    ignore="the data set itself holds only this rank's part.",
)  # fmt: skip
def missing_sampler(module: Module) -> Iterator[Hit]:
    """A training loader without any sampler in a file that wraps a model, or gives a library the model only."""
    if module.has_call(*_SHARDING_CALLS) or not _wraps_only(module):
        return
    # where there is a sampler, it may be another loader's; a name that is imported and never called shares nothing
    sampled = any("Sampler" in name and name not in _FOR_ALL for name in module.by_method)
    sharders = list(module.methods(*_SHARDERS))
    handed = {name for call in sharders for name in names_in(call.node)}
    inside = {part for call in sharders for part in ast.walk(call.node)}
    for call, scope, used in _trained_loaders(module):
        names = names_of(module, call)
        if call.node in inside or handed & names or handed & used:
            continue
        if sampled and not _shuffles_alone(module, call, names):
            continue
        if _takes_all(module, call) and not is_before_ranks(module, scope):
            yield Hit(call.node.func)


def _shuffles_alone(module: Module, call: Call, names: set[str]) -> bool:
    """Whether a loader shuffles by itself, stands in no branch, and no other, which may have a sampler, has its names."""
    shuffled = call.argument("shuffle", 2)
    # so does one that gets its sampler in the place of `shuffle`
    if not is_const(shuffled, True) and module.made_by(module.value(shuffled, call.place.scope)) != SAMPLER:
        return False
    others = [found for found in module.named(LOADER) if found is not call and names_of(module, found) & names]
    return not call.place.branches and not others and not any(HELD_OUT.search(name) for name in names)


def _takes_all(module: Module, call: Call) -> bool:
    """Whether a loader reads the whole of its data set, as far as is seen."""
    sampler = module.value(call.argument("sampler", 3), call.place.scope)
    sides = (sampler.body, sampler.orelse) if isinstance(sampler, ast.IfExp) else (sampler,)
    told = sampler is not None and not all(is_const(side, None) or called(side) in _FOR_ALL for side in sides)
    if told or call.is_open or call.keyword("batch_sampler") or len(call.node.args) > 4:
        return False
    data, shuffled = call.argument("dataset", 0), call.keyword("shuffle")
    made = module.value(data, call.place.scope)
    if isinstance(made, ast.Subscript | ast.ListComp | ast.Call) and _SHARDS.search(module.text(made)):
        return False
    streamed = isinstance(made, ast.Call) and "Iterable" in text_of(made.func)
    if streamed or stream_of(module, call) or any(_SHARDS.search(name) for name in names_in(data)):
        return False
    return shuffled is None or not any(_MODES.search(name) for name in names_in(shuffled.value))


def stream_of(module: Module, call: Call) -> list[ast.AST]:
    """Return the class of the stream that a loader reads, what of this file it uses, and what makes it; empty if no stream.

    A stream takes no sampler: `iterable-unsharded` looks at those.
    """
    made = module.value(call.argument("dataset", 0), call.place.scope)
    owner = module.top.functions.get(text_of(made.func)) if isinstance(made, ast.Call) else None
    if made is None or owner is None or owner.is_function:
        return []
    classes = module.lineage(owner)
    if not any(module.name_of(base) == "torch.utils.data.IterableDataset" for each in classes for base in each.bases):
        return []
    used: list[ast.AST] = [each.node for each in classes]
    for node in used:  # grows while it is read
        inner = (module.top.functions[name].node for name in sorted(names_in(node) & set(module.top.functions)))
        used += [each for each in inner if each not in used]
    return [*used, made]


_MODES = re.compile(r"dist|ddp|sampler|world|rank|gpu|multi|parallel", re.IGNORECASE)


@Rule(
    "RW102", "sampler-and-shuffle", "error", "high",
    message="shuffle=True beside a sampler: DataLoader raises ValueError",
    why="The sampler decides the order; DataLoader refuses both. DistributedSampler shuffles by itself.",
    example=HEAD + """
 def make_loader(dataset):
     sampler = torch.utils.data.distributed.DistributedSampler(dataset)
-    return torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, sampler=sampler)
+    return torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
""",
    fix="safe",
)  # fmt: skip
def sampler_and_shuffle(module: Module) -> Iterator[Hit]:
    """Both given, where the sampler is surely none of None."""
    for call in module.named(LOADER):
        shuffled, sampler = call.keyword("shuffle"), call.keyword("sampler")
        if shuffled is None or sampler is None or not is_const(shuffled.value, True):
            continue
        made = module.value(sampler.value, call.place.scope)
        bound = list(module.bindings_of(text_of(sampler.value), call.place.scope))
        sure = isinstance(made, ast.Call) and "ampler" in text_of(made.func)
        if not sure or any(is_const(found.value, None) for found in bound):
            continue
        edit = without_keyword(module, call, "shuffle")
        yield Hit(shuffled, {}, Fix("remove shuffle=True", (edit,)) if edit else None)


@Rule(
    "RW118", "sampler-seed-per-rank", "error", "high",
    message="the sampler of each rank shuffles by a seed of its own: {text}",
    why="A rank takes every n-th sample of the shuffled data. Of data shuffled otherwise on each, "
    "an epoch misses a quarter with 2 ranks and a third with 8, and reads other samples twice or more.",
    example=HEAD + """
 def make_sampler(dataset, seed):
-    return torch.utils.data.distributed.DistributedSampler(dataset, seed=seed + dist.get_rank())
+    return torch.utils.data.distributed.DistributedSampler(dataset, seed=seed)
""",
)  # fmt: skip
def sampler_seed_per_rank(module: Module) -> Iterator[Hit]:
    """seed= holds the rank, and the sampler shuffles."""
    for call in module.named(SAMPLER):
        seed = call.argument("seed", 4)
        if seed is None or is_const(call.argument("shuffle", 3), False):
            continue
        if has_rank(module, seed, call.place.scope):
            yield Hit(seed, {"text": module.text(seed)})


@Rule(
    "RW108", "global-batch-per-rank", "warning", "medium",
    message="{text} is the batch of all ranks, and each rank loads it whole: divide it by the world size",
    why="batch_size of a DataLoader is per rank. The optimizer then sees world_size times the batch that the name says.",
    example=HEAD + """
 def make_loader(net, dataset, sampler, global_batch_size):
     model = DDP(net)
-    return model, torch.utils.data.DataLoader(dataset, batch_size=global_batch_size, sampler=sampler)
+    share = global_batch_size // dist.get_world_size()
+    return model, torch.utils.data.DataLoader(dataset, batch_size=share, sampler=sampler)
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
