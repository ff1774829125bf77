"""RW3: the step: forward, backward, accumulation, clipping, mixed precision."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import has_framework
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import last, text_of
from rankwise.diagnose.lint.analysis.scopes import Call, excludes
from rankwise.diagnose.lint.analysis.wrapped import is_rebound, wraps
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule

_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


@Rule(
    "RW301", "clip-before-unscale", "error", "high",
    message="gradients are clipped while they are scaled: call {call} first",
    why="GradScaler has multiplied the gradients, by 65536 at first. Their norm is compared with a limit meant for real ones, so "
    "every step is clipped to almost nothing.",
    example=HEAD + """
 def step(model, loss, optimizer, scaler):
     scaler.scale(loss).backward()
+    scaler.unscale_(optimizer)
     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
     scaler.step(optimizer)
     scaler.update()
""",
    fix="safe",
)  # fmt: skip
def clip_before_unscale(module: Module) -> Iterator[Hit]:
    """scale(loss).backward(), clip, step, and no unscale_ in the function."""
    for clip in module.methods(*_CLIPS):
        scope = clip.place.scope
        passes = [call for call in module.methods("backward") if call.text.endswith(".scale().backward")]
        here = [call for call in passes if call.place.scope is scope and position(call.node) < position(clip.node)]
        # by another method of the class, whose clipping one steps by the scaler
        there = [call for call in passes if scope.owner is not None and call.place.scope.owner is scope.owner]
        scaled = here or (there if not module.has_call("unscale_") else [])
        unscaled = any(call.method == "unscale_" for call in scope.calls)
        if not scaled or unscaled or excludes(scaled[-1].place, clip.place):
            continue
        scaler = scaled[-1].text.removesuffix(".scale().backward")
        steps = [call for call in module.methods("step") if call.text == f"{scaler}.step" and call.place.scope is scope]
        steps = [call for call in steps if position(call.node) > position(clip.node)]
        if not steps or not steps[0].node.args:
            continue
        optimizer = module.text(steps[0].node.args[0])
        stmt = clip.place.stmt
        at = module.span(stmt)[0]
        begins = module.offset(stmt.lineno, 0)
        indent = module.source[begins:at]
        text = f"{scaler}.unscale_({optimizer})\n{indent}"
        fix = Fix(f"insert {scaler}.unscale_({optimizer})", (Edit(at, at, text),)) if not indent.strip() else None
        yield Hit(clip.node, {"call": f"{scaler}.unscale_({optimizer})"}, fix)


@Rule(
    "RW302", "no-sync-without-forward", "error", "high",
    message="only backward is inside {name}.no_sync(): the gradients are reduced all the same",
    why="DDP decides in the forward pass whether backward reduces. The forward must be inside, too.",
    example=HEAD + """
 def accumulate(net, batches):
     model = DDP(net)
     for x in batches:
-        loss = model(x).sum()
         with model.no_sync():
+            loss = model(x).sum()
             loss.backward()
""",
)  # fmt: skip
def no_sync_without_forward(module: Module) -> Iterator[Hit]:
    """A no_sync block that holds nothing but backward."""
    for call in module.methods("no_sync"):
        stmt = call.place.stmt
        if not isinstance(stmt, ast.With) or has_framework(module):
            continue
        inside = [found for found in module.calls if stmt in found.place.withs]
        known = {"backward", "scale", "item", "append", "print", "zero_grad"}
        simple = all(
            isinstance(part, ast.Expr | ast.AugAssign)
            or (isinstance(part, ast.Assign) and not any(isinstance(x, ast.Call) for x in ast.walk(part)))
            for part in stmt.body
        )
        plain = any(
            isinstance(found.node.func, ast.Attribute) and re.fullmatch(r"\w+|[\w.]+\(\)", found.base)
            for found in inside
            if found.method == "backward"
        )
        if simple and plain and inside and {found.method for found in inside} <= known:
            yield Hit(call.node, {"name": call.base})


_ACCUMULATION = re.compile(
    r"accum|grad_steps|gradient_steps|iter_size|update_freq|update_every|micro_?(steps|batches)", re.IGNORECASE
)


@Rule(
    "RW303", "accumulation-without-no-sync", "warning", "medium",
    message="gradients are reduced after every micro-batch, though the optimizer steps once in several: use no_sync()",
    why="Every backward pass of DDP reduces all gradients. Inside model.no_sync() they are only added up locally; the last "
    "micro-batch of a step runs outside of it.",
    example="+import contextlib\n" + HEAD + """
 def train(net, loader, optimizer, accumulation_steps):
     model = DDP(net)
     for i, x in enumerate(loader):
-        loss = model(x).sum() / accumulation_steps
-        loss.backward()
-        if (i + 1) % accumulation_steps == 0:
+        last = (i + 1) % accumulation_steps == 0
+        with contextlib.nullcontext() if last else model.no_sync():
+            loss = model(x).sum() / accumulation_steps
+            loss.backward()
+        if last:
             optimizer.step()
             optimizer.zero_grad()
""",
    ignore="the reduction is overlapped completely, or memory forbids it.",
)  # fmt: skip
def accumulation_without_no_sync(module: Module) -> Iterator[Hit]:
    """Backward in every pass of a loop, step under `% accumulation`, and no word of no_sync in a file that wraps."""
    accelerate = module.imports.uses("accelerate") and "Accelerator" in module.imports.bound
    if module.has_call("no_sync") or "no_sync" in module.attributes:
        return
    # Accelerate's does it; an option, or a metric's method, may be called so, too
    told = has_framework(module) and module.has_call("accumulate")
    told = told or any(found.text.endswith("require_backward_grad_sync") for found in module.bindings)
    if told or (not accelerate and (not wraps(module) or has_framework(module))):
        return
    for call in module.methods("backward"):
        here = [wrap for wrap in wraps(module) if wrap.place.scope is call.place.scope]
        if here and all(is_rebound(wrap, call) for wrap in here):  # the name means a plain model by then
            continue
        looped = call.place.loops or any(found.place.loops for found in module.callers(call.place.scope))
        if looped and not call.place.side and (_divided(call) or _is_stepped_later(module, call)):
            yield Hit(call.node)


def _is_stepped_later(module: Module, call: Call) -> bool:
    """Whether the step waits for several passes: by a test in their loop, or behind a loop of as many as divide the loss."""
    before, loops = call.place.block[: call.place.index], call.place.loops
    nodes = (part for stmt in (*before[-2:], call.node) for part in ast.walk(stmt))
    parts = [part for part in nodes if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div)]
    numbers = {ast.unparse(part.right) for part in parts if isinstance(part.right, ast.Name | ast.Attribute)}
    apart = any(_ACCUMULATION.search(ast.unparse(branch.test)) for branch in call.place.branches)
    for step in call.place.scope.calls:
        # or a function of this file that takes it
        inside = module.inside(step) if "step" in step.method or "update" in step.method else []
        if not any(each.method == "step" and "sched" not in each.base.lower() for each in (step, *inside)):
            continue
        behind = step.place.loops == loops[:-1] and position(step.node) > position(call.node)
        loop = loops[-1] if loops and behind else None
        if isinstance(loop, ast.For) and ast.unparse(loop.iter) in {f"range({each})" for each in numbers}:
            return True
        tests = [branch.test for branch in step.place.branches if branch not in call.place.branches]
        for test in tests if step.place.loops[-1:] == loops[-1:] else ():
            rests = [part for part in ast.walk(test) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)]
            told = rests and loops and not apart and _ACCUMULATION.search(ast.unparse(test))
            if told or any(ast.unparse(part.right) in numbers for part in rests):
                return True
    return False


def _divided(call: Call) -> bool:
    """Whether the loss is divided by a number of micro-batches: in the call, or before it in its block."""
    before = call.place.block[: call.place.index]
    for part in (part for stmt in (*before, call.node) for part in ast.walk(stmt)):
        if isinstance(part, ast.BinOp | ast.AugAssign) and isinstance(part.op, ast.Div):
            divisor = part.right if isinstance(part, ast.BinOp) else part.value
            if _ACCUMULATION.search(ast.unparse(divisor)) and "loss" in ast.unparse(part).lower():
                return True
    return False


@Rule(
    "RW304", "accumulation-tail", "info", "medium",
    message="the last micro-batches of an epoch are dropped, or leak into the next one, where they do not fill a step",
    why="`(i + 1) % n == 0` never holds for the rest of the epoch; its gradients wait in .grad.",
    example=HEAD + """
 def train(model, loader, optimizer, accumulation_steps):
     for i, x in enumerate(loader):
         model(x).sum().backward()
-        if (i + 1) % accumulation_steps == 0:
+        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
             optimizer.step()
             optimizer.zero_grad()
""",
    ignore="the number of batches is a multiple, or drop_last covers it.",
)  # fmt: skip
def accumulation_tail(module: Module) -> Iterator[Hit]:
    """The step's test has nothing but the modulo."""
    for step in module.methods("step"):
        for branch in step.place.branches[-1:]:
            test = branch.test
            left = test.left if isinstance(test, ast.Compare) else None
            modulo = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod)
            if modulo and _ACCUMULATION.search(ast.unparse(test)) and "sched" not in step.base.lower():
                yield Hit(test)


_AMP = {"torch.cuda.amp.autocast": "torch.amp.autocast", "torch.cuda.amp.GradScaler": "torch.amp.GradScaler"}


@Rule(
    "RW308", "deprecated-cuda-amp", "warning", "high",
    message="{old} is deprecated: {new}",
    why="torch.cuda.amp warns (FutureWarning) since 2.4; torch.amp takes the kind of device as its first argument.",
    example=HEAD + """
 def step(model, x):
-    with torch.cuda.amp.autocast():
+    with torch.amp.autocast("cuda"):
         return model(x)
""",
    ignore="versions before 2.3 have to be supported.",
    fix="safe",
)  # fmt: skip
def deprecated_cuda_amp(module: Module) -> Iterator[Hit]:
    """Calls of torch.cuda.amp; those written out in full are mended."""
    for old, new in _AMP.items():
        for call in module.named(old):
            values = {"old": old, "new": f'{new}("cuda", ...)'}
            start, end = module.span(call.node.func)
            fix = None
            if module.source[start:end] == old:
                behind = module.source.index("(", end) + 1
                given = bool(call.node.args or call.node.keywords)
                edits = (Edit(start, end, new), Edit(behind, behind, '"cuda", ' if given else '"cuda"'))
                fix = Fix(values["new"], edits)
            yield Hit(call.node.func, values, fix)


@Rule(
    "RW309", "step-order", "error", "high",
    message="the gradients are zeroed between backward and {name}.step(): the step sees none",
    why="zero_grad belongs before backward or after the step.",
    example=HEAD + """
 def step(model, x, optimizer):
+    optimizer.zero_grad()
     model(x).sum().backward()
-    optimizer.zero_grad()
     optimizer.step()
""",
)  # fmt: skip
def step_order(module: Module) -> Iterator[Hit]:
    """backward, zero_grad and step of one optimizer, straight one after the other in one block."""
    for zero in module.methods("zero_grad"):
        block, index = zero.place.block, zero.place.index
        before, behind = (
            [text_of(part.func) for stmt in stmts for part in ast.walk(stmt) if isinstance(part, ast.Call)]
            for stmts in (block[:index], block[index + 1 :])
        )
        step = f"{zero.base}.step"
        if re.fullmatch(r"(self\.)?(ddp_)?(model|net)", zero.base):  # a model's, whose one optimizer steps
            steps = {call.text for call in module.methods("step") if re.search("opt", call.base, re.IGNORECASE)}
            step = steps.pop() if len(steps) == 1 else step
        first = next((text for text in behind if text == step or last(text) == "backward"), None)
        done = [text for text in before if last(text) == "backward" or text == step]
        if first == step and done and last(done[-1]) == "backward" and "?" not in zero.base:
            yield Hit(zero.node, {"name": zero.base})
