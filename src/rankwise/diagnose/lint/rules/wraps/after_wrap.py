"""RW201, RW203, RW205, RW207, RW220: what is done to parameters before a model is sharded, or after it is wrapped."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rankwise.diagnose.lint.analysis.facts import NO_TRAINING, is_const, training_loops
from rankwise.diagnose.lint.analysis.module import Module, position
from rankwise.diagnose.lint.analysis.names import names_in, text_of, texts_in
from rankwise.diagnose.lint.analysis.scopes import Binding, Call, Place, Scope, excludes
from rankwise.diagnose.lint.analysis.wrapped import DEVICE_MOVES, SHARDS, WRAPPERS, Wrap, is_rebound, known_wraps, wraps
from rankwise.diagnose.lint.record import HEAD, Edit, Fix, Hit, Rule

_DTYPE_MOVES = {"half", "double", "bfloat16", "float"}
_MOVES = DEVICE_MOVES | _DTYPE_MOVES
_DTYPES = re.compile(r"torch\.(float|half|double|bfloat|int)|\bdtype\b")
_PLACES = re.compile(r"\.(to|cuda)\(|device")


def calls_behind(module: Module, wrap: Wrap) -> Iterator[Call]:
    """Yield the calls behind a wrap in its function that a branch of the same `if` does not exclude, and in later methods."""
    inside = set(ast.walk(wrap.made.node))  # what makes the argument runs before the wrap
    for call in wrap.place.scope.calls:
        behind = position(call.node) > position(wrap.call.node) and call.node not in inside
        if behind and not excludes(call.place, wrap.place) and not is_rebound(wrap, call):
            yield call
    for scope in later_methods(module, wrap):
        yield from scope.calls


def bindings_behind(module: Module, wrap: Wrap) -> Iterator[Binding]:
    """Yield the bindings behind a wrap, as `calls_behind` does the calls."""
    for found in wrap.place.scope.bound:
        if position(found.place.stmt) > position(wrap.place.stmt) and not excludes(found.place, wrap.place):
            yield found
    for scope in later_methods(module, wrap):
        yield from scope.bound


def later_methods(module: Module, wrap: Wrap) -> list[Scope]:
    """Return the methods of a class that find the wrapped model in its field: none that __init__ calls before the wrap."""
    init, owner = wrap.place.scope, module.class_of("self", wrap.place.scope)
    if owner is None or not wrap.text.startswith("self.") or init.name != "__init__" or wrap.place.branches:
        return []
    methods = [scope for scope in owner.functions.values() if scope is not init and scope.is_function]
    early = {call.method for call in init.calls if position(call.node) <= position(wrap.call.node)}
    for scope in (*methods, *methods):
        early |= {call.method for call in scope.calls} if scope.name in early else set()
    return [scope for scope in methods if scope.name not in early and wrap.text not in scope.bindings]


def _is_dtype_move(module: Module, call: Call) -> bool:
    if call.method in _DTYPE_MOVES:
        return call.method != "float"
    return call.method == "to" and any(_DTYPES.search(module.text(part)) for part in call.node.args)


@Rule(
    "RW201", "move-after-wrap", "error", "high",
    message="{name} is moved after DDP has wrapped it: gradients silently stop being added up",
    why="DDP registers its hooks on the parameters that it sees. Moving or casting the model afterwards makes new gradient "
    "accumulators without hooks: every rank then trains a model of its own.",
    example=HEAD + """
 def prepare(net, device):
+    net = net.to(device)
     model = DDP(net)
-    model = model.to(device)
     return model
""",
    ignore="the model is on that device already, so that nothing moves.",
    fix="safe",
)  # fmt: skip
def move_after_wrap(module: Module) -> Iterator[Hit]:
    """Model = DDP(model) ... model.to(device)."""
    for wrap in known_wraps(module):
        ids = wrap.made.argument("device_ids")
        placed = ids is not None and not is_const(ids, None)
        placed = placed or any(each.moves_before for each in (wrap, *wraps(module)) if each.made is wrap.made)
        placed = placed or re.search(r"\.(to|cuda)\(", module.text(wrap.made.node)) is not None
        if wrap.call is not wrap.made:  # what another function wraps may have been made on its device
            inner = module.value(wrap.made.argument("module", 0), wrap.made.place.scope)
            placed = placed or (inner is not None and _PLACES.search(module.text(inner)) is not None)
        for call in calls_behind(module, wrap):
            if call.method not in _MOVES or call.base not in wrap.names or call.method == "float" or not wrap.text:
                continue
            if call.place.scope is not wrap.place.scope and not _is_dtype_move(module, call):
                continue
            told = call.node.args or call.keyword("device") or call.keyword("dtype")
            if call.method == "to" and not told:
                continue  # memory_format alone
            # a second move to the device on which it is changes nothing; `cpu` and saving helpers come at the end
            ends = call.method == "cpu" or any("'cpu'" in ast.unparse(part) for part in call.node.args)
            if not _is_dtype_move(module, call) and (placed or ends):
                continue
            if call.place.loops or NO_TRAINING.search(call.place.scope.name):
                continue
            yield Hit(call.node, {"name": call.base}, _swap(module, wrap, call))
            break


def _swap(module: Module, wrap: Wrap, call: Call) -> Fix | None:
    """Return the exchange of the wrap's line with the line right behind it that moves or converts the model."""
    here, there = wrap.place, call.place
    if here.block is not there.block or there.index != here.index + 1 or not wrap.inner or "." in wrap.inner:
        return None
    stmt = there.stmt
    if not wrap.call.targets or (not call.is_alone and [text_of(target) for target in call.targets] != [wrap.text]):
        return None
    start = module.span(here.stmt)[0]
    end = module.span(stmt)[1]
    new = re.sub(rf"(?<![\w.]){re.escape(wrap.text)}(?!\w)", wrap.inner, module.text(stmt))
    if call.is_alone:
        new = f"{wrap.inner} = {new}"
    between = module.source[module.span(here.stmt)[1] : module.span(stmt)[0]]
    if between.strip():
        return None  # a comment stands there
    return Fix("do it before the wrap", (Edit(start, end, new + between + module.text(here.stmt)),))


@Rule(
    "RW203", "syncbn-after-wrap", "error", "high",
    message="convert_sync_batchnorm after the wrap: convert the model, then wrap it",
    why="DDP has registered the parameters of the layers that the conversion replaces; the new ones are not synchronised.",
    example=HEAD + """
 def prepare(net):
+    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
     model = DDP(net)
-    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
     return model
""",
    fix="safe",
)  # fmt: skip
def syncbn_after_wrap(module: Module) -> Iterator[Hit]:
    """The argument is a wrapped model."""
    for wrap in known_wraps(module):
        for call in calls_behind(module, wrap):
            given = call.argument("module", 0) if call.method == "convert_sync_batchnorm" else None
            if given is not None and wrap.text and text_of(given).removesuffix(".module") == wrap.text:
                yield Hit(call.node, {}, _swap(module, wrap, call))


@Rule(
    "RW205", "params-after-wrap", "error", "medium",
    message="{name} gets parameters after DDP has wrapped it: they are not synchronised",
    why="DDP takes the list of parameters when it is built. Layers that are added or replaced later train on each rank alone.",
    example=HEAD + """
 def prepare(net):
-    model = DDP(net)
-    model.module.head = torch.nn.Linear(8, 2)
-    return model
+    net.head = torch.nn.Linear(8, 2)
+    return DDP(net)
""",
    ignore="the new layer is never trained.",
)  # fmt: skip
def params_after_wrap(module: Module) -> Iterator[Hit]:
    """model.module.head = nn.Linear(...), add_module, register_parameter, here or in a function that is given the model."""
    for wrap in known_wraps(module):
        seen: set[ast.stmt] = set()
        for call in calls_behind(module, wrap):
            stmt = call.place.stmt
            heads = tuple(f"{name}." for name in _names_at(wrap, call))
            targets = [text_of(target) for target in call.place.targets]
            outer = stmt.value if isinstance(stmt, ast.Expr) else None
            if isinstance(outer, ast.Call):  # `.append(layer)`, `setattr(model.module, name, layer)`
                of = outer.args[0] if text_of(outer.func) == "setattr" and outer.args else outer.func
                targets = [f"{text_of(of)}."] if outer is not call.node else []
            adds = call.method in {"add_module", "register_parameter"} and f"{call.base}.".startswith(heads)
            layer = _is_layer(call) and any(text.startswith(heads) for text in targets)
            if (adds or layer) and stmt not in seen:
                seen.add(stmt)
                yield Hit(call.node if adds else stmt, {"name": wrap.text})
            elif stmt not in seen and _grows(module, wrap, call):
                seen.add(stmt)
                yield Hit(call.node, {"name": wrap.text})


def _names_at(wrap: Wrap, call: Call) -> set[str]:
    """Return what means the model where a call stands: in other methods than that of the wrap, its fields."""
    here = call.place.scope is wrap.place.scope
    return {name for name in wrap.names - {"self"} if here or name.startswith("self.")}


def _grows(module: Module, wrap: Wrap, call: Call) -> bool:
    """Whether a call gives the model to a function of this file that puts a new layer into it."""
    # what is wrapped anew further down lists its parameters again
    again = (each for each in wraps(module) if each.inner in wrap.names and each.place.scope is call.place.scope)
    if any(position(each.made.node) > position(call.node) for each in again):
        return False
    target = module.local_function(call)
    params = [name for name in (target.params if target is not None else ()) if name not in {"self", "cls"}]
    for index, name in enumerate(params):
        given = call.argument(name, index)
        if given is None or text_of(given) not in _names_at(wrap, call) or target is None or name in target.bindings:
            continue
        for text, listed in target.bindings.items():
            if text.startswith(f"{name}.") and any(_holds_layer(module, found) for found in listed):
                return True
    return False


def _holds_layer(module: Module, found: Binding) -> bool:
    shown = module.value(found.value, found.place.scope)
    calls = (module.call_of.get(part) for part in ast.walk(shown)) if shown is not None else ()  # type: ignore[call-overload]
    return any(call is not None and _is_layer(call) for call in calls)


def _is_layer(call: Call) -> bool:
    """Whether a call makes a layer, or a parameter, that is trained."""
    made = call.name.startswith("torch.nn.") and call.method[:1].isupper()
    return made and call.name not in WRAPPERS and not call.method.endswith("Loss")


@Rule(
    "RW207", "requires-grad-after-wrap", "warning", "medium",
    message="requires_grad of {name} changes after the wrap: DDP keeps waiting for these gradients, or never reduces them",
    why="DDP takes the parameters that require gradients when it is built. Freezing later makes it wait for gradients that do not "
    "come; thawing later leaves them unsynchronised.",
    example=HEAD + """
 def prepare(net):
-    model = DDP(net)
-    for parameter in model.module.encoder.parameters():
+    for parameter in net.encoder.parameters():
         parameter.requires_grad = False
-    return model
+    return DDP(net)
""",
    ignore="find_unused_parameters=True is given and what was frozen stays so.",
)  # fmt: skip
def requires_grad_after_wrap(module: Module) -> Iterator[Hit]:
    """For p in model.parameters(): p.requires_grad = False, outside the training loop, in a file that does not only test."""
    if module.has_call("eval") and not module.has_call("backward", "step", "train", "fit"):
        return
    for wrap in known_wraps(module):
        models = {wrap.text, f"{wrap.text}.module"}
        for binding in bindings_behind(module, wrap):
            loop = binding.place.loops[-1] if binding.place.loops else None
            walked = texts_in(loop.iter) if isinstance(loop, ast.For) else set()
            sets = binding.text.endswith(".requires_grad") and bool(walked & models)
            if sets and not _in_a_step(module, binding.place) and not excludes(binding.place, wrap.place):
                yield Hit(binding.place.stmt, {"name": wrap.text})
        for call in calls_behind(module, wrap):
            loop = call.place.loops[-1] if call.place.loops else None
            counted = isinstance(loop, ast.For) and call.base in names_in(loop.target) and texts_in(loop.iter) & models
            straight = call.node.args and f"{call.base}.".startswith(f"{wrap.text}.")
            sets = call.method == "requires_grad_" and bool(counted or straight)
            given = any(text_of(part).partition(".")[0] == wrap.text for part in call.node.args)
            target = module.local_function(call) if given else None
            if (sets or (target is not None and _freezes(target))) and not _in_a_step(module, call.place):
                yield Hit(call.node, {"name": wrap.text})


def _freezes(scope: Scope) -> bool:
    """Whether a function sets requires_grad of the parameters that it gets."""
    walked = [ast.unparse(loop.iter) for loop in ast.walk(scope.node) if isinstance(loop, ast.For)]
    sets = any(text.endswith(".requires_grad") for text in scope.bindings)
    sets = sets or any(call.method == "requires_grad_" for call in scope.calls)
    return sets and any(f"{name}." in text and "parameters" in text for text in walked for name in scope.params)


def _in_a_step(module: Module, place: Place) -> bool:
    """Whether a place lies in a loop with a backward pass: two models in turn are frozen and thawed there on purpose."""
    if set(place.loops) & training_loops(module):
        return True
    scopes = {place.scope, *(call.place.scope for call in module.callers(place.scope))} if place.scope.owner else set()
    return any(call.place.scope in scopes for call in module.methods("backward"))


_OF_MODELS = ("parameters", "named_parameters")


@Rule(
    "RW220", "optimizer-before-shard", "error", "medium",
    message="this optimizer holds the parameters that {name} had before it was sharded: it updates tensors that nothing uses",
    why="FSDP and fully_shard replace the parameters of a model. An optimizer that was made before keeps the old ones, and "
    "training changes nothing, or only parts.",
    example="from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n" + HEAD + """
 def prepare(net):
-    optimizer = torch.optim.AdamW(net.parameters())
     model = FSDP(net)
+    optimizer = torch.optim.AdamW(model.parameters())
     return model, optimizer
""",
    ignore="use_orig_params=True is given by options that this file does not show.",
)  # fmt: skip
def optimizer_before_shard(module: Module) -> Iterator[Hit]:
    """AdamW(net.parameters()) stands before FSDP(net), or before fully_shard(net), in one function."""
    for shard, inner in _shards(module):
        name = text_of(inner)
        for call in shard.place.scope.calls:
            if position(call.node) >= position(shard.node):
                continue
            maker = _optimizer(call) if call.method in _OF_MODELS and call.base == name else None
            again = (each for each in shard.place.scope.calls if maker is not None and each.text == maker.text)
            if maker is not None and not any(position(each.node) > position(maker.node) for each in again):
                yield Hit(maker.node, {"name": name})


def _shards(module: Module) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the calls that shard a model, and the model; also those of functions of this file that do it to a parameter."""
    for shard in module.named(*SHARDS):
        inner, scope = shard.argument("module", 0), shard.place.scope
        original = shard.argument("use_orig_params")
        if inner is None or shard.is_open or (original is not None and not is_const(original, False)):
            continue
        yield shard, inner
        if scope.is_function and text_of(inner) in scope.params and not shard.place.branches:
            for call, part in module.given(scope, text_of(inner)):
                if isinstance(part, ast.Name | ast.Attribute):
                    yield call, part


def _optimizer(call: Call) -> Call | None:
    """Return the call of an optimizer that the parameters are given to."""
    for found in call.place.scope.calls:
        known = found.name.startswith("torch.optim.") or re.search(r"optim|Adam|SGD|Lion|Adafactor", found.method)
        inside = found.place.stmt is call.place.stmt and found is not call and call.node in ast.walk(found.node)
        if known and inside and "scheduler" not in found.text and found.method not in {"append", "extend"}:
            return found
    return None
