"""RW411 to RW413: ranks that go on with different values, numbers of steps, or sums in place of means."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import has_framework, is_const, is_distributed, loops_that_train, names_in
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Binding, Call, Scope
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
_SHARED = re.compile(r"broadcast|reduce|gather|sync|share|bcast|object_list|scatter", re.IGNORECASE)


@rule(
    "RW411", "set-on-one-rank", "error", "medium",
    message="{name} is set on the main rank only, and is read here on all: the others go on with {value}",
    why="A variable is one rank's own. Where the main rank alone finds a checkpoint, the others train on with the start values, "
    "or run more epochs and wait for ever. Send it to all (broadcast_object_list), or let all of them read it.",
    wrong="import os\n" + _HEAD + """
def resume(net, path):
    model = DDP(net)
    found = None
    if dist.get_rank() == 0 and os.path.exists(path):
        found = torch.load(path, map_location="cpu")
    if found is not None:
        model.module.load_state_dict(found)
    return model
""",
    right="import os\n" + _HEAD + """
def resume(net, path):
    model = DDP(net)
    found = None
    if os.path.exists(path):
        found = torch.load(path, map_location="cpu")
    if found is not None:
        model.module.load_state_dict(found)
    return model
""",
    ignore="something that this file does not show sends it to the other ranks.",
)  # fmt: skip
def set_on_one_rank(module: Module) -> Iterator[Hit]:
    """A name of a function that is a constant on all ranks but the main one, and decides what is loaded or how far it trains."""
    if not is_distributed(module) or (has_framework(module) and not wraps(module)):
        return
    for scope in module.scopes:
        for name, bound in scope.bindings.items() if scope.is_function or scope.parent is None else ():
            default = _default(bound) if any(found.place.side == "main" for found in bound) else None
            if default is None or any(_tells(call, name) for call in scope.calls):
                continue
            behind = max(position(found.place.stmt) for found in bound)
            use = next((part for part in _uses(module, scope, name) if position(part) > behind), None)
            if use is not None:
                yield Hit(use, {"name": name, "value": default})


def _default(bound: list[Binding]) -> str | None:
    """Return the constant that a name is on the other ranks; None where it is told otherwise."""
    main = [found for found in bound if found.place.side == "main"]
    rest = [found for found in bound if found.place.side != "main"]
    if len(rest) != 1 or rest[0].place.side is not None or not isinstance(rest[0].value, ast.Constant):
        return None
    # a constant may be a flag of the main rank's own work
    made = [found for found in main if found.value is not None and not is_const(found.value, True)]
    first = position(rest[0].place.stmt)
    if not made or any(position(found.place.stmt) < first or found.place.loops for found in main):
        return None
    return ast.unparse(rest[0].value)


def _tells(call: Call, name: str) -> bool:
    """Whether a call may send a name to other ranks, or wraps what it is in a tensor for that."""
    sends = _SHARED.search(call.method) is not None or call.method in {"tensor", "as_tensor", "full"}
    return sends and name in {text_of(part) for part in ast.walk(call.node) if isinstance(part, ast.expr)}


def _uses(module: Module, scope: Scope, name: str) -> Iterator[ast.expr]:
    """Yield where all ranks load by a name, or train from it on."""
    loops = loops_that_train(module)
    for call in scope.calls:
        place = call.place
        if place.side is not None or place.scope is not scope:
            continue
        given = [*call.node.args, *(word.value for word in call.node.keywords)]
        tests = [branch.test for branch in place.branches]
        if call.method == "load_state_dict" or call.name == "torch.load":
            found = next((part for part in (*tests, *given) if _reads(part, name)), None)
            if found is not None:
                yield found
        elif call.text == "range" and isinstance(place.stmt, ast.For) and len(given) > 1 and _reads(given[0], name):
            inside = set(ast.walk(place.stmt))
            yield from (given[0] for loop in loops if loop in inside)


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name | ast.Attribute) and text_of(part) == name for part in ast.walk(node))


_MEANS = re.compile(r"loss|avg|mean|average", re.IGNORECASE)
_SUMS = re.compile(r"total|sum|count|num|running|epoch_loss|correct|acc_loss|n_", re.IGNORECASE)
_SHOWS = re.compile(r"print|info|log|add_scalar|write|set_postfix|set_description|log_metrics?|debug|append")
_DIVIDES = re.compile(r"/=?\s|\.(true_)?div(ide)?_?\(|\.mul_?\(|\bmean\(|AVG|\*\s*\(?1")


@rule(
    "RW412", "sum-shown-as-mean", "warning", "medium",
    message="{name} is the sum over the ranks here, and is shown as if it were one loss: divide it by the world size",
    why="all_reduce adds up by default. The number that is printed grows with the number of ranks.",
    wrong=_HEAD + """
def report(loss):
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if dist.get_rank() == 0:
        print(f"loss {shown.item():.3f}")
""",
    right=_HEAD + """
def report(loss):
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"loss {shown.item():.3f}")
""",
    ignore="the loss of each rank was divided by the number of all samples before.",
)  # fmt: skip
def sum_shown_as_mean(module: Module) -> Iterator[Hit]:
    """A loss or a mean that all_reduce has summed is printed, and nothing in its function divides it."""
    for call in module.named("torch.distributed.all_reduce", "torch.distributed.reduce"):
        given, scope = call.argument("tensor", 0), call.place.scope
        op = call.argument("op", 1 if call.method == "all_reduce" else 2)
        if not isinstance(given, ast.Name) or not scope.is_function or (op is not None and last(text_of(op)) != "SUM"):
            continue
        bound = [found for found in scope.bindings.get(given.id, ()) if found.value is not None]
        value = bound[0].value if len(bound) == 1 else None
        made = "" if value is None else ast.unparse(value)
        mean = _MEANS.search(given.id) or re.search(r"\b(\w*_)?loss\b(?!\w*\()|\.mean\(|/ len\(", made)
        if not made or not mean or _SUMS.search(given.id) or re.search(r"world|size|ranks|sum|zeros|total|count", made):
            continue
        if _is_divided(scope, given.id, call):
            continue
        shows = (found for found in scope.calls if position(found.node) > position(call.node))
        if any(_SHOWS.fullmatch(found.method) and _reads(found.node, given.id) for found in shows):
            yield Hit(call.node, {"name": given.id})


def _is_divided(scope: Scope, name: str, call: Call) -> bool:
    """Whether a statement behind a reduction, or one that hands the name on, may divide it."""
    for stmt in ast.walk(scope.node):
        if not isinstance(stmt, ast.stmt) or position(stmt) <= position(call.place.stmt) or hasattr(stmt, "body"):
            continue
        # what is no call goes on under another name, or back to the caller
        if _reads(stmt, name) and (not isinstance(stmt, ast.Expr) or _DIVIDES.search(ast.unparse(stmt))):
            return True
    return False


_FILES = re.compile(r"file|shard|path|part|chunk|glob|listdir|tar|parquet", re.IGNORECASE)
_STRIDE = re.compile(
    r"\[[\w.]*rank(\(\))?\s*:[^\]]*:\s*[\w.]*(world|size|num|nprocs)|% \(?[\w.]*(world|size|nprocs)[\w.()]* == [\w.]*rank"
)
_ASKED = re.compile(r"\b[\w.]+\.get_(rank|world_size)\(\)")
_EVEN = re.compile(
    r"(?-i:\bJoin\()|\.join\(\)|with [\w.]*model\.join|islice|cycle|max_(steps|iters?)|num_steps|steps_per|drop|trunc|"
    r"ReduceOp\.MIN|\bmin\(|% world_size [!=]= 0|pad|even|while True|iter_per|total_steps|all_reduce|all_gather",
    re.IGNORECASE,
)


@rule(
    "RW413", "unequal-steps", "warning", "medium",
    message="each rank trains on its own files ({text}): with unequal files one takes more steps, and waits for ever in the last",
    why="Each backward pass of DDP is a collective that all ranks take part in. Files are shared out by number, not by what is in "
    "them. Let all ranks stop at the same step, or train inside model.join().",
    wrong=_HEAD + """
def train(net, files, read, optimizer):
    model = DDP(net)
    mine = files[dist.get_rank()::dist.get_world_size()]
    for file in mine:
        for x in read(file):
            model(x).sum().backward()
            optimizer.step()
""",
    right=_HEAD + """
def train(net, files, read, optimizer):
    model = DDP(net)
    mine = files[dist.get_rank()::dist.get_world_size()]
    with model.join():
        for file in mine:
            for x in read(file):
                model(x).sum().backward()
                optimizer.step()
""",
    ignore="there are as many files for each rank, and as much in each of them.",
)  # fmt: skip
def unequal_steps(module: Module) -> Iterator[Hit]:
    """A training loop over every world_size-th file, in a file that evens out nothing."""
    if not wraps(module) or has_framework(module) or _EVEN.search(module.source) or not _STRIDE.search(_flat(module)):
        return
    loops = loops_that_train(module)
    strided = {found.text: found for found in module.bindings if _is_share(found.value)}
    for loop in {outer for each in loops for outer in _around(module, each)}:
        part = loop.iter if isinstance(loop, ast.For) else None
        while (
            isinstance(part, ast.Call)
            and text_of(part.func) in {"enumerate", "tqdm", "tqdm.tqdm", "sorted"}
            and part.args
        ):
            part = part.args[0]
        if part is None:
            continue
        found = strided.get(text_of(part))
        if _is_share(part) or found is not None:
            shown = part if found is None else found.value
            assert shown is not None
            yield Hit(shown, {"text": module.text(shown)})
            return


def _flat(module: Module) -> str:
    return _ASKED.sub(r"\1", module.source)


def _around(module: Module, loop: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a loop, and those around it in its function."""
    yield loop
    for call in module.calls:
        if loop in call.place.loops:
            yield from call.place.loops
            return


def _is_share(node: ast.expr | None) -> bool:
    """Whether an expression takes every world_size-th of a list of files, from the rank on."""
    if not isinstance(node, ast.Subscript | ast.ListComp):
        return False
    text = _ASKED.sub(r"\1", ast.unparse(node))
    return _STRIDE.search(text) is not None and any(_FILES.search(name) for name in names_in(node))
