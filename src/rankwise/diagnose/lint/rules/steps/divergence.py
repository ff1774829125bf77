"""RW312, RW313, RW315, RW410: steps, clipping and weights by which ranks drift apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import same_on_all, seeds
from rankwise.diagnose.lint.analysis.facts import (
    FABRICS,
    RANKS,
    effective_side,
    has_framework,
    is_distributed,
    on_both_sides,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import called, last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, Scope
from rankwise.diagnose.lint.analysis.wrapped import known_sharded, sees, wraps
from rankwise.diagnose.lint.record import HEAD, Hit, Rule
from rankwise.diagnose.lint.rules.wraps.after_wrap import calls_behind


@Rule(
    "RW312", "backward-past-library", "error", "medium",
    message="{text}() goes past {library}, which scales, accumulates and reduces in {instead}",
    why="DeepSpeed's engine, Accelerate and Fabric scale the loss, divide it by the micro-batches, and start the reduction in "
    "their own backward. Past it, mixed precision, accumulation and sharded gradients are silently wrong.",
    example="""
 import deepspeed

 def train(net, loader, config):
     engine, *_ = deepspeed.initialize(model=net, config=config)
     for x in loader:
         loss = engine(x)
-        loss.backward()
+        engine.backward(loss)
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
        if any(call.node.args for call in calls) or "backward" not in module.by_method:
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


@Rule(
    "RW315", "clip-of-shards", "error", "medium",
    message="each rank clips by the norm of its own shards of {name}: call {name}.clip_grad_norm_()",
    why="FSDP leaves a part of each gradient on each rank. torch.nn.utils.clip_grad_norm_ sees that part only, so ranks scale "
    "their parts differently. FSDP's own method adds the norms up. (fully_shard needs no such method.)",
    example="from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n" + HEAD + """
 def train(net, loader, optimizer):
     model = FSDP(net)
     for x in loader:
         model(x).sum().backward()
-        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
+        model.clip_grad_norm_(1.0)
         optimizer.step()
""",
    ignore="the strategy is NO_SHARD.",
)  # fmt: skip
def clip_of_shards(module: Module) -> Iterator[Hit]:
    """clip_grad_norm_ of torch over the parameters of what FSDP wrapped."""
    sharded = known_sharded(module) if "NO_SHARD" not in module.source else []
    for call in module.named("torch.nn.utils.clip_grad_norm_") if sharded else ():
        given = call.argument("parameters", 0)
        text = text_of(given.func) if isinstance(given, ast.Call) else ""
        for wrap in sharded:
            if text == f"{wrap.text}.parameters" and sees(module, wrap, call):
                yield Hit(call.node, {"name": wrap.text})
                break


@Rule(
    "RW313", "step-on-one-rank", "error", "high",
    message="{name} runs on {ranks} only: from here on the ranks train with different {what}",
    why="DDP makes gradients equal, nothing else. Each rank has an optimizer and a scheduler of its own, and all of them have to "
    "take the same steps.",
    example=HEAD + """
 def train(net, loader, optimizer, scheduler):
     model = DDP(net)
     for epoch in range(10):
         for x in loader:
             model(x).sum().backward()
             optimizer.step()
+        scheduler.step()
         if dist.get_rank() == 0:
-            scheduler.step()
             print(scheduler.get_last_lr())
""",
    ignore="that optimizer trains a model which lives on this rank alone.",
)  # fmt: skip
def step_on_one_rank(module: Module) -> Iterator[Hit]:
    """The step of an optimizer or a scheduler, or what sets the learning rate, under a test of the rank."""
    if not (is_distributed(module) or has_framework(module)):
        return
    sets = re.compile(r"(adjust|set|update|decay)_(lr|learning_rate)")
    changes = (call for call in module.calls if sets.match(call.method))
    told = (call for call in module.methods("set_epoch") if "sampler" in last(call.base).lower())
    for call in (*module.methods("step"), *changes, *told):
        if call.method == "step" and not _STEPPERS.search(call.base):
            continue
        side = effective_side(module, call.place)
        if side is None or on_both_sides(call.place.guard, call.method):
            continue
        rated = call.method != "step" or re.search("sched|lr", call.base, re.IGNORECASE)
        apart = "learning rates" if rated else "weights"
        apart = "orders of the data" if call.method == "set_epoch" else apart
        yield Hit(call.node, {"name": call.text, "ranks": RANKS[side], "what": apart})


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
    lists = shown.args if isinstance(shown, ast.Call) and called(shown) in _JOINS else []
    parts = list(ast.walk(shown)) if shown is not None and (lists or isinstance(shown, ast.ListComp)) else []
    if any(called(part) in _NUMBERS for part in parts):
        return False
    if any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts):
        return True
    return bool(depth) and any(_holds_gradient(module, part, scope, depth - 1) for part in lists if part is not node)


_JOINS = frozenset(
    "cat concat concatenate hstack flatten_dense_tensors _flatten_dense_tensors parameters_to_vector".split()
)
_NUMBERS = frozenset("norm sum mean max item abs".split())


@Rule(
    "RW410", "weights-start-apart", "warning", "medium",
    message="nothing makes the weights of {name} equal on all ranks: each starts from its own and they stay apart",
    why="DDP sends the weights of rank 0 to all when it wraps a model, and never again. Whoever reduces gradients by hand "
    "has to broadcast the weights first; equal gradients do not bring different weights together.",
    example=HEAD + """
 def train(batches):
     net = torch.nn.Linear(8, 1)
+    for p in net.parameters():
+        dist.broadcast(p.data, src=0)
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
            drawn = call.method == "apply" and call.base in {wrap.text, f"{wrap.text}.module"}
            if drawn and any("init" in text_of(part).lower() for part in call.node.args[:1]):
                yield Hit(call.node.func, {"name": call.base})
    first = next(_of_gradients(module), None)
    told = (
        "broadcast",
        "broadcast_",
        "broadcast_object_list",
        "broadcast_parameters",
        "load_state_dict",
        "from_pretrained",
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
