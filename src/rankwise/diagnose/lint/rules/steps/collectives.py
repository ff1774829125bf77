"""RW401, RW404 to RW406: collectives: who joins them, and when their result is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.collective_calls import collective_inside, collectives
from rankwise.diagnose.lint.analysis.facts import (
    RANKS,
    is_const,
    training_loops,
)
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import called, names_in, text_of
from rankwise.diagnose.lint.analysis.scopes import Branch, Call, Scope
from rankwise.diagnose.lint.analysis.wrapped import DDP, WRAPPERS, Wrap, known_sharded, known_wraps, sees, wraps
from rankwise.diagnose.lint.record import HEAD, Hit, Rule


def _names_of_collectives(module: Module, nodes: list[ast.stmt]) -> list[str]:
    """Return the names of the collectives in statements, in order; functions that contain one count by their name."""
    calls = [module.call_of[part] for stmt in nodes for part in ast.walk(stmt) if part in module.call_of]
    listed = set(collectives(module))
    return sorted(
        call.method if call in listed else call.text for call in calls if call in listed or _reached(module, call)
    )


def _matched(module: Module, branch: Branch, call: Call) -> bool:
    """Whether the other side makes the same call: in the other branch, or by a test of the other side further on."""
    node = branch.node
    if isinstance(node, ast.If):
        then, other = _names_of_collectives(module, node.body), _names_of_collectives(module, node.orelse)
        if then and then == other:
            return True
    # if rank != 0: barrier() ... if rank == 0: barrier() lets the main rank go first
    sides = [found.place.side for found in module.methods(call.method) if found.place.scope is call.place.scope]
    return sides.count("main") == sides.count("other") > 0


@Rule(
    "RW401", "collective-in-rank-branch", "error", "high",
    message="{name} runs on {ranks} only; the other ranks never join it, and the job hangs",
    why="A collective ends when all ranks of the group have called it. One inside `if rank == 0` waits for ever. Wrapping a "
    "model in DDP is one, too.",
    example=HEAD + """
 def report(loss):
+    dist.all_reduce(loss)
     if dist.get_rank() == 0:
-        dist.all_reduce(loss)
         print(loss.item())
""",
    ignore="the others call the same collective in another place that the rule does not see.",
)  # fmt: skip
def collective_in_rank_branch(module: Module) -> Iterator[Hit]:
    """A collective, or a call of a function that always reaches one, under a test of the rank."""
    listed = set(collectives(module)) | {wrap.call for wrap in wraps(module)}
    for call in module.calls:
        branch = call.place.guard
        if branch is None:
            continue
        # a test may also ask for something that only some ranks have, a group of their own for example
        asked = (name for each in call.place.branches for name in names_in(each.test))
        if any("group" in name.lower() for name in asked):
            continue
        ranks = RANKS[branch.side or "main"]
        if call in listed:
            name = "the wrap by DDP" if call.name == DDP else call.text
            if call.method != "new_group" and not _matched(module, branch, call):
                yield Hit(call.node, {"name": name, "ranks": ranks})
            continue
        inner = _reached(module, call)
        # each side talks to the other by functions of its own
        answers = (
            found for found in call.place.scope.calls if {found.place.side, call.place.side} == {"main", "other"}
        )
        if inner is not None and not _matched(module, branch, call) and not any(_reached(module, at) for at in answers):
            name = f"{call.text}, which calls {inner.text},"
            yield Hit(call.node, {"name": name, "ranks": ranks}, confidence="medium")


def _reached(module: Module, call: Call) -> Call | None:
    """Return the collective that the function which is called always reaches."""
    target = module.scope_of(call)
    return None if target is None else collective_inside(*target)


@Rule(
    "RW404", "async-result-unwaited", "error", "medium",
    message="{name} before the collective that fills it has ended: wait() first",
    why="async_op=True returns at once with a handle; until handle.wait() the tensor holds anything.",
    example=HEAD + """
 def total(value):
     handle = dist.all_reduce(value, async_op=True)
+    handle.wait()
     print(value.item())
-    handle.wait()
""",
    ignore="another handle of the same stream is waited for in between.",
)  # fmt: skip
def async_result_unwaited(module: Module) -> Iterator[Hit]:
    """The tensor of an asynchronous collective is used in the same block before anything is waited for.

    Or its handle is thrown away, and nothing in the file waits for the device.
    """
    waits = module.has_call("synchronize", "wait_stream")
    for call in (*collectives(module), *module.named("torch.distributed.irecv")):
        later = call.method == "irecv" or is_const(call.argument("async_op"), True)
        if not later or not call.node.args:
            continue
        tensor = call.node.args[0]
        stmt = call.place.stmt
        if call.is_alone and call.name.startswith("torch.distributed."):
            joined = any("coalesc" in text for text in call.place.contexts)
            waited = waits or any("wait" in each.method for each in call.place.scope.calls)
            if not waited and not joined and call.method != "barrier" and isinstance(tensor, ast.Name | ast.Attribute):
                yield Hit(call.node, {"name": f"the handle is dropped, and {text_of(tensor)} is used"})
                continue
        if not isinstance(tensor, ast.Name):
            continue
        for stmt in call.place.block[call.place.index + 1 :]:
            calls = [part for part in ast.walk(stmt) if isinstance(part, ast.Call)]
            if any(called(part) in {"wait", "synchronize", "append", "extend", "add", "barrier"} for part in calls):
                break
            added = stmt.target if isinstance(stmt, ast.AugAssign) else None
            names = (part for part in ast.walk(stmt) if isinstance(part, ast.Name) and part.id == tensor.id)
            used = next((part for part in names if isinstance(part.ctx, ast.Load) or part is added), None)
            if used is not None and not isinstance(stmt, ast.Return | ast.For | ast.While | ast.If):
                again = any(module.call_of.get(part) in set(collectives(module)) for part in calls)
                if not again:
                    yield Hit(used, {"name": f"{tensor.id} is read"})
                break


@Rule(
    "RW405", "barrier-in-loop", "info", "medium",
    message="a barrier in every training step: backward already keeps the ranks together",
    why="It costs a round trip per step and hides which rank is slow.",
    example=HEAD + """
 def train(model, loader, optimizer):
     for x in loader:
         model(x).sum().backward()
         optimizer.step()
-        dist.barrier()
+    dist.barrier()
""",
    ignore="it stands there to measure or to debug.",
)  # fmt: skip
def barrier_in_loop(module: Module) -> Iterator[Hit]:
    """A barrier straight in the body of a training loop."""
    loops = training_loops(module)
    for call in module.named("torch.distributed.barrier"):
        if call.place.loops and call.place.loops[-1] in loops and not call.place.branches:
            yield Hit(call.node)


@Rule(
    "RW406", "wrapped-forward-on-one-rank", "warning", "medium",
    message="{name} is wrapped, and only {ranks} runs it: each forward pass {what}",
    why="DDP broadcasts buffers (BatchNorm statistics) in each forward pass, and FSDP gathers parameters. Both are "
    "collectives: they wait for the other ranks, or meet another collective of theirs. Of DDP use model.module.",
    example=HEAD + """
 def train(net, loader, held_out):
     model = DDP(net)
     for x in loader:
         model(x).sum().backward()
     if dist.get_rank() == 0:
-        print(model(held_out))
+        print(model.module(held_out))
""",
    ignore="the model has no buffers, or forward_sync_buffers=False was given.",
)  # fmt: skip
def wrapped_forward_on_one_rank(module: Module) -> Iterator[Hit]:
    """A wrapped model is called under a test of the rank: by one of its names, or in a function that is called there."""
    for wrap in (*known_wraps(module), *known_sharded(module)):
        ddp = wrap.made.name in WRAPPERS
        told = is_const(wrap.made.argument("broadcast_buffers"), False)
        if told or (ddp and _is_without_buffers(module, wrap)):
            continue
        what = "broadcasts its buffers" if ddp else "gathers its parameters from all ranks"
        for call in module.calls:
            if call.place.side == "main" and _runs(module, call, wrap):
                yield Hit(call.node, {"name": wrap.text, "ranks": "the main rank", "what": what})


def _is_without_buffers(module: Module, wrap: Wrap) -> bool:
    """Whether the wrapped model is of a class of this file whose layers are torch's own, and none of them has buffers."""
    made = next((each for each in known_wraps(module) if each.call is wrap.made), wrap)
    for found in module.bindings_of(made.inner, made.place.scope) if made.inner else ():
        parts = (part for part in ast.walk(found.value or found.place.stmt) if isinstance(part, ast.Call))
        known = (module.top.functions.get(text_of(part.func)) for part in parts if not part.args)
        owner = next((each for each in known if each is not None), None)
        start = owner.functions.get("__init__") if owner is not None else None
        if start is not None and [module.name_of(base) for base in owner.bases] == ["torch.nn.Module"]:  # type: ignore[union-attr]
            layers = [call for call in start.calls if not call.text.startswith("super")]
            return all(call.name.startswith("torch.nn.") and "Norm" not in call.method for call in layers)
    return False


def _runs(module: Module, call: Call, wrap: Wrap, depth: int = 2) -> bool:
    """Whether a call is one of a wrapped model, or of a function that runs it, which it sees or is given."""
    if call.text == wrap.text:
        return sees(module, wrap, call)
    target = module.local_function(call)
    there = module.scope_of(call) if target is None else None
    if sees(module, wrap, call) and _gives(module, call, wrap.text, there[1] if there else target):
        return True
    inside = target.calls if target is not None and depth else ()
    return any(
        inner.place.side is None and inner.method not in {"train", "fit"} and _runs(module, inner, wrap, depth - 1)
        for inner in inside
        if inner.text == wrap.text or inner.text.startswith("self.")
    )


_EVALUATES = re.compile(
    r"((run|do|compute|get|calculate|calc)_)?(validate|evaluate|validation|evaluation|eval|val(id)?|test|accuracy|metrics)"
    r"(_model|_epoch|_one_epoch|_loop|_step)?|(sample|denoise|predict|infer|inference)(_\w+)?|\w+_sample|model_eval"
)


def _gives(module: Module, call: Call, text: str, target: Scope | None) -> bool:
    """Whether a call gives a model to a function of this file that calls it, or to one out of sight that evaluates."""
    given_texts = list(map(text_of, call.given))
    if target is None:
        hidden = "." in call.text or call.text in module.imports.bound or "*" in module.imports.bound
        return hidden and _EVALUATES.fullmatch(call.method) is not None and text in given_texts
    inside = {found.text for found in target.calls} if text in given_texts else set()
    shift = bool(target.params) and target.params[0] in {"self", "cls"}
    return any(
        name in inside and (given := call.argument(name, index - shift)) is not None and text_of(given) == text
        for index, name in enumerate(target.params)
    )
