"""RW104, RW106, RW107, RW109 to RW112, RW117: how data, batches, workers and seeds are shared out, beyond the sampler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import has_rank, same_on_all
from rankwise.diagnose.lint.analysis.facts import (
    GROUP,
    HELD_OUT,
    LOADER,
    SAMPLER,
    effective_side,
    has_framework,
    is_before_ranks,
    is_const,
    is_distributed,
    runs_on_several,
)
from rankwise.diagnose.lint.analysis.guards import is_local_rank
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, names_in, nodes_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Scope
from rankwise.diagnose.lint.analysis.shares import is_shared
from rankwise.diagnose.lint.analysis.values import names_of
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import HEAD, Hit, Rule
from rankwise.diagnose.lint.rules.data.data import stream_of

_SHARES = re.compile(
    r"rank|world|replica|num_proc|process_(index|count)|split_by_node|nodesplitter|shard_?(id|index|idx|num)|num_?shards|"
    r"\bshard\(|jax\.|dist\.get",
    re.IGNORECASE,
)


@Rule(
    "RW104", "unseeded-split", "warning", "medium",
    message="each rank draws a split of its own: samples held out on one rank are trained on by another",
    why="random_split without a generator uses the process's global generator, which differs between ranks unless all "
    "were seeded alike before.",
    example=HEAD + """
 def main(dataset):
     dist.init_process_group("nccl")
-    train, val = torch.utils.data.random_split(dataset, [900, 100])
+    generator = torch.Generator().manual_seed(0)
+    train, val = torch.utils.data.random_split(dataset, [900, 100], generator=generator)
     return train, val
""",
    ignore="the ranks were seeded alike by something that this file does not show.",
)  # fmt: skip
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
    given = (seed for seed in seeds if names_in(seed.node) & set(seed.place.scope.params))
    told = {seed: module.callers(seed.place.scope) for seed in given}
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
        others = (
            seed
            for seed in seeds
            if seed.place.scope is not call.place.scope or position(seed.node) < position(call.node)
        )
        if not any(same_on_all(module, seed) for seed in others):
            yield Hit(call.node.func)


@Rule(
    "RW106", "iterable-unsharded", "warning", "medium",
    message="{name} yields the same samples on every rank: an IterableDataset has no sampler",
    why="DataLoader cannot split a stream. The data set itself must leave out what belongs to other ranks (and workers).",
    example="+import itertools\n" + HEAD + """
 class Lines(torch.utils.data.IterableDataset):
     def __init__(self, path):
         self.path = path

     def __iter__(self):
-        yield from open(self.path)
+        yield from itertools.islice(open(self.path), dist.get_rank(), None, dist.get_world_size())

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


@Rule(
    "RW107", "local-rank-shard", "warning", "medium",
    message="data are shared out by the rank on the node ({text}): every node reads the same",
    why="The local rank starts from 0 on each node. Shares need the global rank.",
    example="""
 import os

 def my_files(files):
-    local_rank = int(os.environ["LOCAL_RANK"])
+    rank = int(os.environ["RANK"])
     world_size = int(os.environ["WORLD_SIZE"])
-    return files[local_rank::world_size]
+    return files[rank::world_size]
""",
    ignore="each node has data of its own on its disk.",
)  # fmt: skip
def local_rank_shard(module: Module) -> Iterator[Hit]:
    """files[local_rank::world_size], islice(..., local_rank, None, world_size), shard(index=local_rank)."""
    source = module.source.lower()
    # each share is one of so many, and its number starts from 0 on each node
    if "world" not in source or not re.search("local|gpu_id|rank.{0,9}%", source):
        return
    exits = [place for scope in module.scopes for place in scope.exits]
    nodes: dict[ast.AST, Scope] = {each.value: each.place.scope for each in module.bindings if each.value}
    nodes |= {place.stmt: place.scope for place in exits}
    places = (*(call.place for call in module.calls), *exits)
    nodes |= {branch.test: place.scope for place in places for branch in place.branches}
    found = [(*pair, scope) for node, scope in nodes.items() for part in nodes_in(node) for pair in _pairs(part)]
    slices = (call for call in module.methods("islice") if len(call.node.args) == 4)
    found += [(call.node.args[1], call.node.args[3], call.place.scope) for call in slices]
    # where the rank is the local one and an offset, also Loader(path, rank=local_rank, num_replicas=world_size)
    ranks = (call.argument("rank", 4) for call in module.named(GROUP))
    offset = any(isinstance(rank, ast.BinOp) and isinstance(rank.op, ast.Add) for rank in ranks)
    for call in module.calls if offset else module.methods("shard", "split_dataset_by_node"):
        number = call.argument("index") or call.argument("rank")
        sizes = map(call.argument, ("num_shards", "world_size", "num_replicas", "num_replica"))
        count = next((size for size in sizes if size is not None), None)
        if number is not None and count is not None and re.search("load|data|shard", call.method, re.IGNORECASE):
            found.append((number, count, call.place.scope))
    for index, size, scope in found:
        if _is_local_share(module, index, size, scope):
            yield Hit(index, {"text": module.text(index)})


def _pairs(part: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what may be the index of a share, and the number or the size of shares."""
    match part:
        case ast.Slice(lower=ast.expr() as index, step=ast.expr() as size):  # files[rank::world_size]
            yield index, size
        case ast.Slice(lower=ast.BinOp(one, ast.Mult(), other)):  # files[rank * share:(rank + 1) * share]
            yield from ((one, other), (other, one))
        case ast.keyword(value=ast.BinOp(one, ast.Mult(), other)):  # skip=rank * (number // world_size)
            for index, size in ((one, other), (other, one)):
                if isinstance(size, ast.BinOp) and isinstance(size.op, ast.FloorDiv):
                    yield index, size
        case ast.Compare(one, [ast.Eq() | ast.NotEq()], [other]):  # number % world_size == rank
            for index, size in ((one, other), (other, one)):
                if isinstance(size, ast.BinOp) and isinstance(size.op, ast.Mod):
                    yield index, size.right


def _is_local_share(module: Module, index: ast.expr, size: ast.expr, scope: Scope) -> bool:
    """Whether the rank on the node counts shares of all ranks."""
    lookup = module.lookup(scope)
    groups = (call.argument("rank", 4) for call in module.named(GROUP))
    if any(rank is not None and ast.dump(rank) == ast.dump(index) for rank in groups):
        return False  # what the group counts by is the rank of all nodes
    sized = ast.unparse(size)
    for _ in range(2):  # n = get_world_size(), share = len(files) // n
        found = (lookup(text_of(part)) for part in ast.walk(size) if isinstance(part, ast.Name))
        size = ast.Tuple([value for value in found if value is not None], ast.Load())
        sized += ast.unparse(size)
    return is_local_rank(index, lookup) and "world" in sized.lower() and "local" not in sized.lower()


@Rule(
    "RW109", "workers-per-rank", "warning", "medium",
    message="each rank starts a loader worker for every core of the machine: divide by the ranks on it",
    why="Eight ranks on 64 cores start 512 workers, which fight for the cores and fill the memory.",
    example="import os\n" + HEAD + """
 def make_loader(net, dataset, sampler):
     model = DDP(net)
-    return model, torch.utils.data.DataLoader(dataset, sampler=sampler, num_workers=os.cpu_count())
+    workers = os.cpu_count() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
+    return model, torch.utils.data.DataLoader(dataset, sampler=sampler, num_workers=workers)
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


@Rule(
    "RW117", "sharded-twice", "warning", "medium",
    message="{name} has a DistributedSampler, and {text} shards it once more: each rank reads a share of its share",
    why="Accelerate takes a loader for one that reads all samples, and gives each rank every world_size-th of its batches, "
    "whatever its sampler is. Of N samples an epoch then shows N / world_size. Leave the sampler out.",
    example=_ACCELERATED + """
 def main(dataset, model, optimizer):
     accelerator = Accelerator()
-    sampler = torch.utils.data.distributed.DistributedSampler(dataset)
-    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
+    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
     return accelerator.prepare(model, optimizer, loader)
""",
    ignore="DataLoaderConfiguration says that loaders are sharded already.",
    versions="Accelerate 0.1 to 1.15",
)  # fmt: skip
def sharded_twice(module: Module) -> Iterator[Hit]:
    """A loader with a DistributedSampler, and no other of its name, is given to prepare() of an Accelerator."""
    if not module.imports.uses("accelerate") or "already_sharded" in module.source:
        return
    made = list(module.named(LOADER)) if SAMPLER in module.by_name else []
    for call in module.methods("prepare", "prepare_data_loader"):
        for part in call.node.args if re.search(r"accelerat|^acc$", last(call.base), re.IGNORECASE) else ():
            name = last(text_of(part)) if isinstance(part, ast.Name | ast.Attribute) else ""
            fitting = [each for each in made if each.node is part or (name and name in names_of(module, each))]
            if fitting and all(is_shared(module, each.argument("sampler", 3), each.place) for each in fitting):
                yield Hit(part, {"name": name or "this loader", "text": call.text})


@Rule(
    "RW110", "eval-padding", "info", "medium",
    message="DistributedSampler repeats samples so that all ranks have as many: the evaluation counts them twice",
    why="The set is padded to a multiple of the world size. Numbers depend on the number of ranks.",
    example=HEAD + """
 def make_loader(val_set):
-    sampler = torch.utils.data.distributed.DistributedSampler(val_set, shuffle=False)
-    return torch.utils.data.DataLoader(val_set, sampler=sampler)
+    mine = torch.utils.data.Subset(val_set, range(dist.get_rank(), len(val_set), dist.get_world_size()))
+    return torch.utils.data.DataLoader(mine)
""",
    ignore="the size is a multiple of the world size, or a rough number is enough.",
)  # fmt: skip
def eval_padding(module: Module) -> Iterator[Hit]:
    """A sampler over something that is called val, test or eval, without drop_last."""
    for call in module.named(SAMPLER):
        data = call.argument("dataset", 0)
        if data is not None and re.search(r"val|test|eval|dev_", module.text(data), re.IGNORECASE):
            yield Hit(call.node.func)


@Rule(
    "RW111", "same-seed-everywhere", "info", "medium",
    message="all ranks draw the same random numbers: dropout and augmentation are equal on all of them",
    why="DDP makes the parameters equal by itself. Add the rank to the seed once the model is built.",
    example=HEAD + """
 def main(net):
-    torch.manual_seed(0)
+    torch.manual_seed(dist.get_rank())
     return DDP(net)
""",
    ignore="nothing random happens after the model is built.",
)  # fmt: skip
def same_seed_everywhere(module: Module) -> Iterator[Hit]:
    """manual_seed without the rank in a file that wraps."""
    calls = list(module.named("torch.manual_seed"))
    if wraps(module) and calls and all(same_on_all(module, call) for call in calls):
        yield Hit(calls[0].node)


@Rule(
    "RW112", "nonblocking-unpinned", "info", "medium",
    message="non_blocking=True copies no faster from memory that is not pinned: pin_memory=True in the DataLoader",
    why="Only a copy from pinned memory overlaps with the GPU's work.",
    example=HEAD + """
 def train(model, dataset, device):
-    for x in torch.utils.data.DataLoader(dataset):
+    for x in torch.utils.data.DataLoader(dataset, pin_memory=True):
         model(x.to(device, non_blocking=True)).sum().backward()
""",
    ignore="the tensors are pinned elsewhere.",
)  # fmt: skip
def nonblocking_unpinned(module: Module) -> Iterator[Hit]:
    """non_blocking=True, loaders in the same file, no word of pinning."""
    loaders = list(module.named(LOADER))
    pinned = module.has_call("pin_memory") or any(call.is_open or call.keyword("pin_memory") for call in loaders)
    if pinned or not loaders:
        return
    for call in module.methods("to", "cuda"):
        word = call.keyword("non_blocking")
        if word is not None and is_const(word.value, True):
            yield Hit(word)
            return
