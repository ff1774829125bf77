"""RW312, RW313, RW315: steps that a library or the main rank keeps from being taken as meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import (
    FABRICS,
    RANKS,
    effective_side,
    guard_of,
    has_framework,
    is_distributed,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.wrapped import WRAPPERS, known_wraps, sees, wraps
from rankwise.diagnose.lint.record import Hit, rule

_HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


@rule(
    "RW312", "backward-past-library", "error", "medium",
    message="{text}() goes past {library}, which scales, accumulates and reduces in {instead}",
    why="DeepSpeed's engine, Accelerate and Fabric scale the loss, divide it by the micro-batches, and start the reduction in "
    "their own backward. Past it, mixed precision, accumulation and sharded gradients are silently wrong.",
    wrong="""
import deepspeed

def train(net, loader, config):
    engine, *_ = deepspeed.initialize(model=net, config=config)
    for x in loader:
        loss = engine(x)
        loss.backward()
        engine.step()
""",
    right="""
import deepspeed

def train(net, loader, config):
    engine, *_ = deepspeed.initialize(model=net, config=config)
    for x in loader:
        loss = engine(x)
        engine.backward(loss)
        engine.step()
""",
    ignore="this loss belongs to a model that the library does not hold.",
)  # fmt: skip
def backward_past_library(module: Module) -> Iterator[Hit]:
    """A tensor's backward in a file that gives its model to a library and never calls the library's backward."""
    for maker, entry, library, instead in _LIBRARIES:
        if maker not in module.by_name or not module.has_call(entry):
            continue
        calls = list(module.methods("backward", "manual_backward"))
        # a tensor's backward takes no loss
        theirs = [call for call in calls if call.node.args]
        if theirs or "backward" not in module.by_method:
            continue
        for call in calls:
            if call.place.loops or module.callers(call.place.scope):
                yield Hit(call.node, {"text": call.text, "library": library, "instead": instead})


_LIBRARIES = (
    ("deepspeed.initialize", "step", "DeepSpeed", "engine.backward(loss)"),
    ("accelerate.Accelerator", "prepare", "Accelerate", "accelerator.backward(loss)"),
    *((name, "setup", "Fabric", "fabric.backward(loss)") for name in FABRICS),
)
_STEPPERS = re.compile(r"sched|optim|(^|[._])(opt|scaler|lr)\w{0,2}$", re.IGNORECASE)


@rule(
    "RW315", "clip-of-shards", "error", "medium",
    message="each rank clips by the norm of its own shards of {name}: call {name}.clip_grad_norm_()",
    why="FSDP leaves a part of each gradient on each rank. torch.nn.utils.clip_grad_norm_ sees that part only, so ranks scale "
    "their parts differently. FSDP's own method adds the norms up. (fully_shard needs no such method.)",
    wrong="""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, loader, optimizer):
    model = FSDP(net)
    for x in loader:
        model(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    right="""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, loader, optimizer):
    model = FSDP(net)
    for x in loader:
        model(x).sum().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
""",
    ignore="the strategy is NO_SHARD.",
)  # fmt: skip
def clip_of_shards(module: Module) -> Iterator[Hit]:
    """clip_grad_norm_ of torch over the parameters of what FSDP wrapped."""
    sharded = [wrap for wrap in known_wraps(module, sharded=True) if wrap.made.name not in WRAPPERS]
    for call in module.named("torch.nn.utils.clip_grad_norm_") if sharded and "NO_SHARD" not in module.source else ():
        given = call.argument("parameters", 0)
        text = text_of(given.func) if isinstance(given, ast.Call) else ""
        for wrap in sharded:
            if text == f"{wrap.text}.parameters" and sees(module, wrap, call):
                yield Hit(call.node, {"name": wrap.text})
                break


@rule(
    "RW313", "step-on-one-rank", "error", "high",
    message="{name} runs on {ranks} only: from here on the ranks train with different {what}",
    why="DDP makes gradients equal, nothing else. Each rank has an optimizer and a scheduler of its own, and all of them have to "
    "take the same steps.",
    wrong=_HEAD + """
def train(net, loader, optimizer, scheduler):
    model = DDP(net)
    for epoch in range(10):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            scheduler.step()
            print(scheduler.get_last_lr())
""",
    right=_HEAD + """
def train(net, loader, optimizer, scheduler):
    model = DDP(net)
    for epoch in range(10):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
        scheduler.step()
        if dist.get_rank() == 0:
            print(scheduler.get_last_lr())
""",
    ignore="that optimizer trains a model which lives on this rank alone.",
)  # fmt: skip
def step_on_one_rank(module: Module) -> Iterator[Hit]:
    """The step of an optimizer or a scheduler, or what sets the learning rate, under a test of the rank."""
    if not (is_distributed(module) or wraps(module) or has_framework(module)):
        return
    changes = (
        call for call in module.calls if re.search(r"^(adjust|set|update|decay)_(lr|learning_rate)", call.method)
    )
    told = (call for call in module.methods("set_epoch") if "sampler" in last(call.base).lower())
    for call in (*module.methods("step"), *changes, *told):
        if call.method == "step" and not _STEPPERS.search(call.base):
            continue
        side = effective_side(module, call.place)
        branch = guard_of(call.place)
        if side is None or (branch is not None and _both_ways(branch.node, call.text)):
            continue
        rated = call.method != "step" or re.search("sched|lr", call.base, re.IGNORECASE)
        apart = "learning rates" if rated else "weights"
        apart = "orders of the data" if call.method == "set_epoch" else apart
        yield Hit(call.node, {"name": call.text, "ranks": RANKS[side], "what": apart})


def _both_ways(node: ast.stmt, text: str) -> bool:
    """Whether both branches of an `if` make the same call."""
    if not isinstance(node, ast.If):
        return False
    then, other = (
        any(isinstance(part, ast.Call) and text_of(part.func) == text for stmt in body for part in ast.walk(stmt))
        for body in (node.body, node.orelse)
    )
    return then and other
