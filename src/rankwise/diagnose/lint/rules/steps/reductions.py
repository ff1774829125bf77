"""RW410: weights that nothing makes equal where gradients are reduced by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import same_on_all, seeds
from rankwise.diagnose.lint.analysis.facts import (
    has_framework,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import Hit, rule
from rankwise.diagnose.lint.rules.wraps.after_wrap import calls_behind

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


def _of_gradients(module: Module) -> Iterator[Call]:
    """Yield the all_reduce calls of the gradient of a parameter."""
    for call in module.named("torch.distributed.all_reduce"):
        given = call.argument("tensor", 0)
        if given is not None and call.argument("group", 2) is None and _holds_gradient(module, given, call.place.scope):
            yield call


def _holds_gradient(module: Module, node: ast.expr, scope: Scope, depth: int = 3) -> bool:
    """Whether a tensor is the gradient of a parameter, or is put together of gradients: ``cat([p.grad for p in ...])``."""
    if isinstance(node, ast.Attribute) and re.search(r"\.grad(\.data)?$", text_of(node)):
        return True
    shown = module.value(node, scope)
    # a norm of gradients, or a number that is made of them, is no gradient
    joins = isinstance(shown, ast.Call) and re.search(_JOINS, text_of(shown.func)) is not None
    parts = list(ast.walk(shown)) if shown is not None and (joins or isinstance(shown, ast.ListComp)) else []
    if any(isinstance(part, ast.Call) and last(text_of(part.func)) in _NUMBERS for part in parts):
        return False
    if any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts):
        return True
    lists = shown.args if isinstance(shown, ast.Call) and joins else []
    return bool(depth) and any(_holds_gradient(module, part, scope, depth - 1) for part in lists if part is not node)


_JOINS = r"(^|\.)(cat|concat|concatenate|hstack|_?flatten_dense_tensors|parameters_to_vector)$"
_NUMBERS = frozenset("norm sum mean max item abs".split())


@rule(
    "RW410", "weights-start-apart", "warning", "medium",
    message="nothing makes the weights of {name} equal on all ranks: each starts from its own and they stay apart",
    why="DDP sends the weights of rank 0 to all when it wraps a model, and never again. Whoever reduces gradients by hand "
    "has to broadcast the weights first; equal gradients do not bring different weights together.",
    wrong=_HEAD + """
def train(batches):
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches:
        net(x).sum().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
""",
    right=_HEAD + """
def train(batches):
    net = torch.nn.Linear(8, 1)
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches:
        net(x).sum().backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
""",
    ignore="the weights are loaded from a file, or all ranks draw them with the same seed.",
)  # fmt: skip
def weights_start_apart(module: Module) -> Iterator[Hit]:
    """Weights drawn anew behind a wrap; or gradients reduced by hand, no wrap, no broadcast, nothing loaded, no seed."""
    if any(same_on_all(module, call) for call in seeds(module)):
        return
    for wrap in wraps(module):
        for call in calls_behind(module, wrap):
            drawn = call.method == "apply" and call.base in {wrap.text, f"{wrap.text}.module"} and call.node.args
            if drawn and re.search(r"init", text_of(call.node.args[0]), re.IGNORECASE):
                yield Hit(call.node.func, {"name": call.base})
    first = next(_of_gradients(module), None)
    told = (
        "broadcast",
        "broadcast_",
        "broadcast_object_list",
        "load_state_dict",
        "from_pretrained",
        "broadcast_parameters",
    )
    if first is None or wraps(module) or has_framework(module) or module.has_call(*told, "DistributedDataParallel"):
        return
    for call in module.methods("parameters"):
        holder = call.place.stmt
        makes_steps = isinstance(holder, ast.Assign) and re.search("optim", ast.unparse(holder), re.IGNORECASE)
        made = module.binding(call.base, call.place.scope, before=call.node) if makes_steps else None
        if made is not None and isinstance(made.value, ast.Call):
            yield Hit(made.place.stmt, {"name": call.base})
            return
