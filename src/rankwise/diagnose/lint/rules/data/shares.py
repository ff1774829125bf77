"""RW104, RW106, RW107, RW109 to RW112, RW117: how data, batches, workers and seeds are shared out, beyond the sampler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import has_rank, same_on_all
from rankwise.diagnose.lint.analysis.facts import (
    LOADER,
    SAMPLER,
    effective_side,
    has_framework,
    is_before_ranks,
    is_const,
    is_distributed,
    names_in,
    runs_on_several,
)
from rankwise.diagnose.lint.analysis.guards import LOCAL_RANK_NAMES, is_local_rank
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.shares import is_shared
from rankwise.diagnose.lint.analysis.values import names_of
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import Hit, rule
from rankwise.diagnose.lint.rules.data.data import HELD_OUT, stream_of

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
_SHARES = re.compile(
    r"rank|world|replica|num_proc|process_(index|count)|split_by_node|nodesplitter|shard_?(id|index|idx|num)|num_?shards|"
    r"\bshard\(|jax\.|dist\.get",
    re.IGNORECASE,
)


@rule(
    "RW104",
    "unseeded-split",
    "warning",
    "medium",
    message="each rank draws a split of its own: samples held out on one rank are trained on by another",
    why="random_split without a generator uses the process's global generator, which differs between ranks unless all "
    "were seeded alike before.",
    wrong="""
import torch
import torch.distributed as dist

def main(dataset):
    dist.init_process_group("nccl")
    train, val = torch.utils.data.random_split(dataset, [900, 100])
    return train, val
""",
    right="""
import torch
import torch.distributed as dist

def main(dataset):
    dist.init_process_group("nccl")
    generator = torch.Generator().manual_seed(0)
    train, val = torch.utils.data.random_split(dataset, [900, 100], generator=generator)
    return train, val
""",
    ignore="the ranks were seeded alike by something that this file does not show.",
)
def unseeded_split(module: Module) -> Iterator[Hit]:
    """random_split without generator, or scikit-learn's, and no seed before it; or one that holds the rank."""
    lightning = runs_on_several(module)
    calls = list(module.named("torch.utils.data.random_split", "sklearn.model_selection.train_test_split"))
    users = module.find_users() if calls and not lightning and not has_framework(module) else []
    started = is_distributed(module) or any(is_distributed(user) and not has_framework(user) for user in users)
    if not lightning and (not started or has_framework(module)):
        return
    # what imports this file may have seeded before it calls it
    if any("seed" in call.method.lower() for user in users for call in user.calls):
        return
    seeds = [call for call in module.calls if "seed" in call.method.lower() and "worker" not in call.method.lower()]
    # what a function seeds by what it is given is told by its calls
    told = {
        seed: module.callers(seed.place.scope) for seed in seeds if names_in(seed.node) & set(seed.place.scope.params)
    }
    seeds = [each for seed in seeds for each in told.get(seed) or [seed]]
    for call in calls:
        if call.argument("generator", 2) is not None and call.method == "random_split":
            continue
        if call.is_open or is_before_ranks(module, call.place.scope):
            continue
        if lightning and (seeds or call.place.scope.name == "prepare_data"):
            continue
        drawn, shuffled = call.argument("random_state"), call.argument("shuffle")  # of scikit-learn
        if (drawn is not None and not is_const(drawn, None)) or is_const(shuffled, False):
            continue
        before = [
            seed
            for seed in seeds
            if position(seed.node) < position(call.node) or seed.place.scope is not call.place.scope
        ]
        if not any(same_on_all(module, seed) for seed in before):
            yield Hit(call.node.func)


@rule(
    "RW106", "iterable-unsharded", "warning", "medium",
    message="{name} yields the same samples on every rank: an IterableDataset has no sampler",
    why="DataLoader cannot split a stream. The data set itself must leave out what belongs to other ranks (and workers).",
    wrong=_HEAD + """
class Lines(torch.utils.data.IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        yield from open(self.path)

def main(net, path):
    model = DDP(net)
    return model, torch.utils.data.DataLoader(Lines(path), batch_size=8)
""",
    right="import itertools\n" + _HEAD + """
class Lines(torch.utils.data.IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        yield from itertools.islice(open(self.path), dist.get_rank(), None, dist.get_world_size())

def main(net, path):
    model = DDP(net)
    return model, torch.utils.data.DataLoader(Lines(path), batch_size=8)
""",
    ignore="the files that are given to it are this rank's own.",
)  # fmt: skip
def iterable_unsharded(module: Module) -> Iterator[Hit]:
    """A class of this file without a word of ranks, in a loader."""
    if not runs_on_several(module) and (not wraps(module) or has_framework(module)):
        return
    for call in module.named(LOADER):
        chain = stream_of(module, call)
        if not chain or any(_SHARES.search(ast.unparse(part)) for part in chain):
            continue
        made = chain[-1]
        assert isinstance(made, ast.Call)
        # what one rank reads alone is all of it
        if has_rank(module, made, call.place.scope) or effective_side(module, call.place):
            continue
        if not any(HELD_OUT.search(name) for name in (call.place.scope.name, *names_of(module, call))):
            yield Hit(call.node.func, {"name": module.text(made.func)})


@rule(
    "RW107", "local-rank-shard", "warning", "medium",
    message="data are shared out by the rank on the node ({text}): every node reads the same",
    why="The local rank starts from 0 on each node. Shares need the global rank.",
    wrong="""
import os

def my_files(files):
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    return files[local_rank::world_size]
""",
    right="""
import os

def my_files(files):
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    return files[rank::world_size]
""",
    ignore="each node has data of its own on its disk.",
)  # fmt: skip
def local_rank_shard(module: Module) -> Iterator[Hit]:
    """files[local_rank::world_size], islice(..., local_rank, None, world_size), shard(index=local_rank)."""
    nodes: list[tuple[ast.AST, Scope]] = [(each.value, each.place.scope) for each in module.bindings if each.value]
    nodes += [(each.node, each.place.scope) for each in module.exits]
    tests = {branch: call.place.scope for call in module.calls for branch in call.place.branches}
    nodes += [(branch.test, scope) for branch, scope in tests.items()]
    nodes += [(exit_.place.branches[-1].test, exit_.place.scope) for exit_ in module.exits if exit_.place.branches]
    for node, scope in nodes if "world" in module.source.lower() else ():  # each share is one of so many
        for part in ast.walk(node):
            if isinstance(part, ast.Slice) and part.lower is not None and part.step is not None:
                yield from _share(module, part.lower, part.step, scope)
            elif (
                isinstance(part, ast.Slice)
                and isinstance(part.lower, ast.BinOp)
                and isinstance(part.lower.op, ast.Mult)
            ):
                for index, size in ((part.lower.left, part.lower.right), (part.lower.right, part.lower.left)):
                    yield from _share(module, index, size, scope)  # files[rank * share:(rank + 1) * share]
            elif (
                isinstance(part, ast.keyword)
                and isinstance(part.value, ast.BinOp)
                and isinstance(part.value.op, ast.Mult)
            ):
                for index, size in ((part.value.left, part.value.right), (part.value.right, part.value.left)):
                    if isinstance(size, ast.BinOp) and isinstance(size.op, ast.FloorDiv):
                        yield from _share(module, index, size, scope)  # skip=rank * (number // world_size)
            elif isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq | ast.NotEq):
                for index, size in ((part.left, part.comparators[0]), (part.comparators[0], part.left)):
                    if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mod):  # number % world_size == rank
                        yield from _share(module, index, size.right, scope)
    for call in module.methods("islice"):
        if len(call.node.args) == 4:
            yield from _share(module, call.node.args[1], call.node.args[3], call.place.scope)
    # where the rank is the local one and an offset, also Loader(path, rank=local_rank, num_replicas=world_size)
    ranks = (call.argument("rank", 4) for call in module.named("torch.distributed.init_process_group"))
    offset = any(isinstance(rank, ast.BinOp) and isinstance(rank.op, ast.Add) for rank in ranks)
    for call in module.calls if offset else module.methods("shard", "split_dataset_by_node"):
        number = call.keyword("index") or call.keyword("rank")
        sizes = ("num_shards", "world_size", "num_replicas", "num_replica")
        count = next((word for word in map(call.keyword, sizes) if word is not None), None)
        if number is not None and count is not None and re.search("load|data|shard", call.method, re.IGNORECASE):
            yield from _share(module, number.value, count.value, call.place.scope)


def _share(module: Module, index: ast.expr, size: ast.expr, scope: Scope) -> Iterator[Hit]:
    lookup = module.lookup(scope)
    groups = (call.argument("rank", 4) for call in module.named("torch.distributed.init_process_group"))
    if any(rank is not None and ast.dump(rank) == ast.dump(index) for rank in groups):
        return  # what the group counts by is the rank of all nodes
    sized = ast.unparse(size)
    for _ in range(2):  # n = get_world_size(), share = len(files) // n
        found = (lookup(text_of(part)) for part in ast.walk(size) if isinstance(part, ast.Name))
        size = ast.Tuple([value for value in found if value is not None], ast.Load())
        sized += ast.unparse(size)
    if is_local_rank(index, lookup) and re.search("world", sized, re.IGNORECASE) and "local" not in sized.lower():
        yield Hit(index, {"text": module.text(index)})


@rule(
    "RW109", "workers-per-rank", "warning", "medium",
    message="each rank starts a loader worker for every core of the machine: divide by the ranks on it",
    why="Eight ranks on 64 cores start 512 workers, which fight for the cores and fill the memory.",
    wrong="import os\n" + _HEAD + """
def make_loader(net, dataset, sampler):
    model = DDP(net)
    return model, torch.utils.data.DataLoader(dataset, sampler=sampler, num_workers=os.cpu_count())
""",
    right="import os\n" + _HEAD + """
def make_loader(net, dataset, sampler):
    model = DDP(net)
    workers = os.cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return model, torch.utils.data.DataLoader(dataset, sampler=sampler, num_workers=workers)
""",
    ignore="there is one rank per machine.",
)  # fmt: skip
def workers_per_rank(module: Module) -> Iterator[Hit]:
    """num_workers is cpu_count() itself, less a few, or at most a number that is large."""
    if not is_distributed(module):
        return
    for call in module.named(LOADER):
        given = call.argument("num_workers", 5)
        if given is not None and _counts_cores(module, module.value(given, call.place.scope)):
            yield Hit(given)


_COUNTS = {"os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count"}
_MANY_WORKERS = 16  # min(cpu_count(), 8) is a number that eight ranks of a machine can bear


def _counts_cores(module: Module, node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return isinstance(node.right, ast.Constant) and _counts_cores(module, node.left)
    if not isinstance(node, ast.Call):
        return False
    if text_of(node.func) == "min" and node.args and not node.keywords:
        parts = node.args[0].elts if isinstance(node.args[0], ast.List | ast.Tuple) else node.args
        most = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, int)]
        others = [part for part in parts if not isinstance(part, ast.Constant)]
        large = all(number >= _MANY_WORKERS for number in most)
        return large and bool(others) and all(_counts_cores(module, part) for part in others)
    return module.name_of(node.func) in _COUNTS


_ACCELERATED = "import torch\nfrom accelerate import Accelerator\n"


@rule(
    "RW117", "sharded-twice", "warning", "medium",
    message="{name} has a DistributedSampler, and {text} shards it once more: each rank reads a share of its share",
    why="Accelerate takes a loader for one that reads all samples, and gives each rank every world_size-th of its batches, "
    "whatever its sampler is. Of N samples an epoch then shows N / world_size. Leave the sampler out.",
    wrong=_ACCELERATED + """
def main(dataset, model, optimizer):
    accelerator = Accelerator()
    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
    return accelerator.prepare(model, optimizer, loader)
""",
    right=_ACCELERATED + """
def main(dataset, model, optimizer):
    accelerator = Accelerator()
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
    return accelerator.prepare(model, optimizer, loader)
""",
    ignore="DataLoaderConfiguration says that loaders are sharded already.",
    versions="Accelerate 0.1 to 1.15",
)  # fmt: skip
def sharded_twice(module: Module) -> Iterator[Hit]:
    """A loader with a DistributedSampler, and no other of its name, is given to prepare() of an Accelerator."""
    if not module.imports.uses("accelerate") or "already_sharded" in module.source:
        return
    made = [call for call in module.named(LOADER) if SAMPLER in module.by_name]
    for call in module.methods("prepare", "prepare_data_loader"):
        for part in call.node.args if re.search(r"accelerat|^acc$", last(call.base), re.IGNORECASE) else ():
            name = last(text_of(part)) if isinstance(part, ast.Name | ast.Attribute) else ""
            fitting = [each for each in made if each.node is part or (name and name in names_of(module, each))]
            if fitting and all(is_shared(module, each.argument("sampler", 3), each.place) for each in fitting):
                yield Hit(part, {"name": name or "this loader", "text": call.text})


@rule(
    "RW110", "eval-padding", "info", "medium",
    message="DistributedSampler repeats samples so that all ranks have as many: the evaluation counts them twice",
    why="The set is padded to a multiple of the world size. Numbers depend on the number of ranks.",
    wrong=_HEAD + """
def make_loader(val_set):
    sampler = torch.utils.data.distributed.DistributedSampler(val_set, shuffle=False)
    return torch.utils.data.DataLoader(val_set, sampler=sampler)
""",
    right=_HEAD + """
def make_loader(val_set):
    mine = torch.utils.data.Subset(val_set, range(dist.get_rank(), len(val_set), dist.get_world_size()))
    return torch.utils.data.DataLoader(mine)
""",
    ignore="the size is a multiple of the world size, or a rough number is enough.",
)  # fmt: skip
def eval_padding(module: Module) -> Iterator[Hit]:
    """A sampler over something that is called val, test or eval, without drop_last."""
    for call in module.named(SAMPLER):
        data = call.argument("dataset", 0)
        if data is not None and re.search(r"val|test|eval|dev_", module.text(data), re.IGNORECASE):
            yield Hit(call.node.func)


@rule(
    "RW111", "same-seed-everywhere", "info", "medium",
    message="all ranks draw the same random numbers: dropout and augmentation are equal on all of them",
    why="DDP makes the parameters equal by itself. Add the rank to the seed once the model is built.",
    wrong=_HEAD + """
def main(net):
    torch.manual_seed(0)
    return DDP(net)
""",
    right=_HEAD + """
def main(net):
    torch.manual_seed(dist.get_rank())
    return DDP(net)
""",
    ignore="nothing random happens after the model is built.",
)  # fmt: skip
def same_seed_everywhere(module: Module) -> Iterator[Hit]:
    """manual_seed without the rank in a file that wraps."""
    calls = list(module.named("torch.manual_seed"))
    if wraps(module) and calls and not any(_ranked(call) for call in calls):
        yield Hit(calls[0].node)


def _ranked(call: Call) -> bool:
    return any("rank" in name.lower() or name in LOCAL_RANK_NAMES for name in names_in(call.node))


@rule(
    "RW112", "nonblocking-unpinned", "info", "medium",
    message="non_blocking=True copies no faster from memory that is not pinned: pin_memory=True in the DataLoader",
    why="Only a copy from pinned memory overlaps with the GPU's work.",
    wrong="""
import torch

def train(model, dataset, device):
    for x in torch.utils.data.DataLoader(dataset):
        model(x.to(device, non_blocking=True)).sum().backward()
""",
    right="""
import torch

def train(model, dataset, device):
    for x in torch.utils.data.DataLoader(dataset, pin_memory=True):
        model(x.to(device, non_blocking=True)).sum().backward()
""",
    ignore="the tensors are pinned elsewhere.",
)  # fmt: skip
def nonblocking_unpinned(module: Module) -> Iterator[Hit]:
    """non_blocking=True, loaders in the same file, no word of pinning."""
    loaders = list(module.named(LOADER))
    if (
        not loaders
        or any(call.is_open or call.keyword("pin_memory") for call in loaders)
        or module.has_call("pin_memory")
    ):
        return
    for call in module.methods("to", "cuda"):
        word = call.keyword("non_blocking")
        if word is not None and is_const(word.value, True):
            yield Hit(word)
            return
