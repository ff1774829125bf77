"""RW407 to RW410: reductions that change nothing, or the wrong thing: dropped results, graphs, sums of gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.collective_calls import collectives
from rankwise.diagnose.lint.analysis.facts import has_framework, names_in, same_on_all, seeds
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.analysis.wrapped import wraps
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
_IN_PLACE = ("all_reduce", "broadcast", "reduce")
# a view of a tensor: what is reduced through it is reduced in the tensor
_VIEWS = frozenset(
    "detach data view reshape squeeze unsqueeze flatten t view_as contiguous to cuda float double".split()
)
_FRESH = frozenset("clone mean sum max min std var norm tensor as_tensor stack cat add mul div sub pow sqrt".split())
# these give the result back and leave their argument as it is
_GIVING = {"horovod.torch": ("allreduce", "allgather"), "torch.distributed.nn": ("all_reduce", "all_gather")}


@rule(
    "RW407", "reduction-dropped", "error", "high",
    message="{name} works on a temporary, and nothing keeps the result: what is used further on is this rank's own",
    why="all_reduce and broadcast write into the tensor that they get and return no tensor. A clone, or the result of an "
    "expression, is gone with the statement. Give it a name first. (Horovod's allreduce and Accelerate's reduce return it.)",
    wrong=_HEAD + """
def report(loss):
    dist.all_reduce(loss.detach().clone())
    return loss.item()
""",
    right=_HEAD + """
def report(loss):
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item()
""",
    ignore="it is there to warm up the group, or to wait for all ranks.",
)  # fmt: skip
def reduction_dropped(module: Module) -> Iterator[Hit]:
    """all_reduce(x.clone()), all_reduce(torch.tensor(x)), and a statement that drops what a giving one returns."""
    listed = set(collectives(module))
    for method in _IN_PLACE:
        for call in module.methods(method):
            given = call.argument("tensor", 0)
            if call in listed and call.name and given is not None and _is_temporary(given):
                yield Hit(call.node, {"name": call.text})
    for root, methods in _GIVING.items():
        for call in module.methods(*methods):
            if call.name.startswith(root) and call.name in {f"{root}.{m}" for m in methods} and _is_dropped(call):
                yield Hit(call.node, {"name": call.text})
    makers = {text_of(target) for target in _accelerators(module)}
    for call in module.methods("reduce", "gather", "gather_for_metrics"):
        if call.base in makers and _is_dropped(call):
            yield Hit(call.node, {"name": call.text})


def _accelerators(module: Module) -> Iterator[ast.expr]:
    for call in module.named("accelerate.Accelerator"):
        if isinstance(call.place.stmt, ast.Assign):
            yield from call.place.stmt.targets


def _is_dropped(call: Call) -> bool:
    return isinstance(call.place.stmt, ast.Expr) and call.place.stmt.value is call.node


def _is_temporary(node: ast.expr) -> bool:
    """Whether an expression makes a new tensor out of some variable; one of constants only warms up the group."""
    while True:
        if isinstance(node, ast.BinOp):
            return any(name not in {"torch", "float"} for name in names_in(node))
        if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in {"data", "T"}):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS:
            node = node.func.value
        else:
            break
    if not isinstance(node, ast.Call) or last(text_of(node.func)) not in _FRESH:
        return False
    if text_of(node.func).startswith("torch."):
        return bool(node.args) and bool(names_in(node.args[0]) - {"torch"})
    return isinstance(node.func, ast.Attribute)


@rule(
    "RW408", "reduction-in-graph", "warning", "medium",
    message="{name} still carries its graph where {call} writes over it: reduce {name}.detach().clone()",
    why="The collective works in place and autograd does not follow it: the value no longer fits the gradients, and with "
    "a sum the loss is world_size times as large. Report a copy, and leave the loss to backward.",
    wrong=_HEAD + """
def step(model, x, optimizer):
    loss = model(x).sum()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    loss.backward()
    optimizer.step()
""",
    right=_HEAD + """
def step(model, x, optimizer):
    loss = model(x).sum()
    shown = loss.detach().clone()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    loss.backward()
    optimizer.step()
""",
    ignore="the reduced number is only printed, after backward.",
)  # fmt: skip
def reduction_in_graph(module: Module) -> Iterator[Hit]:
    """all_reduce(loss) of a name on which backward is called further down, here or where its function is called."""
    for call in module.methods("all_reduce", "reduce", "allreduce_"):
        given = call.argument("tensor", 0)
        # those of torch.distributed.nn give a new tensor, which autograd follows
        known = call.name.startswith(("torch.distributed.", "horovod.")) and ".nn." not in call.name
        if not isinstance(given, ast.Name | ast.Attribute) or not known:
            continue
        text, scope = text_of(given), call.place.scope
        if _is_quiet(call):
            continue
        before = [found for found in scope.bindings.get(text, ()) if position(found.place.stmt) < position(call.node)]
        if text in scope.params and not before:
            for found, part in module.given(scope, text):
                if part is not None and not _is_quiet(found) and _is_before_backward(module, text_of(part), found):
                    yield Hit(found.node, {"name": text_of(part), "call": call.text})
            continue
        order = _is_before_backward(module, text, call)
        if order is not None:
            # behind backward nothing needs the graph any more
            yield Hit(call.node, {"name": text, "call": call.text}, confidence=None if order else "low")


def _is_quiet(call: Call) -> bool:
    return any(re.search("no_grad|inference", ast.unparse(w.items[0].context_expr)) for w in call.place.withs)


def _is_before_backward(module: Module, text: str, call: Call) -> bool | None:
    """Whether backward of a variable that is in a graph comes behind a call; None where there is none in its function."""
    scope = call.place.scope
    backs = [one for one in module.methods("backward") if one.place.scope is scope and _goes_back(one) == text]
    backs = [one for one in backs if one.place.loops == call.place.loops]
    bound = [found for found in scope.bindings.get(text, ()) if position(found.place.stmt) < position(call.node)]
    if not backs or not bound or _is_detached(bound[-1].value):
        return None
    behind = [one for one in backs if position(one.node) > position(call.node)]
    again = [found for found in scope.bindings.get(text, ()) if position(found.place.stmt) > position(call.node)]
    # `loss = other()` in between makes it another one; `loss = loss / size` does not
    fresh = any(found.value is not None and text not in names_in(found.value) for found in again)
    return bool(behind) and not (fresh and position(again[0].place.stmt) < position(behind[0].node))


def _goes_back(call: Call) -> str:
    """Return the name of the loss of a backward pass: loss.backward(), scaler.scale(loss).backward(), x.backward(loss)."""
    if call.node.args:
        return text_of(call.node.args[0])
    inner = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    if isinstance(inner, ast.Call) and last(text_of(inner.func)) == "scale" and inner.args:
        return text_of(inner.args[0])
    return call.base


def _is_detached(node: ast.expr | None) -> bool:
    return (
        node is not None
        and re.search(r"\.(detach|item|data|clone)\b|tensor\(|zeros|full\(", ast.unparse(node)) is not None
    )


def _of_gradients(module: Module) -> Iterator[Call]:
    """Yield the all_reduce calls of the gradient of a parameter."""
    for call in module.named("torch.distributed.all_reduce"):
        given = call.argument("tensor", 0)
        text = "" if given is None else text_of(given)
        if re.search(r"\.grad(\.data)?$", text) and call.argument("group", 2) is None:
            yield call


@rule(
    "RW410", "weights-start-apart", "warning", "medium",
    message="nothing makes the weights of {name} equal on all ranks: each starts from its own and they stay apart",
    why="DDP sends the weights of rank 0 to all when it wraps a model. Whoever reduces gradients by hand has to broadcast the "
    "weights first; equal gradients do not bring different weights together.",
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
    """Gradients reduced by hand, no wrap, no broadcast, nothing loaded, and no seed that is the same everywhere."""
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
    if any(same_on_all(module, call) for call in seeds(module)):
        return
    for call in module.methods("parameters"):
        holder = call.place.stmt
        makes_steps = isinstance(holder, ast.Assign) and re.search("optim", ast.unparse(holder), re.IGNORECASE)
        made = module.binding(call.base, call.place.scope, before=call.node) if makes_steps else None
        if made is not None and isinstance(made.value, ast.Call):
            yield Hit(made.place.stmt, {"name": call.base})
            return
