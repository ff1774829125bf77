"""RW501 to RW505: what is saved, by whom, and how it comes back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.effects import is_alike, is_on_all, missing_file, runs_ranks, starts_ranks, writes
from rankwise.diagnose.lint.analysis.facts import effective_side, has_framework, is_distributed
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import called, text_of
from rankwise.diagnose.lint.analysis.scopes import Call
from rankwise.diagnose.lint.analysis.wrapped import (
    known_parallel,
    known_prepared,
    known_shards,
    known_wraps,
    sees,
    unmoved,
    wraps,
)
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule


@Rule(
    "RW501", "save-on-all-ranks", "warning", "medium",
    message="every rank writes this file: save on one rank only",
    why="Ranks write the same path at the same time. The file may be torn, and a shared file system gets world_size times the "
    "load.",
    example=HEAD + """
 def main(net, path):
     dist.init_process_group("nccl")
     model = DDP(net)
-    torch.save(model.module.state_dict(), path)
+    if dist.get_rank() == 0:
+        torch.save(model.module.state_dict(), path)
+    dist.barrier()
""",
    ignore="each rank saves something of its own under a path of its own.",
)  # fmt: skip
def save_on_all_ranks(module: Module) -> Iterator[Hit]:
    """What writes a file where several ranks run, at a place that all of them reach, to a path that is the same on all."""
    yield from (Hit(call.node.func) for call in _overridden(module))
    if runs_ranks(module):
        for call, path in (*writes(module), *_beside_guarded(module)):
            prepared = any(missing_file(branch) for branch in call.place.branches)  # `prepared-by-all` looks at that
            if not prepared and is_on_all(module, call.place) and is_alike(module, call, path):
                yield Hit(call.node.func)


def _beside_guarded(module: Module) -> Iterator[tuple[Call, ast.expr]]:
    """Yield ``save(model, path)`` and its path where the same function tests the rank for another save of that kind."""
    saves = [call for call in module.calls if call.method.startswith("save") and not call.name.startswith("torch.")]
    for call in saves if is_distributed(module) and not has_framework(module) else ():
        alike = "base" if call.base and not call.name else "text"
        others = [each for each in saves if each.place.scope is call.place.scope and each.place.side == "main"]
        guarded = any(getattr(each, alike) == getattr(call, alike) for each in others)
        if guarded and call.node.args and call.method != "save_pretrained" and module.local_function(call) is None:
            yield call, call.node.args[0]


_ASKED = re.compile(r"should_save|world_process_zero|rank|is_main|deepspeed|fsdp", re.IGNORECASE)


def _overridden(module: Module) -> Iterator[Call]:
    """Yield what save_model of a class made of transformers' Trainer writes: the Trainer calls it on every rank."""
    if not any(starts_ranks(module) or word in module.source for word in ("local_rank", "LOCAL_RANK", "world_size")):
        return
    for call, _ in writes(module):
        owner = call.place.scope.owner
        bases = owner.bases if owner is not None else []
        own = any(re.fullmatch(r"transformers\.(\w+\.)*\w*Trainer", module.name_of(base)) for base in bases)
        if own and call.place.scope.name == "save_model" and not _ASKED.search(ast.unparse(call.place.scope.node)):
            yield call


@Rule(
    "RW502", "save-whole-module", "warning", "high",
    message="torch.save of the model {name} itself pickles its classes, and DDP where it is wrapped: save its state_dict",
    why="The file loads only where the same classes, a process group and the same code exist; torch.load refuses it by default "
    "since 2.6 (weights_only).",
    example=HEAD + """
 def save(net, path):
     model = DDP(net)
     if dist.get_rank() == 0:
-        torch.save(model, path)
+        torch.save(model.module.state_dict(), path)
""",
)  # fmt: skip
def save_whole_module(module: Module) -> Iterator[Hit]:
    """torch.save(model) of what DDP returned or holds, or of another module of a file that uses several GPUs."""
    names = {wrap.text for wrap in known_wraps(module)}
    if names or module.has_named("torch.nn.DataParallel"):
        # a move whose value is dropped is one of a module: a tensor's gives a copy
        names |= {call.base for call in module.methods("to", "cuda", "cpu") if call.is_alone}
    # what was taken out of the wrap: `net = model.module if hasattr(model, "module") else model`
    for binding in module.bindings if is_distributed(module) else ():
        sides = (binding.value, getattr(binding.value, "body", None), getattr(binding.value, "orelse", None))
        names |= {binding.text for side in sides if isinstance(side, ast.Attribute) and side.attr == "module"}
    for binding in module.bindings:
        if module.made_by(unmoved(binding.value)) == "torch.nn.DataParallel":
            names.add(binding.text)
    for call in module.named("torch.save"):
        saved = unmoved(call.argument("obj", 0))
        if not isinstance(saved, ast.Name | ast.Attribute):
            continue
        behind = isinstance(saved, ast.Attribute) and saved.attr == "module" and bool(wraps(module))
        if behind or text_of(saved).removesuffix(".module") in names:
            yield Hit(saved, {"name": text_of(saved)})


@Rule(
    "RW503", "save-wrapped-state", "warning", "medium",
    message="the keys of {name}.state_dict() begin with 'module.': a model that is not wrapped cannot load them",
    why="DDP, as DataParallel, is a module around the model. Save model.module.state_dict(), which loads with and without the wrap.",
    example=HEAD + """
 def save(net, path):
     model = DDP(net)
     if dist.get_rank() == 0:
-        torch.save(model.state_dict(), path)
+        torch.save(model.module.state_dict(), path)
""",
    ignore="it is always loaded back into a wrapped model.",
    fix="unsafe",
)  # fmt: skip
def save_wrapped_state(module: Module) -> Iterator[Hit]:
    """model.state_dict() that torch.save gets, also by way of a variable, where nothing in the file loads or renames it."""
    known = [*known_wraps(module), *known_parallel(module)]
    # of what Accelerate prepares nothing shows whether it is loaded back prepared
    known += [] if module.has_call("load_state_dict") else known_prepared(module)
    renamed = any(text.startswith("module.") for text in module.texts)
    if not known or renamed or module.has_call("consume_prefix_in_state_dict_if_present"):
        return
    saves: dict[ast.AST, str] = {part: path for one, path in _all_saved(module) for part in ast.walk(one)}
    loaded: set[tuple[Call, str]] = set()
    for call in module.methods("load_state_dict"):
        made = {wrap.made for wrap in known if wrap.text == call.base and sees(module, wrap, call)}
        path = _loaded_path(module, call)
        loaded |= {(each, path if path in saves.values() else "") for each in made}
    for call in module.methods("state_dict"):
        wrap = next((each for each in known if each.text == call.base and sees(module, each, call)), None)
        # `if isinstance(net, DDP): net = net.module` makes it another
        own = (found.value for found in call.place.scope.bindings.get(call.base, ()) if found.value is not None)
        taken_out = any(text.endswith(".module") or "unwrap" in text for text in map(text_of, own))
        if wrap is None or call.node not in saves or taken_out or _is_chosen(call):
            continue
        # a file that is loaded back speaks for itself only; one whose path is not seen speaks for all
        if not {(wrap.made, ""), (wrap.made, saves[call.node])} & loaded:
            # wrapped in some runs only, and saved in all
            tests = {branch.node for branch in call.place.branches}
            chosen = any(branch.node not in tests for branch in wrap.made.place.branches)
            prepared = wrap.made.method == "prepare"
            end = module.span(call.node.func)[1] - len(".state_dict")
            fix = Fix(f"{call.base}.module.state_dict()", (Edit(end, end, ".module"),), safe=False)
            yield Hit(call.node.func, {"name": call.base}, None if chosen or prepared else fix)


def _is_chosen(call: Call) -> bool:
    """Whether the state is one side of a choice whose other side takes the model out of the wrap."""
    choices = [part for part in ast.walk(call.place.stmt) if isinstance(part, ast.IfExp)]
    sides = [pair for each in choices for pair in ((each.body, each.orelse), (each.orelse, each.body))]
    if any(call.node in ast.walk(one) and ".module" in ast.unparse(other) for one, other in sides):
        return True
    ifs = [(branch.node, branch.taken) for branch in call.place.branches if isinstance(branch.node, ast.If)]
    return any(".module" in ast.unparse(stmt) for node, taken in ifs for stmt in (node.orelse if taken else node.body))


def _loaded_path(module: Module, call: Call) -> str:
    """Return the path of the torch.load whose value load_state_dict gets, "" if it is not seen."""
    state = module.value(call.argument("state_dict", 0), call.place.scope)
    loads = [part for part in ast.walk(state) if module.made_by(part) == "torch.load"] if state is not None else []
    return next((ast.unparse(part.args[0]) for part in loads if part.args), "")  # type: ignore[attr-defined]


def _all_saved(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield what torch.save gets, or a helper of another file that is named so, and the path; "" if it is not seen."""
    for call in module.named("torch.save"):
        saved = call.argument("obj", 0)
        if saved is not None:
            path = call.argument("f", 1)
            text = "" if path is None else ast.unparse(path)
            yield from ((part, text) for part in _held(module, saved, call))
    for call in module.calls:
        saves = call.method.startswith("save") or call.name == "pickle.dump"
        if saves and call.name != "torch.save" and module.local_function(call) is None:
            yield from ((found, "") for part in call.given for found in _held(module, part, call))


def _held(module: Module, node: ast.expr, at: Call, depth: int = 4) -> Iterator[ast.AST]:
    """Yield the parts of what is saved: by way of variables, fields, parameters, results, and what fills a dict."""
    yield from ast.walk(node)
    scope = at.place.scope
    for part in _values(node) if depth else ():
        if isinstance(part, ast.Call) and (target := module.local_function(Call(part, text_of(part.func), at.place))):
            for place in target.exits:
                value = getattr(place.stmt, "value", None)
                if value is not None:
                    yield from _held(module, value, Call(at.node, "", place), depth - 1)
        if not isinstance(part, ast.Name | ast.Attribute):
            continue
        text = text_of(part)
        bound = [found for found in module.bindings_of(text, scope) if found.value is not None]
        inner = [found for found in bound if found.place.scope is scope or text.startswith("self.")]
        # of a variable that is bound again, the last one; a choice between two shows both
        shown = [found for found in inner if position(found.place.stmt) < position(at.node)][:1] or inner
        for found in shown if not text.startswith("self.") else inner:
            yield from _held(module, found.value, Call(at.node, "", found.place), depth - 1)  # type: ignore[arg-type]
        for call in scope.calls:
            # `state["model"] = ...`, and state.update(...)
            filled = (part.value for part in call.place.targets if isinstance(part, ast.Subscript))
            if call.text == f"{text}.update" or text in map(text_of, filled):
                yield from ast.walk(call.place.stmt)
        if not bound and scope.is_function and text in scope.params:
            for outer, given in module.given(scope, text):
                if given is not None:
                    yield from _held(module, given, outer, depth - 1)


def _values(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression, and the parts of a dict, of a list, and of what a call copies, that it is made of."""
    yield node
    inside = node.values if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    if isinstance(node, ast.Call) and called(node) in {"dict", "deepcopy", "OrderedDict"}:
        inside = [*node.args, *(word.value for word in node.keywords)]
    for part in inside:
        yield from _values(part)


_GATHERS = re.compile(
    r"full_tensor|get_model_state_dict|full_state_dict|GatheredParameters|consolidat|16bit|zero_to_fp32"
)


@Rule(
    "RW507", "shards-of-one-rank", "error", "medium",
    message="{name}.state_dict() holds the shards of this rank only, and the other ranks save nothing: the weights are lost",
    why="fully_shard leaves a part of each parameter on each rank. Gather them on all ranks first "
    "(get_model_state_dict with full_state_dict=True, save_16bit_model), or let all ranks save (torch.distributed.checkpoint, "
    "save_checkpoint).",
    example="""
-from torch.distributed.fsdp import fully_shard
 import torch
 import torch.distributed as dist
-from torch.nn.parallel import DistributedDataParallel as DDP
+import torch.distributed.checkpoint as dcp
+from torch.distributed.fsdp import fully_shard

 def save(net, path):
     fully_shard(net)
-    if dist.get_rank() == 0:
-        torch.save(net.state_dict(), path)
+    dcp.save({"net": net.state_dict()}, checkpoint_id=path)
""",
    ignore="the mesh replicates, and shards nothing.",
)  # fmt: skip
def shards_of_one_rank(module: Module) -> Iterator[Hit]:
    """torch.save of the state of what fully_shard has sharded, on the main rank only."""
    known = known_shards(module)
    for save in module.named("torch.save") if known and not _GATHERS.search(module.source) else ():
        saved = save.argument("obj", 0)
        if saved is None or effective_side(module, save.place) != "main":
            continue
        for part in _held(module, saved, save):
            call = module.call_of.get(part) if isinstance(part, ast.Call) else None
            if call is None or call.method != "state_dict":
                continue
            if any(wrap.text == call.base and sees(module, wrap, call) for wrap in known):
                yield Hit(call.node, {"name": call.base})
