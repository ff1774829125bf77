"""RW314: numbers of an evaluation that each rank has made of its own share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.aliases import names_behind, names_of
from rankwise.diagnose.lint.analysis.facts import LOADER, SAMPLER, names_in, runs_on_several
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.record import Hit, rule

_REDUCES = re.compile(r"reduce|gather|sync|metric|^compute$|\.compute\(|evaluator", re.IGNORECASE)
_HOOKS = re.compile(r"(on_)?(validation|test)_(step|epoch_end)|on_(validation|test)_epoch_end")
_COUNTS = re.compile(r"correct|right|good|hits?$|acc|num_|tot|err|loss|dice|iou|score|top1", re.IGNORECASE)
_NO_REDUCTION = re.compile(r"cuda\.synchronize$|convert_sync_batchnorm$")
# a slice, or a range, from the rank in steps of the number of ranks
_STRIDE = re.compile(r"\[[\w.]*rank(\(\))?::|\brange\([\w.]*rank(\(\))?, ", re.IGNORECASE)


@rule(
    "RW314", "evaluation-of-share", "warning", "medium",
    message="{what} is that of this rank's share of the data, and is taken for that of all",
    why="Each rank evaluates its own part. What one of them prints, or decides by, depends on the number of ranks and leaves most "
    "of the data out. Add up sums and counts over the ranks first; Lightning does it with sync_dist=True.",
    wrong="""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

def evaluate(model, held_out):
    loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    correct = seen = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    return correct / seen
""",
    right="""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

def evaluate(model, held_out):
    loader = DataLoader(held_out, sampler=DistributedSampler(held_out, shuffle=False))
    counts = torch.zeros(2)
    with torch.no_grad():
        for x, y in loader:
            counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(counts)
    return counts[0] / counts[1]
""",
    ignore="a rough number is enough, or what calls this adds the shares up.",
)  # fmt: skip
def evaluation_of_share(module: Module) -> Iterator[Hit]:
    """A quotient of counts over a loader that is shared out, in a file without any reduction; a log without sync_dist."""
    if runs_on_several(module):
        yield from _logged(module)
    shared = _shared_loaders(module)
    if not shared or any(_REDUCES.search(call.method) for call in module.calls if not _NO_REDUCTION.search(call.text)):
        return
    for loop, scope in _evaluations(module):
        if not names_behind(module, names_in(loop.iter), scope) & shared:
            continue
        counted = {
            last(text_of(part.target))
            for stmt in loop.body
            for part in ast.walk(stmt)
            if isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add)
        }
        for part in ast.walk(scope.node):
            quotient = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and part.lineno > loop.lineno
            if quotient and isinstance(part, ast.BinOp) and _is_count(part.left, counted):
                yield Hit(part, {"what": ast.unparse(part)})
                break


def _is_count(node: ast.expr, counted: set[str]) -> bool:
    """Whether a dividend is one of the sums of a loop, by whatever factor."""
    names = names_in(node) & counted
    return any(_COUNTS.search(name) for name in names)


def _logged(module: Module) -> Iterator[Hit]:
    """Yield what a hook of Lightning logs of an evaluation: a number of its own, neither a metric nor shared."""
    for call in module.methods("log"):
        value, shared = call.argument("value", 1), call.keyword("sync_dist")
        if call.base != "self" or not _HOOKS.fullmatch(call.place.scope.name) or shared is not None or value is None:
            continue
        owner = module.class_of("self", call.place.scope)
        shown = module.value(value, call.place.scope)
        made = ast.unparse(shown) if shown is not None else ""
        # a metric object counts over all ranks by itself
        if isinstance(value, ast.Attribute) or _REDUCES.search(made) or owner is None or call.is_open:
            continue
        if any(_REDUCES.search(found.method) for found in call.place.scope.calls):
            continue
        if (
            isinstance(shown, ast.Call)
            and text_of(shown.func).startswith("self.")
            and module.local_function(module.call_of[shown]) is None
        ):
            continue
        yield Hit(call.node, {"what": module.text(value)})


def _shared_loaders(module: Module) -> set[str]:
    """Return the names of loaders for evaluation that give each rank a share."""
    found: set[str] = set()
    for call in module.named(LOADER):
        sampler = module.value(call.argument("sampler", 3), call.place.scope)
        data = module.value(call.argument("dataset", 0), call.place.scope)
        strided = data is not None and _STRIDE.search(ast.unparse(data)) is not None
        if strided or (isinstance(sampler, ast.Call) and module.name_of(sampler.func) == SAMPLER):
            found |= names_of(module, call)
    if "accelerate.Accelerator" in module.by_name:
        for call in module.methods("prepare"):
            found |= {
                name for part in call.node.args for name in names_in(part) if re.search(r"loader|dl$|_dl|data", name)
            }
    return found - {"self", ""}


def _evaluations(module: Module) -> Iterator[tuple[ast.For, Scope]]:
    """Yield the loops over batches without a backward pass that run the model without gradients."""
    quiet: dict[ast.For, Scope] = {}
    for call in module.calls:
        loop = call.place.loops[-1] if call.place.loops else None
        if isinstance(loop, ast.For) and loop not in quiet and _is_quiet(call):
            quiet[loop] = call.place.scope
    backs = list(module.methods("backward", "step"))
    for loop, scope in quiet.items():
        if not any(loop in call.place.loops for call in backs):
            yield loop, scope


def _is_quiet(call: Call) -> bool:
    withs = (ast.unparse(item.context_expr) for with_ in call.place.withs for item in with_.items)
    decorators = getattr(call.place.scope.node, "decorator_list", ())
    texts = (*withs, *(ast.unparse(each) for each in decorators))
    return any(re.search("no_grad|inference_mode", text) for text in texts)
