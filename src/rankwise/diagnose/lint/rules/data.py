"""RW1: which rank sees which samples, in which order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.facts import (
    LOADER,
    SAMPLER,
    has_framework,
    is_const,
    is_fixed,
    names_in,
    training_loops,
    wraps,
)
from rankwise.diagnose.lint.guards import is_local_rank
from rankwise.diagnose.lint.module import Binding, Call, Module, position
from rankwise.diagnose.lint.names import last, text_of
from rankwise.diagnose.lint.record import Edit, Fix, Hit, rule

_SHARDS = re.compile(r"rank|world|shard|replica|worker|split", re.IGNORECASE)
_SHARDED_MODELS = ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.fully_shard")
# what takes a loader and shards it
_PRIVATE = ("make_private", "make_private_with_epsilon")
_SHARDERS = ("prepare", "prepare_data_loader", "setup_dataloaders", "deepspeed_io", *_PRIVATE)
_SHARDING_CALLS = ("split_dataset_by_node", "shard", "split_by_node", "skip")


def _without_keyword(module: Module, call: Call, name: str) -> Edit | None:
    """Return the edit that removes a keyword argument with its comma."""
    word = call.keyword(name)
    if word is None or word not in call.node.keywords:  # options that other calls may share
        return None
    start, end = module.span(word)
    source = module.source
    before = re.search(r",\s*$", source[:start])
    if before is not None:
        return Edit(before.start(), end, "")
    behind = re.match(r"\s*,\s*", source[end:])
    return Edit(start, end + (behind.end() if behind else 0), "")


def _trained_loaders(module: Module) -> Iterator[tuple[Call, ast.stmt]]:
    """Yield the calls of DataLoader whose result a training loop of the same file iterates."""
    loops = [(loop, names_in(loop.iter)) for loop in _training_fors(module)]
    for call in module.named(LOADER):
        stmt = call.place.stmt
        if not isinstance(stmt, ast.Assign | ast.AnnAssign):
            continue
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
        names = {last(text_of(target)) for target in targets}
        handed = [loop for loop in _training_fors(module) if _handed_over(module, loop, names)]
        for loop in (*(loop for loop, used in loops if names & used), *handed):
            yield call, loop
            break


def _handed_over(module: Module, loop: ast.For, names: set[str]) -> bool:
    """Whether a loop goes over a parameter of its function that is called here with a loader for training."""
    if not any("train" in name.lower() for name in names):
        return False
    scopes = [call.place.scope for call in module.methods("backward") if loop in call.place.loops]
    for scope in scopes:
        if set(scope.params) & names_in(loop.iter):
            for call in module.methods(scope.name):
                given = [*call.node.args, *(word.value for word in call.node.keywords)]
                if any(isinstance(part, ast.Name) and part.id in names for part in given):
                    return True
    return False


def _training_fors(module: Module) -> list[ast.For]:
    return [loop for loop in training_loops(module) if isinstance(loop, ast.For)]


def _wraps_only(module: Module) -> bool:
    """Whether a model is shared by ranks in a way that leaves the loaders alone."""
    if not has_framework(module):
        return bool(wraps(module)) or any(name in module.by_name for name in _SHARDED_MODELS)
    engines = list(module.named("deepspeed.initialize"))
    if any(call.is_open or call.keyword("mpu") or call.argument("training_data", 4) is not None for call in engines):
        return False
    if engines or "horovod.torch.DistributedOptimizer" in module.by_name:
        return not any(module.imports.uses(name) for name in ("accelerate", "lightning", "pytorch_lightning"))
    prepares = list(module.methods("prepare"))
    return "accelerate.Accelerator" in module.by_name and bool(prepares) and not any(call.is_open for call in prepares)


@rule(
    "RW101",
    "missing-sampler",
    "warning",
    "medium",
    message="every rank reads the whole data set: this loader has no DistributedSampler",
    why="DDP does not split data. Without a sampler each rank goes through all samples: with equal seeds all ranks compute "
    "the same gradient, with different ones an epoch is world_size times as long.",
    wrong="""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(dataset, model, criterion, optimizer):
    model = DDP(model)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
""",
    right="""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

def train(dataset, model, criterion, optimizer):
    model = DDP(model)
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
""",
    ignore="the data set itself holds only this rank's part.",
)
def missing_sampler(module: Module) -> Iterator[Hit]:
    """A training loader without any sampler in a file that wraps a model, or gives a library the model only."""
    if not _wraps_only(module) or module.has_call(*_SHARDING_CALLS):
        return
    if any("Sampler" in name for name in (*module.by_method, *module.imports.bound)):
        return
    handed = {name for call in module.methods(*_SHARDERS) for name in names_in(call.node)}
    for call, loop in _trained_loaders(module):
        stmt = call.place.stmt
        targets = stmt.targets if isinstance(stmt, ast.Assign) else ()
        if handed & {last(text_of(target)) for target in targets} or handed & names_in(getattr(loop, "iter", None)):
            continue
        if call.is_open or call.keyword("sampler") or call.keyword("batch_sampler") or len(call.node.args) > 3:
            continue
        data = call.argument("dataset", 0)
        made = module.value(data, call.place.scope)
        if isinstance(made, ast.Call) and (_SHARDS.search(module.text(made)) or "Iterable" in text_of(made.func)):
            continue
        if any(_SHARDS.search(name) for name in names_in(data)):
            continue
        shuffled = call.keyword("shuffle")
        if shuffled is None or isinstance(shuffled.value, ast.Constant):
            yield Hit(call.node.func)


@rule(
    "RW102",
    "sampler-and-shuffle",
    "error",
    "high",
    message="shuffle=True beside a sampler: DataLoader raises ValueError",
    why="The sampler decides the order; DataLoader refuses both. DistributedSampler shuffles by itself.",
    wrong="""
import torch

def make_loader(dataset):
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    return torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, sampler=sampler)
""",
    right="""
import torch

def make_loader(dataset):
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    return torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
""",
    ignore="never.",
    fix="safe",
)
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
        edit = _without_keyword(module, call, "shuffle")
        yield Hit(shuffled, {}, Fix("remove shuffle=True", (edit,)) if edit else None)


def _epoch_loop(loop: ast.stmt, module: Module) -> ast.For | None:
    """Return the loop over epochs around a training loop, in the same function."""
    for call in module.methods("backward"):
        if loop in call.place.loops:
            around = call.place.loops[: call.place.loops.index(loop)]
            return next((found for found in reversed(around) if isinstance(found, ast.For)), None)
    return None


def _epoch_name(loop: ast.For) -> str | None:
    """Return the name that counts epochs; None where the loop counts something else."""
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
    if not isinstance(target, ast.Name):
        return None
    counted = isinstance(loop.iter, ast.Call) and last(text_of(loop.iter.func)) in {"range", "trange", "count", "tqdm"}
    return (
        target.id if "epoch" in target.id.lower() or (counted and "epoch" in ast.unparse(loop.iter).lower()) else None
    )


def _samplers(module: Module) -> Iterator[tuple[Call, Binding | None]]:
    """Yield the DistributedSamplers that shuffle, with the variable each is bound to."""
    for call in module.named(SAMPLER):
        shuffled = call.argument("shuffle", 3)
        if call.is_open or (shuffled is not None and not is_const(shuffled, True)):
            continue
        bound = next(
            (found for found in module.bindings if found.value is not None and call.node in ast.walk(found.value)), None
        )
        yield call, bound


_HELD_OUT = re.compile(r"val|test|eval|dev", re.IGNORECASE)


@rule(
    "RW103",
    "missing-set-epoch",
    "warning",
    "high",
    message="the sampler is never told the epoch: every epoch has the same order",
    why="DistributedSampler shuffles by (seed, epoch); without set_epoch(epoch) the epoch stays 0, and so does the order.",
    wrong="""
import torch
from torch.utils.data.distributed import DistributedSampler

def train(dataset, model, criterion, optimizer):
    sampler = DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
""",
    right="""
import torch
from torch.utils.data.distributed import DistributedSampler

def train(dataset, model, criterion, optimizer):
    sampler = DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for x, y in loader:
            criterion(model(x), y).backward()
            optimizer.step()
""",
    ignore="there is one epoch only, or the same order is wanted.",
    fix="safe",
)
def missing_set_epoch(module: Module) -> Iterator[Hit]:
    """A shuffling sampler, a loop over epochs in the same file, and nothing that could tell it the epoch."""
    for call in module.methods("set_epoch"):
        counted = any(isinstance(loop, ast.For) and "range" in names_in(loop.iter) for loop in call.place.loops)
        if counted and call.node.args and is_fixed(module, call.node.args[0], call.place.scope):
            yield Hit(call.node)
    told = module.has_call("set_epoch") or "set_epoch" in module.attributes
    if told or SAMPLER not in module.by_name or has_framework(module) or _set_epoch_elsewhere(module):
        return
    loops = [loop for loop in _epoch_loops(module) if not _runs_once(loop)]
    if not loops and not _goes_on_for_ever(module):
        return
    for call, bound in _samplers(module):
        name = "" if bound is None else last(bound.text)
        data = call.argument("dataset", 0)
        if _HELD_OUT.search(name) or (data is not None and _HELD_OUT.search(ast.unparse(data))):
            continue
        yield Hit(call.node.func, {}, _set_epoch_fix(module, bound, loops))


def _set_epoch_elsewhere(module: Module) -> bool:
    """Whether a function of another given file, called here, tells the epoch."""
    for call in module.calls:
        if call.name and not call.name.startswith(("torch.", "?")):
            found = module.find_function(call.name)
            if found is not None and found[0].has_call("set_epoch"):
                return True
    return False


def _epoch_loops(module: Module) -> list[ast.For]:
    """Return loops over epochs that train: a backward pass or a call named like one inside."""
    found = []
    for loop in training_loops(module):
        outer = _epoch_loop(loop, module)
        if outer is not None and (_epoch_name(outer) or _repeats(module, loop, outer)):
            found.append(outer)
    for call in module.calls:
        if call.place.loops and re.search(r"(^|_)(train|fit)|run_epoch|one_epoch", call.method):
            outer_loop = call.place.loops[-1]
            counted = isinstance(outer_loop, ast.For) and _epoch_name(outer_loop)
            if isinstance(outer_loop, ast.For) and counted and (call.method != "train" or call.node.args):
                found.append(outer_loop)
    return sorted(set(found), key=position)


_ENDLESS = re.compile(r"(^|_)(inf|infinite|endless|forever|cycle)(_|$)|^(Infinite|Endless|Cycl)")


def _goes_on_for_ever(module: Module) -> bool:
    """Whether a loader for training is given to what begins it again at its end: `next(batches)` has no epoch."""
    loaders = {last(found.text) for found in module.bindings if _makes_loader(module, found.value)}
    loaders = {name for name in loaders if not _HELD_OUT.search(name)}
    endless = (call for call in module.calls if _ENDLESS.search(call.method))
    given = {name for call in endless for part in call.node.args[:1] for name in names_in(part)}
    return bool(loaders & given) and module.has_call("backward")


def _repeats(module: Module, loop: ast.stmt, outer: ast.For) -> bool:
    """Whether a loop over plain numbers, whatever they are called, goes through a loader again and again."""
    counted = isinstance(outer.iter, ast.Call) and last(text_of(outer.iter.func)) in {"range", "trange"}
    loaders = {last(found.text) for found in module.bindings if _makes_loader(module, found.value)}
    return counted and isinstance(loop, ast.For) and bool(loaders & names_in(loop.iter))


def _makes_loader(module: Module, value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and module.name_of(value.func) == LOADER


def _runs_once(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1 and is_const(loop.iter.args[0], 1)


def _set_epoch_fix(module: Module, bound: Binding | None, loops: list[ast.For]) -> Fix | None:
    """Return the insertion of set_epoch at the head of the loop over epochs, where sampler and loop share a function."""
    if bound is None or bound.value is None or not isinstance(bound.value, ast.Call) or bound.place.branches:
        return None
    for loop in loops:
        epoch = _epoch_name(loop)
        inside = any(loop in found.place.loops and found.place.scope is bound.place.scope for found in module.calls)
        if inside and epoch and position(loop) > position(bound.value):
            first = loop.body[0]
            at = module.offset(first.lineno, 0)
            indent = " " * first.col_offset
            if module.source[at : module.span(first)[0]].strip():
                return None
            text = f"{indent}{bound.text}.set_epoch({epoch})\n"
            return Fix(f"call {bound.text}.set_epoch({epoch})", (Edit(at, at, text),))
    return None


@rule(
    "RW105",
    "sampler-rank",
    "warning",
    "high",
    message="the sampler wants the global rank, and gets the rank on this node: {text}",
    why="On two nodes the ranks of the second one read the same samples as those of the first, and the other samples are never "
    "read. Without the arguments the sampler asks the process group.",
    wrong="""
import os
import torch

def make_sampler(dataset):
    local_rank = int(os.environ["LOCAL_RANK"])
    return torch.utils.data.distributed.DistributedSampler(dataset, num_replicas=8, rank=local_rank)
""",
    right="""
import torch

def make_sampler(dataset):
    return torch.utils.data.distributed.DistributedSampler(dataset)
""",
    ignore="there is one node, and will be.",
    fix="safe",
)
def sampler_rank(module: Module) -> Iterator[Hit]:
    """rank= is a local rank."""
    for call in module.named(SAMPLER):
        given = call.argument("rank", 2)
        if given is None or not _is_local(module, given, call):
            continue
        edits = [edit for name in ("num_replicas", "rank") if (edit := _without_keyword(module, call, name))]
        # the removals of neighbours would overlap in their comma
        fix = Fix("let it ask the process group", tuple(edits)) if call.keyword("rank") and edits else None
        yield Hit(given, {"text": module.text(given)}, fix)


def _is_local(module: Module, given: ast.expr, call: Call, depth: int = 3) -> bool:
    """Whether an argument is a rank on its node: by itself, or as a parameter for which every call here gives one."""
    if is_local_rank(given, lambda text: _bound(module, text, call)):
        return True
    name, scope = text_of(given), call.place.scope
    if not depth or not isinstance(given, ast.Name) or name not in scope.params or _bound(module, name, call):
        return False
    parts = module.given(scope, name)
    return bool(parts) and all(part is not None and _is_local(module, part, found, depth - 1) for found, part in parts)


def _bound(module: Module, text: str, call: Call) -> ast.expr | None:
    found = module.binding(text, call.place.scope)
    return None if found is None else found.value
