"""RW1: which rank sees which samples, in which order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.facts import (
    LOADER,
    SAMPLER,
    has_framework,
    is_before_ranks,
    is_const,
    is_fixed,
    loops_around,
    loops_that_train,
    names_in,
    without_keyword,
)
from rankwise.diagnose.lint.handed import names_behind, names_of
from rankwise.diagnose.lint.module import Binding, Call, Module, position
from rankwise.diagnose.lint.names import last, text_of
from rankwise.diagnose.lint.ranked import runs_on_several
from rankwise.diagnose.lint.record import Edit, Fix, Hit, rule
from rankwise.diagnose.lint.wrapped import wraps

_SHARDS = re.compile(r"rank|world|shard|replica|worker|split", re.IGNORECASE)
_SHARDED_MODELS = ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.fully_shard")
# what takes a loader and shards it
_PRIVATE = ("make_private", "make_private_with_epsilon")
_SHARDERS = ("prepare", "prepare_data_loader", "setup_dataloaders", "deepspeed_io", *_PRIVATE)
# samplers of torch that draw from the whole data set
_FOR_ALL = ("RandomSampler", "SequentialSampler", "SubsetRandomSampler")
_SHARDING_CALLS = ("split_dataset_by_node", "shard", "split_by_node", "skip")


def _trained_loaders(module: Module) -> Iterator[tuple[Call, ast.stmt]]:
    """Yield the calls of DataLoader whose result a training loop of the same file iterates."""
    around = loops_around(module)
    loops = [
        (loop, names_behind(module, _gone_through(module, loop), around[loop][0]))
        for loop in loops_that_train(module)
        if loop in around
    ]
    for call in module.named(LOADER):
        names = names_of(module, call)
        handed = [loop for loop in _training_fors(module) if _handed_over(module, loop, names)]
        straight = [loop for loop, _ in loops if isinstance(loop, ast.For) and call.node in ast.walk(loop.iter)]
        for loop in (*straight, *(loop for loop, used in loops if names & used), *handed):
            yield call, loop
            break


_READERS = frozenset({"tqdm", "enumerate", "iter", "cycle", "infinite", "trange", "track"})


def _gone_through(module: Module, loop: ast.stmt) -> set[str]:
    """Return the names that a loop goes through: ``for x in tqdm(loader)``, or ``next(batches)`` in its body."""
    names = names_in(loop.iter) if isinstance(loop, ast.For) else set()
    nexts = (call for call in module.methods("next") if loop in call.place.loops)
    names |= {name for call in nexts for part in call.node.args[:1] for name in names_in(part)}
    made = (found for found in module.bindings if last(found.text) in names and isinstance(found.value, ast.Call))
    read = (found.value for found in made if last(text_of(found.value.func)) in _READERS)  # type: ignore[union-attr]
    return names | {name for value in read for name in names_in(value)}


def _handed_over(module: Module, loop: ast.For, names: set[str]) -> bool:
    """Whether a loop goes over a parameter of its function that is called here with a loader for training."""
    if not any("train" in name.lower() for name in names):
        return False
    scope = loops_around(module)[loop][0]
    if set(scope.params) & names_in(loop.iter):
        for call in module.methods(scope.name):
            given = [*call.node.args, *(word.value for word in call.node.keywords)]
            if any(isinstance(part, ast.Name) and part.id in names for part in given):
                return True
    return False


def _training_fors(module: Module) -> list[ast.For]:
    return [loop for loop in loops_that_train(module) if isinstance(loop, ast.For)]


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
    if module.has_call(*_SHARDING_CALLS):
        return
    yield from _left_alone_by_lightning(module)
    if not _wraps_only(module):
        return
    # where there is a sampler, it may be another loader's; a name that is imported and never called shares nothing
    sampled = any("Sampler" in name and name not in _FOR_ALL for name in module.by_method)
    handed = {name for call in module.methods(*_SHARDERS) for name in names_in(call.node)}
    for call, loop in _trained_loaders(module):
        names = names_of(module, call)
        if handed & names or handed & names_in(getattr(loop, "iter", None)):
            continue
        shuffled = call.keyword("shuffle")
        if sampled and not (shuffled is not None and is_const(shuffled.value, True) and _is_only(module, call, names)):
            continue
        sampler = module.value(call.argument("sampler", 3), call.place.scope)
        shares = sampler is not None and not (isinstance(sampler, ast.Call) and last(text_of(sampler.func)) in _FOR_ALL)
        if call.is_open or shares or call.keyword("batch_sampler") or len(call.node.args) > 4:
            continue
        if is_before_ranks(module, loops_around(module)[loop][0]):
            continue
        data = call.argument("dataset", 0)
        made = module.value(data, call.place.scope)
        if isinstance(made, ast.Call) and (_SHARDS.search(module.text(made)) or _is_stream(module, made)):
            continue
        if any(_SHARDS.search(name) for name in names_in(data)):
            continue
        if shuffled is None or not any(_MODES.search(name) for name in names_in(shuffled.value)):
            yield Hit(call.node.func)


def _left_alone_by_lightning(module: Module) -> Iterator[Hit]:
    """Yield loaders for training of a file whose Trainer is told to add no sampler, where there is none."""
    words = ("use_distributed_sampler", "replace_sampler_ddp")
    trainers = [call for call in module.methods("Trainer") if any(_is_off(call, word) for word in words)]
    if not trainers or not runs_on_several(module) or any("ampler" in name for name in module.by_method):
        return
    for call in module.named(LOADER):
        shuffled = call.keyword("shuffle")
        data = call.argument("dataset", 0)
        plain = not call.is_open and not call.keyword("sampler") and not call.keyword("batch_sampler")
        own = data is not None and any(_SHARDS.search(name) for name in names_in(data))
        drawn = shuffled is not None and is_const(shuffled.value, True)
        if plain and not own and drawn and call.place.scope.name == "train_dataloader":
            yield Hit(call.node.func)


def _is_off(call: Call, name: str) -> bool:
    word = call.keyword(name)
    return word is not None and is_const(word.value, False)


def _is_stream(module: Module, made: ast.Call) -> bool:
    """Whether a data set is a stream, which takes no sampler: `iterable-unsharded` looks at those of this file."""
    owner = module.top.functions.get(text_of(made.func))
    bases = owner.node.bases if owner is not None and isinstance(owner.node, ast.ClassDef) else ()
    return any("Iterable" in text_of(part) for part in (made.func, *bases))


_MODES = re.compile(r"dist|ddp|sampler|world|rank|gpu|multi|parallel", re.IGNORECASE)


def _is_only(module: Module, call: Call, names: set[str]) -> bool:
    """Whether a loader stands in no branch, and no other one, which may have a sampler, goes by its names."""
    others = [found for found in module.named(LOADER) if found is not call and names_of(module, found) & names]
    return not call.place.branches and not others and not any(_HELD_OUT.search(name) for name in names)


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
        edit = without_keyword(module, call, "shuffle")
        yield Hit(shuffled, {}, Fix("remove shuffle=True", (edit,)) if edit else None)


def _epoch_name(module: Module, loop: ast.stmt) -> str | None:
    """Return the name that counts epochs, "" where a `while` counts them; None where a loop counts something else."""
    if isinstance(loop, ast.While):
        return "" if "epoch" in ast.unparse(loop.test).lower() else None
    if not isinstance(loop, ast.For):
        return None
    target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
    if not isinstance(target, ast.Name):
        return None
    bound = [found.value for found in module.bindings if isinstance(loop.iter, ast.Name) and found.text == loop.iter.id]
    counts = bound[-1] if bound and bound[-1] is not None else loop.iter
    counts = counts.body if isinstance(counts, ast.IfExp) else counts
    counted = isinstance(counts, ast.Call) and last(text_of(counts.func)) in {"range", "trange", "count", "tqdm"}
    epochs = "epoch" in target.id.lower() or (counted and "epoch" in ast.unparse(counts).lower())
    return target.id if epochs else None


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
    told = told or any(found.text.endswith("sampler.epoch") for found in module.bindings)
    others = _told_others(module)
    told = told and not others
    if told or SAMPLER not in module.by_name or _sets_epochs(module) or _set_epoch_elsewhere(module):
        return
    loops = [loop for loop in _epoch_loops(module) if not _runs_once(loop)]
    if not loops and not _goes_on_for_ever(module):
        return
    for call, bound in _samplers(module):
        name = "" if bound is None else last(bound.text)
        if others and name in {"", *others}:
            continue
        data = call.argument("dataset", 0)
        if _HELD_OUT.search(name) or (data is not None and _HELD_OUT.search(ast.unparse(data))):
            continue
        yield Hit(call.node.func, {}, _set_epoch_fix(module, bound, loops))


def _told_others(module: Module) -> set[str]:
    """Return the samplers that are told the epoch, where each is one of this file, by its own name."""
    through = _samplers_of_loaders(module)
    told = {through.get(call.base, call.base) for call in module.methods("set_epoch")}
    made = {found.text for call in module.named(SAMPLER) for found in module.bindings if found.value is call.node}
    return told if told and told <= made and all("." not in name for name in told) else set()


def _samplers_of_loaders(module: Module) -> dict[str, str]:
    """Return ``loader.sampler`` for each loader of this file, and the name of the one sampler that it was given."""
    found: dict[str, set[str]] = {}
    for call in module.named(LOADER) if module.has_call("set_epoch") else ():
        given = call.argument("sampler", 3)
        for name in names_of(module, call):
            found.setdefault(f"{name}.sampler", set()).add(text_of(given) if isinstance(given, ast.Name) else "")
    return {text: next(iter(names)) for text, names in found.items() if len(names) == 1 and "" not in names}


def _sets_epochs(module: Module) -> bool:
    """Whether a library that tells samplers the epoch, or may, is imported; these do not."""
    others = ("deepspeed", "horovod", "ray", "smdistributed", "torch_xla")
    return has_framework(module) and not any(module.imports.uses(name) for name in others)


def _set_epoch_elsewhere(module: Module) -> bool:
    """Whether a function of another given file, called here, tells the epoch."""
    for call in module.calls:
        if call.name and not call.name.startswith(("torch.", "?")):
            found = module.find_function(call.name)
            if found is not None and found[0].has_call("set_epoch"):
                return True
    return False


def _epoch_loops(module: Module) -> list[ast.stmt]:
    """Return loops over epochs that train: a backward pass inside, or a call of what has one or is named like it."""
    found: set[ast.stmt] = set()
    around = loops_around(module)
    for loop in loops_that_train(module):
        scope, outer = around[loop]
        found |= {each for each in outer if _epoch_name(module, each) is not None or _repeats(module, loop, each)}
        calls = module.callers(scope) if scope.is_function else []
        found |= {each for call in calls for each in call.place.loops if _epoch_name(module, each) is not None}
    for call in module.calls:
        if call.place.loops and re.search(r"(^|_)(train|fit)|run_epoch|one_epoch", call.method):
            counted = _epoch_name(module, call.place.loops[-1]) is not None
            if counted and (call.method != "train" or call.node.args or call.node.keywords):
                found.add(call.place.loops[-1])
    return sorted(found, key=position)


_ENDLESS = re.compile(r"(^|_)(inf|infinite|endless|forever|cycle)(_|$)|^(Infinite|Endless|Cycl)")


def _goes_on_for_ever(module: Module) -> bool:
    """Whether a loader for training is given to what begins it again at its end: `next(batches)` has no epoch."""
    loaders = {last(found.text) for found in module.bindings if _makes_loader(module, found.value)}
    loaders = {name for name in loaders if not _HELD_OUT.search(name)}
    endless = (call for call in module.calls if _ENDLESS.search(call.method))
    given = {name for call in endless for part in call.node.args[:1] for name in names_in(part)}
    return bool(loaders & given) and module.has_call("backward")


def _repeats(module: Module, loop: ast.stmt, outer: ast.stmt) -> bool:
    """Whether a loop over plain numbers, whatever they are called, goes through a loader again and again."""
    counts = outer.iter if isinstance(outer, ast.For) else None
    counted = isinstance(counts, ast.Call) and last(text_of(counts.func)) in {"range", "trange"}
    loaders = {last(found.text) for found in module.bindings if _makes_loader(module, found.value)}
    return counted and bool(loaders & _gone_through(module, loop))


def _makes_loader(module: Module, value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and module.name_of(value.func) == LOADER


def _runs_once(loop: ast.stmt) -> bool:
    counts = loop.iter if isinstance(loop, ast.For) else None
    return isinstance(counts, ast.Call) and len(counts.args) == 1 and is_const(counts.args[0], 1)


def _set_epoch_fix(module: Module, bound: Binding | None, loops: list[ast.stmt]) -> Fix | None:
    """Return the insertion of set_epoch at the head of the loop over epochs, where sampler and loop share a function."""
    if bound is None or bound.value is None or not isinstance(bound.value, ast.Call) or bound.place.branches:
        return None
    for loop in loops:
        epoch = _epoch_name(module, loop)
        inside = any(loop in found.place.loops and found.place.scope is bound.place.scope for found in module.calls)
        if inside and epoch and isinstance(loop, ast.For) and position(loop) > position(bound.value):
            first = loop.body[0]
            at = module.offset(first.lineno, 0)
            indent = " " * first.col_offset
            if module.source[at : module.span(first)[0]].strip():
                return None
            text = f"{indent}{bound.text}.set_epoch({epoch})\n"
            return Fix(f"call {bound.text}.set_epoch({epoch})", (Edit(at, at, text),))
    return None
