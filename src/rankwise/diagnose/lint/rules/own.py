"""RW7: rankwise's own interface."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import is_const
from rankwise.diagnose.lint.analysis.module import Module
from rankwise.diagnose.lint.analysis.names import text_of
from rankwise.diagnose.lint.record import Hit, Rule

_TOKENS = re.compile(r"token|vocab|ignore_index|input_ids|\bids\b|\.view\(-1|\.reshape\(-1|\.flatten\(0", re.IGNORECASE)


@Rule(
    "RW701", "scalar-token-loss", "error", "medium",
    message="a mean over tokens is returned as a bare scalar: return (sum of the losses, number of tokens)",
    why="A scalar is taken as the mean over this rank's *samples*. Ranks have different numbers of tokens, and a mean of means is "
    "not the mean: the gradient depends on the number of ranks.",
    example="""
 import rankwise
 from torch.nn.functional import cross_entropy

 def step(model, batch):
     logits = model(batch["tokens"])
-    return cross_entropy(logits.view(-1, 256), batch["next"].view(-1), ignore_index=0)
+    total = cross_entropy(logits.view(-1, 256), batch["next"].view(-1), ignore_index=0, reduction="sum")
+    return total, (batch["next"] != 0).sum()

 def main(model, optimizer):
     return rankwise.Trainer(model, optimizer, step)
""",
    ignore="every sample has the same number of tokens, and every rank the same number of samples.",
)  # fmt: skip
def scalar_token_loss(module: Module) -> Iterator[Hit]:
    """A step that returns cross_entropy of flattened tokens, reduced to their mean."""
    for call in module.named("rankwise.Trainer", "rankwise.train.Trainer", "rankwise.train.ExactStep"):
        step = call.argument("step", 2)
        scope = module.top.functions.get(step.id) if isinstance(step, ast.Name) else None
        for value in [] if scope is None else scope.returned:
            paired = isinstance(value, ast.Tuple) and len(value.elts) == 2 and isinstance(value.elts[1], ast.Dict)
            made = module.value(value.elts[0] if paired else value, scope)  # type: ignore[attr-defined,arg-type]
            if not isinstance(made, ast.Call) or not text_of(made.func).endswith(("cross_entropy", "nll_loss")):
                continue
            reduction = next((word.value for word in made.keywords if word.arg == "reduction"), None)
            if (reduction is None or is_const(reduction, "mean")) and _TOKENS.search(ast.unparse(made)):
                yield Hit(value)


_LOADERS = ("SampleLoader", "DatasetLoader", "Pipeline", "OrderedLoader")


@Rule(
    "RW702", "step-without-mark-done", "error", "medium",
    message="the loader's position is saved, but no step is marked done: after a restart it begins the epoch anew",
    why="A position counts what was trained, not what was read. loader.mark_done(batch.resume) after optimizer.step() moves it; "
    "Trainer does so by itself.",
    example="""
 import rankwise
 from rankwise.data.samples import SampleLoader

 def train(world, source, order, take_step, checkpoints):
     loader = SampleLoader(source, order=order)
     for index, batches in enumerate(loader):
-        take_step(batches)
+        report = take_step(batches)
+        loader.mark_done(report.resume)
         checkpoints.save(index, {"order": loader.state_dict()})
""",
    ignore="a function of another file marks it.",
)  # fmt: skip
def step_without_mark_done(module: Module) -> Iterator[Hit]:
    """A loader of ours that is iterated and whose state is taken, in a file without mark_done."""
    if not module.imports.uses("rankwise") or module.has_call("mark_done", "fit"):
        return
    for binding in module.bindings:
        made = module.made_by(binding.value)
        if not made.startswith("rankwise.data.") or not made.endswith(_LOADERS):
            continue
        for call in module.methods("state_dict", "Replicated"):
            args = [text_of(arg) for arg in call.node.args if isinstance(arg, ast.Name | ast.Attribute)]
            saved = binding.text in ([call.base] if call.method == "state_dict" else args)
            looped = any(
                isinstance(loop, ast.For) and re.search(rf"\b{re.escape(binding.text)}\b", ast.unparse(loop.iter))
                for found in module.calls
                for loop in found.place.loops
            )
            if saved and looped:
                yield Hit(call.node, {})
                return


_WORLD = frozenset(
    "barrier broadcast gather all_gather reduce all_reduce broadcast_object from_main gather_object all_gather_object "
    "raise_together subgroup".split()
)
_WORLDS = {"rankwise.bind", "rankwise.World.current", "rankwise.world.bind"}
_EVERYONE = {
    "rankwise.metrics.reduce",
    "rankwise.train.evaluate",
    "rankwise.prepare",
    "rankwise.train.prepare",
    "rankwise.bind",
}


@Rule(
    "RW703", "collective-under-is-main", "error", "high",
    message="{name} is for every rank, and runs on the main rank only: the others go on without it",
    why="All ranks must make the call; rankwise raises on every rank that finds another one at its place.",
    example="""
 import rankwise

 with rankwise.bind() as world:
+    total = world.all_reduce(1)
     if world.is_main:
-        total = world.all_reduce(1)
+        print(total)
""",
)  # fmt: skip
def collective_under_is_main(module: Module) -> Iterator[Hit]:
    """A collective of a World, a reduction, an evaluation, fit or save under `if world.is_main`."""
    if not module.imports.uses("rankwise"):
        return
    made = {found.text: module.made_by(found.value) for found in module.bindings if isinstance(found.value, ast.Call)}
    for call in module.calls:
        if not call.place.side:
            continue
        owner = made.get(call.base, "")
        world = call.base in {"world", "self.world"} or owner in _WORLDS
        joint = (world and call.method in _WORLD) or call.name in _EVERYONE
        joint |= owner in {"rankwise.Trainer", "rankwise.train.Trainer"} and call.method == "fit"
        kept = owner in {"rankwise.Checkpointer", "rankwise.checkpoint.Checkpointer"}
        joint |= kept and call.method in {"save", "restore"}
        if joint:
            yield Hit(call.node, {"name": call.text})
