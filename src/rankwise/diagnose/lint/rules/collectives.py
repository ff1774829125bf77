"""RW4: collectives that not every rank reaches, and tests of the rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.facts import (
    DDP,
    collective_after,
    collective_inside,
    collectives,
    effective_side,
    is_const,
    names_in,
    training_loops,
    wraps,
)
from rankwise.diagnose.lint.module import Branch, Call, Module, Place, Scope, position
from rankwise.diagnose.lint.names import last, text_of
from rankwise.diagnose.lint.record import Edit, Fix, Hit, rule

_RANKS = {"main": "the main rank", "other": "ranks other than the main one"}


def _guard(place: Place) -> Branch | None:
    return next((branch for branch in reversed(place.branches) if branch.side), None)


def _names_of_collectives(module: Module, nodes: list[ast.stmt]) -> list[str]:
    """Return the names of the collectives in statements, in order; functions that contain one count by their name."""
    listed = {call.node: call.method for call in collectives(module)}
    found = []
    for stmt in nodes:
        for part in ast.walk(stmt):
            if isinstance(part, ast.Call):
                call = module.call_of.get(part)
                if part in listed:
                    found.append(listed[part])
                elif call is not None and (target := module.scope_of(call)) and collective_inside(*target):
                    found.append(call.text)
    return sorted(found)


def _matched(module: Module, branch: Branch, call: Call) -> bool:
    """Whether the other side makes the same call: in the other branch, or by a test of the other side further on."""
    node = branch.node
    if isinstance(node, ast.If):
        then, other = _names_of_collectives(module, node.body), _names_of_collectives(module, node.orelse)
        if then and then == other:
            return True
    # if rank != 0: barrier() ... if rank == 0: barrier() lets the main rank go first
    scope = call.place.scope
    sides = {"main": 0, "other": 0}
    for found in module.methods(call.method):
        if found.place.scope is scope and found.place.side:
            sides[found.place.side] += 1
    return sides["main"] == sides["other"] > 0


def _subgroup_of(place: Place) -> bool:
    """Whether the branch also asks for something that only some ranks have, a group of their own for example."""
    return any("group" in name.lower() for branch in place.branches for name in names_in(branch.test))


@rule(
    "RW401",
    "collective-in-rank-branch",
    "error",
    "high",
    message="{name} runs on {ranks} only; the other ranks never join it, and the job hangs",
    why="A collective ends when all ranks of the group have called it. One inside `if rank == 0` waits for ever. Wrapping a "
    "model in DDP is one, too.",
    wrong="""
import torch
import torch.distributed as dist

def report(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        print(loss.item())
""",
    right="""
import torch
import torch.distributed as dist

def report(loss):
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(loss.item())
""",
    ignore="the others call the same collective in another place that the rule does not see.",
)
def collective_in_rank_branch(module: Module) -> Iterator[Hit]:
    """A collective, or a call of a function that always reaches one, under a test of the rank."""
    listed = set(collectives(module)) | {wrap.call for wrap in wraps(module)}
    for call in module.calls:
        branch = _guard(call.place)
        if branch is None or _subgroup_of(call.place):
            continue
        ranks = _RANKS[branch.side or "main"]
        if call in listed:
            name = "the wrap by DDP" if call.name == DDP else call.text
            if call.method != "new_group" and not _matched(module, branch, call):
                yield Hit(call.node, {"name": name, "ranks": ranks})
            continue
        target = module.scope_of(call)
        inner = None if target is None else collective_inside(*target)
        if inner is not None and not _matched(module, branch, call):
            name = f"{call.text}, which calls {inner.text},"
            yield Hit(call.node, {"name": name, "ranks": ranks}, confidence="medium")


@rule(
    "RW402",
    "rank-dependent-exit",
    "error",
    "medium",
    message="{what} leaves the {of} on {ranks} only; the others wait for it in the next collective",
    why="Each backward pass of DDP is a collective. A rank that leaves the loop by itself leaves the others waiting. Decide on "
    "one rank, broadcast the decision, leave together.",
    wrong="""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, optimizer, stopper):
    model = DDP(model)
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and stopper.should_stop(loss):
            break
""",
    right="""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(model, loader, optimizer, stopper):
    model = DDP(model)
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        stop = torch.tensor(stopper.should_stop(loss))
        dist.broadcast(stop, src=0)
        if stop:
            break
""",
    ignore="the other ranks leave at the same step by another way.",
)
def rank_dependent_exit(module: Module) -> Iterator[Hit]:
    """Break or return under a test of the rank, inside a loop that trains or before a collective further on."""
    loops = training_loops(module) | {
        call.place.loops[-1] for call in collectives(module) if call.place.loops and call.place.side is None
    }
    backwards = list(module.methods("backward"))
    for exit_ in module.exits:
        place = exit_.place
        if not isinstance(exit_.node, ast.Break | ast.Return) or (branch := _guard(place)) is None:
            continue
        # what follows a plain `if rank == 0: return` runs on one side only: RW401 looks at that
        if not place.loops and place.branches[-1] is not branch and collective_after(module, place):
            yield Hit(exit_.node, {"what": "return", "of": "function", "ranks": _RANKS[branch.side or "main"]})
            continue
        left = place.loops[-1:] if isinstance(exit_.node, ast.Break) else place.loops
        inside = [loop for loop in left if _within(branch.node, loop)]
        if loops & set(inside) or any(loop in call.place.loops for loop in inside for call in backwards):
            word = type(exit_.node).__name__.lower()
            yield Hit(exit_.node, {"what": word, "of": "training loop", "ranks": _RANKS[branch.side or "main"]})


def _within(inner: ast.stmt, outer: ast.stmt) -> bool:
    assert outer.end_lineno is not None
    return position(outer) < position(inner) and inner.lineno <= outer.end_lineno


_PREDICATES = {
    "torch.distributed.is_initialized",
    "torch.distributed.is_available",
    "torch.distributed.is_torchelastic_launched",
    "torch.distributed.is_nccl_available",
    "torch.cuda.is_available",
    "torch.cuda.is_bf16_supported",
}


@rule(
    "RW403",
    "uncalled-rank-guard",
    "error",
    "high",
    message="{name} is a function and is not called here: the test is always true",
    why="A function object is true on every rank, so all of them run what was meant for one.",
    wrong="""
import torch
import torch.distributed as dist

def is_main_process():
    return dist.get_rank() == 0

def save(model, path):
    if is_main_process:
        torch.save(model.state_dict(), path)
""",
    right="""
import torch
import torch.distributed as dist

def is_main_process():
    return dist.get_rank() == 0

def save(model, path):
    if is_main_process():
        torch.save(model.state_dict(), path)
""",
    ignore="never.",
    fix="safe",
)
def uncalled_rank_guard(module: Module) -> Iterator[Hit]:
    """A function that answers yes or no, used as the answer itself."""
    for branch in module.branches:
        for part in _operands(branch.test):
            text = text_of(part)
            name = module.imports.resolve(text) or ""
            scope = branch.node
            function = _function(module, text)
            tested = re.search(r"^(is|on|am)_|main|master|rank|chief", last(text))
            if name in _PREDICATES or (function is not None and tested) or _called_elsewhere(module, text, name):
                end = module.span(part)[1]
                yield Hit(part, {"name": text}, Fix(f"call {text}()", (Edit(end, end, "()"),)))
            del scope


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the names of a test, behind `not`, `and` and `or`."""
    if isinstance(test, ast.Name | ast.Attribute):
        yield test
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value)


def _function(module: Module, text: str) -> Scope | None:
    """Return the function at the top of the file that a name means and nothing else is bound to."""
    scope = module.top.functions.get(text)
    if (
        scope is None
        or not scope.is_function
        or any(text in found.bindings or text in found.params for found in module.scopes)
    ):
        return None
    return scope


def _called_elsewhere(module: Module, text: str, name: str) -> bool:
    """Whether an imported test of the rank is called in other places of the file."""
    tested = re.search(r"^is_.*(main|master|rank|chief)", last(text))
    return bool(
        tested and name and not name.startswith("?") and any(call.text == text for call in module.methods(last(text)))
    )


@rule(
    "RW404",
    "async-result-unwaited",
    "error",
    "medium",
    message="{name} is read before the collective that fills it has ended: wait() first",
    why="async_op=True returns at once with a handle; until handle.wait() the tensor holds anything.",
    wrong="""
import torch.distributed as dist

def total(value):
    handle = dist.all_reduce(value, async_op=True)
    print(value.item())
    handle.wait()
""",
    right="""
import torch.distributed as dist

def total(value):
    handle = dist.all_reduce(value, async_op=True)
    handle.wait()
    print(value.item())
""",
    ignore="another handle of the same stream is waited for in between.",
)
def async_result_unwaited(module: Module) -> Iterator[Hit]:
    """The tensor of an asynchronous collective is used in the same block before anything is waited for."""
    for call in collectives(module):
        word = call.keyword("async_op")
        if word is None or not is_const(word.value, True) or not call.node.args:
            continue
        tensor = call.node.args[0]
        if not isinstance(tensor, ast.Name):
            continue
        for stmt in call.place.block[call.place.index + 1 :]:
            calls = [part for part in ast.walk(stmt) if isinstance(part, ast.Call)]
            if any(
                last(text_of(part.func)) in {"wait", "synchronize", "append", "extend", "add", "barrier"}
                for part in calls
            ):
                break
            used = next(
                (
                    part
                    for part in ast.walk(stmt)
                    if isinstance(part, ast.Name) and part.id == tensor.id and isinstance(part.ctx, ast.Load)
                ),
                None,
            )
            if used is not None and not isinstance(stmt, ast.Return | ast.For | ast.While | ast.If):
                again = any(module.call_of.get(part) in set(collectives(module)) for part in calls)
                if not again:
                    yield Hit(used, {"name": tensor.id})
                break


@rule(
    "RW405",
    "barrier-in-loop",
    "info",
    "medium",
    message="a barrier in every training step: backward already keeps the ranks together",
    why="It costs a round trip per step and hides which rank is slow.",
    wrong="""
import torch.distributed as dist

def train(model, loader, optimizer):
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
        dist.barrier()
""",
    right="""
import torch.distributed as dist

def train(model, loader, optimizer):
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
    dist.barrier()
""",
    ignore="it stands there to measure or to debug.",
)
def barrier_in_loop(module: Module) -> Iterator[Hit]:
    """A barrier straight in the body of a training loop."""
    loops = training_loops(module)
    for call in module.named("torch.distributed.barrier"):
        if call.place.loops and call.place.loops[-1] in loops and not call.place.branches:
            yield Hit(call.node)


@rule(
    "RW406",
    "wrapped-forward-on-one-rank",
    "warning",
    "medium",
    message="{name} is wrapped by DDP, and only {ranks} runs it: its buffers are broadcast in each forward pass",
    why="A forward pass of a wrapped model broadcasts its buffers (BatchNorm statistics), which is a collective: it waits for the "
    "other ranks, or meets another collective of theirs. Use the model behind the wrap, model.module.",
    wrong="""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, held_out):
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
    if dist.get_rank() == 0:
        print(model(held_out))
""",
    right="""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(net, loader, held_out):
    model = DDP(net)
    for x in loader:
        model(x).sum().backward()
    if dist.get_rank() == 0:
        print(model.module(held_out))
""",
    ignore="the model has no buffers, or forward_sync_buffers=False was given.",
)
def wrapped_forward_on_one_rank(module: Module) -> Iterator[Hit]:
    """The name of a wrapped model is called under a test of the rank in the function that wraps it."""
    for wrap in wraps(module):
        if not wrap.text or ((word := wrap.call.keyword("broadcast_buffers")) and is_const(word.value, False)):
            continue
        for call in module.calls:
            same = call.text == wrap.text and call.place.scope is wrap.place.scope
            if same and position(call.node) > position(wrap.call.node) and effective_side(module, call.place) == "main":
                yield Hit(call.node, {"name": wrap.text, "ranks": "the main rank"})
