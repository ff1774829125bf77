"""RW114 to RW116: data that each rank takes, prepares or counts as if it were alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    LOADER,
    SAMPLER,
    effective_side,
    has_framework,
    has_rank,
    is_before_ranks,
    is_const,
    is_distributed,
    loops_that_train,
    names_in,
    same_on_all,
    seeds,
    spawns,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Place, Scope
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
_DRAWS = {
    "torch": ("randint", "randperm"),
    "numpy.random": ("randint", "permutation", "choice"),
    "random": ("randint", "sample", "randrange", "choices"),
}
# what a reinforcement learner has gathered itself is this rank's own
_OWN = re.compile(r"buffer|memory|replay|rollout|obs|horizon|traj", re.IGNORECASE)


@rule(
    "RW114", "same-batches", "warning", "medium",
    message="every rank takes the same batches: {what}",
    why="Without a sampler nothing divides the data between the ranks. Ranks that draw with one seed, or cut batches by one "
    "counter, compute the same gradient, and more GPUs teach nothing more.",
    wrong=_HEAD + """
def train(net, data, optimizer):
    torch.manual_seed(0)
    model = DDP(net)
    for _ in range(1000):
        chosen = torch.randint(len(data), (32,))
        model(data[chosen]).sum().backward()
        optimizer.step()
""",
    right=_HEAD + """
def train(net, data, optimizer):
    torch.manual_seed(dist.get_rank())
    model = DDP(net)
    for _ in range(1000):
        chosen = torch.randint(len(data), (32,))
        model(data[chosen]).sum().backward()
        optimizer.step()
""",
    ignore="the data were divided before, by something that this file does not show.",
)  # fmt: skip
def same_batches(module: Module) -> Iterator[Hit]:
    """Indices of training data drawn with a seed that is the same everywhere, or slices by a counter without the rank."""
    if not wraps(module) or has_framework(module):
        return
    loops = loops_that_train(module)
    for call in _draws(module):
        counted = {loop for loop in loops if _is_counted(loop, call)}
        if not _feeds(module, call.place, counted) or _mentions_rank(module, call.place.scope, call):
            continue
        if _indexes(module, call) and _drawn_alike(module, call):
            yield Hit(call.node, {"what": f"{call.text} draws with the same seed on all of them"})
            return
    if LOADER not in module.by_name:
        yield from _slices(module, loops)


def _draws(module: Module) -> Iterator[Call]:
    for root, methods in _DRAWS.items():
        yield from module.named(*(f"{root}.{method}" for method in methods))


def _feeds(module: Module, place: Place, loops: set[ast.stmt]) -> bool:
    """Whether a place lies in a training loop, above one in its function, or in a function that a training loop calls."""
    if set(place.loops) & loops or any(loop in ast.walk(place.scope.node) for loop in loops):
        return True
    return any(set(call.place.loops) & loops for call in module.callers(place.scope))


def _mentions_rank(module: Module, scope: Scope, call: Call) -> bool:
    """Whether a rank cuts, offsets or seeds something where indices are drawn, rather than choosing who prints."""
    index = next((text_of(target) for target in getattr(call.place.stmt, "targets", ())), "")
    # indices that are cut by the rank further on
    cut = re.compile(rf"\b{re.escape(index)}\b[^\n]*(rank|world|proc)", re.IGNORECASE) if index else None
    if cut is not None and cut.search(module.source) is not None:
        return True
    for part in ast.walk(scope.node):
        seeded = isinstance(part, ast.Call) and "seed" in last(text_of(part.func)).lower()
        cuts = isinstance(part, ast.Slice) and part.lower is not None
        # what is computed with a loss has come through a model that knows its device: one step back is far enough
        if isinstance(part, ast.BinOp) and has_rank(module, part, scope, 1):
            return True
        if (seeded or cuts) and has_rank(module, part, scope):  # type: ignore[arg-type]
            return True
    return False


def _is_counted(loop: ast.stmt, call: Call) -> bool:
    """Whether a loop counts steps, or goes through what is drawn; one over a loader has its batches from there."""
    counts = loop.iter if isinstance(loop, ast.For) else None
    if counts is None:
        return isinstance(loop, ast.While)
    drawn = {name for target in getattr(call.place.stmt, "targets", ()) for name in names_in(target)}
    return bool(names_in(counts) & ({"range", "trange", "count"} | drawn))


def _indexes(module: Module, call: Call) -> bool:
    """Whether what is drawn picks samples: the length of what it indexes is what it draws from."""
    names = set().union(*(names_in(part) for part in call.node.args))
    for name in tuple(names):
        found = module.binding(name, call.place.scope)
        if found is not None and found.value is not None:
            names |= names_in(found.value)
    targets = getattr(call.place.stmt, "targets", ())
    chosen = {name for target in targets for name in names_in(target)}
    if _OWN.search(" ".join(names)):
        return False
    body = call.place.scope.node
    picked = set(chosen)
    for part in ast.walk(body):
        if (isinstance(part, ast.comprehension) and names_in(part.iter) & picked) or (
            isinstance(part, ast.For) and names_in(part.iter) & picked
        ):
            picked |= names_in(part.target)
        elif (
            isinstance(part, ast.Assign)
            and isinstance(part.value, ast.Subscript)
            and names_in(part.value.value) & picked
        ):
            picked |= {name for target in part.targets for name in names_in(target)}
    return any(
        isinstance(part, ast.Subscript)
        and (names_in(part.slice) & picked or call.node in ast.walk(part.slice))
        and names_in(part.value) & (names - {"len", "shape", "size", "torch"})
        and not has_rank(module, part.value, call.place.scope)
        for part in ast.walk(body)
    )


def _drawn_alike(module: Module, call: Call) -> bool:
    """Whether the generator was seeded, and by nothing that holds a rank."""
    generator = call.keyword("generator")
    if generator is not None:
        made = module.value(generator.value, call.place.scope)
        return made is not None and "manual_seed" in ast.unparse(made) and not has_rank(module, made, call.place.scope)
    root = call.name.rpartition(".")[0]
    own = {"torch": ("torch.manual_seed",), "numpy.random": ("numpy.random.seed",), "random": ("random.seed",)}[root]
    all_of = [found for found in seeds(module) if found.method != "manual_seed_all"]
    fitting = [
        found for found in all_of if found.name in own or not found.name.startswith(("torch", "numpy", "random"))
    ]
    fitting = [found for found in fitting if found.method != "seed" or found.name]
    return bool(fitting) and all(same_on_all(module, found) for found in fitting)


def _slices(module: Module, loops: set[ast.stmt]) -> Iterator[Hit]:
    """Yield the slices of a training loop over `range(0, n, batch)` that no rank takes part in."""
    for loop in loops:
        counts = loop.iter if isinstance(loop, ast.For) else None
        if not isinstance(counts, ast.Call) or last(text_of(counts.func)) not in {"range", "trange"}:
            continue
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or not counts.args:
            continue
        counter = {loop.target.id}
        text = "\n".join(ast.unparse(stmt) for stmt in loop.body)
        for part in (part for stmt in loop.body for part in ast.walk(stmt)):
            if not isinstance(part, ast.Subscript) or not isinstance(part.slice, ast.Slice) or part.slice.lower is None:
                continue
            data = text_of(part.value)
            if not names_in(part.slice.lower) & counter or data.startswith("?") or part.slice.upper is None:
                continue
            ranked = re.compile("rank|world|shard|proc|local", re.IGNORECASE)
            bound = [found for found in module.bindings if found.value is not None and found.text == data]
            cut = any(_is_cut(module, found.value, found.place) for found in bound if found.value is not None)
            if cut or ranked.search(ast.unparse(counts)) or ranked.search(text) or ranked.search(data):
                continue
            yield Hit(part, {"what": f"{ast.unparse(part)} is cut by a counter that is the same on all of them"})
            return


def _is_cut(module: Module, made: ast.expr, place: Place) -> bool:
    """Whether data hold a rank: by what they are made of, or as one of the files that a loop around them goes through."""
    around = [loop for loop in place.loops if isinstance(loop, ast.For) and names_in(loop.target) & names_in(made)]
    return any(has_rank(module, part, place.scope) for part in (made, *(loop.iter for loop in around)))


_WRITES = frozenset(
    "dump save savez savez_compressed save_to_disk to_csv to_parquet to_pickle to_json to_feather write_text "
    "write_bytes extractall urlretrieve download_url download save_file write_table memmap".split()
)
_EXISTS = frozenset("exists isfile is_file isdir is_dir".split())
_FIRST = re.compile(r"first|zero|main|master|lock|barrier", re.IGNORECASE)


@rule(
    "RW115", "prepared-by-all", "warning", "medium",
    message="every rank finds {path} missing and writes it at the same time; others read it half written",
    why="All ranks run the same lines. Let one rank write, put a barrier behind it, and let all read.",
    wrong=_HEAD + """
import os
import pickle

def load(path, make):
    dist.init_process_group("nccl")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            pickle.dump(make(), file)
    with open(path, "rb") as file:
        return pickle.load(file)
""",
    right=_HEAD + """
import os
import pickle

def load(path, make):
    dist.init_process_group("nccl")
    if dist.get_rank() == 0 and not os.path.exists(path):
        with open(path, "wb") as file:
            pickle.dump(make(), file)
    dist.barrier()
    with open(path, "rb") as file:
        return pickle.load(file)
""",
    ignore="the file is written whole or not at all, or was made before the job starts.",
)  # fmt: skip
def prepared_by_all(module: Module) -> Iterator[Hit]:
    """`if not exists(path):` around what writes, or save_to_disk, on every rank."""
    if not is_distributed(module):
        return
    for branch in module.branches:
        if not isinstance(branch.node, ast.If):
            continue
        missing = next((part for part in ast.walk(branch.test) if _is_missing(part)), None)
        if missing is None or branch.side:
            continue
        inside = [
            call
            for call in module.calls
            if any(each.node is branch.node and each.taken for each in call.place.branches)
        ]
        writes = [call for call in inside if _writes(call)]
        if not writes or any(_FIRST.search(call.method) for call in inside) or not _on_all(module, writes[0]):
            continue
        path = missing.operand.args[0] if missing.operand.args else missing.operand.func  # type: ignore[attr-defined]
        own = has_rank(module, path, writes[0].place.scope)
        if not own and not re.search("rank|local|worker|proc", ast.unparse(path), re.IGNORECASE):
            yield Hit(writes[0].node, {"path": ast.unparse(path)})
    loaded = {call.text for call in module.calls if call.place.side == "main"}
    for call in module.calls:
        asked = call.keyword("download")
        if asked is None or not is_const(asked.value, True) or call.text in loaded:
            continue
        alike = all("__name__" in ast.unparse(branch.test) for branch in call.place.branches)
        if alike and _on_all(module, call):
            yield Hit(call.node, {"path": f"what {call.text} loads"})
    for call in module.methods("save_to_disk"):
        if not call.place.branches and _on_all(module, call) and call.node.args:
            yield Hit(call.node, {"path": module.text(call.node.args[0])})


def _is_missing(node: ast.AST) -> bool:
    """Whether a part of a test asks that a file is not there."""
    asked = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else None
    return isinstance(asked, ast.Call) and last(text_of(asked.func)) in _EXISTS


def _writes(call: Call) -> bool:
    if call.method == "open":
        mode = call.argument("mode", 1 if call.text == "open" else 0)
        return isinstance(mode, ast.Constant) and str(mode.value)[:1] in {"w", "x"}
    if call.method in {"save", "dump"} and not call.node.args:
        return False
    return call.method in _WRITES


def _on_all(module: Module, call: Call) -> bool:
    """Whether every rank makes a call: no test of the rank, no lock and no context around it, or around its function."""
    places = [call.place]
    scope = next((found for found in call.place.scope.chain() if found.is_function), None)
    callers = [] if scope is None else module.callers(scope)
    if scope is not None and (not callers or re.search("rank|main_|master", scope.name)):
        spoken = {"main", "train", "run", "worker", "main_worker", "fit", "load"}
        if scope.name not in spoken and "torch.distributed.init_process_group" not in {one.name for one in scope.calls}:
            return False
    if scope is None and spawns(module):
        return False
    for caller in callers:
        places.append(caller.place)
        outer = next((found for found in caller.place.scope.chain() if found.is_function), None)
        places += [found.place for found in module.callers(outer)] if outer is not None else []
    for place in places:
        if effective_side(module, place) or is_before_ranks(module, place.scope):
            return False
        if any(_FIRST.search(ast.unparse(item.context_expr)) for with_ in place.withs for item in with_.items):
            return False
        # `if rank != 0: barrier()` before, and `if rank == 0: barrier()` behind, let the main rank go first
        if any(found.method in {"barrier", "wait_for_everyone"} and found.place.side for found in place.scope.calls):
            return False
    return True


@rule(
    "RW116", "length-of-share", "error", "medium",
    message="len({name}) is the number of samples of this rank, and the number above is that of all: use the data set's length",
    why="A DistributedSampler is as long as the share of one rank. A sum over all ranks that is divided by it is world_size "
    "times too large.",
    wrong=_HEAD + """
def accuracy(model, data, loader):
    sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
    right = torch.zeros(())
    for x, y in loader(data, sampler):
        right += (model(x).argmax(1) == y).sum()
    dist.all_reduce(right)
    return right / len(sampler)
""",
    right=_HEAD + """
def accuracy(model, data, loader):
    sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
    right = torch.zeros(())
    for x, y in loader(data, sampler):
        right += (model(x).argmax(1) == y).sum()
    dist.all_reduce(right)
    return right / len(data)
""",
    ignore="the sum was divided by the world size before.",
)  # fmt: skip
def length_of_share(module: Module) -> Iterator[Hit]:
    """A number that all_reduce has summed, over len(sampler)."""
    samplers = {found.text for call in module.named(SAMPLER) for found in module.bindings if found.value is call.node}
    if not samplers:
        return
    summed = {
        name
        for call in module.named("torch.distributed.all_reduce", "torch.distributed.reduce")
        if "AVG" not in ast.unparse(call.node)
        for name in names_in(call.argument("tensor", 0))
    }
    for call in module.methods("len"):
        given = call.node.args[0] if call.node.args else None
        if given is None or not (text_of(given) in samplers or text_of(given).endswith(".sampler")):
            continue
        for part in ast.walk(call.place.stmt):
            if not isinstance(part, ast.BinOp) or not isinstance(part.op, ast.Div) or part.right is not call.node:
                continue
            if names_in(part.left) & summed and not re.search("world|size", ast.unparse(part.left)):
                yield Hit(part, {"name": text_of(given)})
